"""Collect the declarations of a pipeline: datasets, sources, arcs and views, each with its source line.

Declaring uses neither the store nor Spark, so a file that declares a pipeline can be imported anywhere. An
error in one declaration is raised at once; the plan checks whether all declarations fit together.

The file is long because each declaration has a method that documents all its options.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from tidemill.errors import DeclarationError
from tidemill.lots import checks as expectations
from tidemill.lots.checks import Check
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.ids import Unit
from tidemill.paths import expanded
from tidemill.pipeline.checked_views import with_checks
from tidemill.pipeline.declarations import (
    ArcDecl,
    Changes,
    DatasetDecl,
    FunctionDecl,
    Refresh,
    SourceDecl,
    ViewDecl,
    check_keep_rows,
    drift_of,
    sinks_of,
)
from tidemill.pipeline.pace import FASTEST, Duration, Pace, check_pace, grace_of, seconds
from tidemill.pipeline.source_line import SourceLine, caller_folder, caller_line, errors_at
from tidemill.pipeline.tables import Dataset, Table, View
from tidemill.pipeline.view_files import read_view_files
from tidemill.sources.registry import SOURCES
from tidemill.sources.source import Source, source_label
from tidemill.views.circuit.functions import ViewFunctions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

F = TypeVar("F", bound=Callable[..., Any])
Drifts = Literal["freeze", "evolve", "rescue"]
Readable: TypeAlias = Table | str
GROUP = "main"


class Registry(ABC):
    """The declarations of one pipeline, by name. `Pipeline` derives from it."""

    def __init__(self, name: str) -> None:
        if not name or "/" in name or ":" in name:
            raise DeclarationError(
                f"{name!r} is not a valid pipeline name", hint="use letters, digits, - and _"
            )
        self.name = name
        self.base = caller_folder()
        """The folder of the file that declares the pipeline. Relative paths start here."""
        self.datasets: dict[str, DatasetDecl] = {}
        self.sources: dict[str, SourceDecl] = {}
        """The sources by their labels: `orders`, or `orders#csv` for a source with a name."""
        self.arcs: dict[str, ArcDecl] = {}
        self.templates: dict[str, ArcDecl] = {}
        self.views: dict[str, ViewDecl] = {}
        self.functions: dict[str, FunctionDecl] = {}
        self.fresh_within: dict[str, float] = {}
        """How many seconds ago the newest lot of a table may have been published."""

    @abstractmethod
    def _dataset(self, name: str) -> Dataset:
        """Return the object that represents a declared dataset for users."""

    @abstractmethod
    def _view(self, name: str) -> View:
        """Return the object that represents a declared view for users."""

    def dataset(
        self,
        name: str,
        schema: str,
        *,
        key: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        deletes: bool = False,
        lots: str | None = None,
        version: str = "1",
        checks: Sequence[Check] = (),
        drift: Drifts = "freeze",
        keep: Duration = None,
        keep_rows: bool = False,
        fresh_within: Duration = None,
    ) -> Dataset:
        """Declare a table that users append to, or that a source writes.

        Args:
            name: the name of the table; any text.
            schema: its columns, as Spark writes them: `"id BIGINT, amount DECIMAL(10,2)"`.
            key: columns that identify a row. Rows are then upserted and deleted by key. Rows with a NULL in a
                key column go to the quarantine table.
            order_by: with a key, columns that order the writes to the same key, such as a time or a version.
                A write that is older than the current row, or than its deletion, changes nothing. Without
                `order_by`, or if the values are equal, the write that arrived later wins. NULL is the oldest
                value.
            deletes: whether `delete(rows)` is allowed; by default, rows can only be appended.
            lots: the length of an interval, like `"PT5M"`; all appends of an interval form one lot. By
                default, every append is a lot.
            version: a new version is a new table with the same name.
            checks: conditions for the rows of every lot: `[tm.not_null("id"), tm.expect("amount > 0")]`.
            drift: what to do with columns that are not declared. `freeze`: ignore and count
                them in files, and refuse pushed and fetched records that have them. `evolve`: add them to the
                table. `rescue`: keep everything that does not fit as JSON in the column `_rescued`.
            keep: how long a lot is kept, like `"P30D"`; by default for ever. Older lots leave the table when
                all arcs, views and consumers have read them. Views keep their rows.
            keep_rows: with `keep`, whether the table keeps the rows of older lots. Tidemill merges these lots
                into one base lot, from which new views start. A table with a key or with deletes always does
                this, and keeps only the last row of each key.
            fresh_within: how long ago the newest lot may have been published, like `"PT1H"`. When it is
                older, the hooks in `on_stale=` of the pipeline get an alert.
        """
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        order = (order_by,) if isinstance(order_by, str) else tuple(order_by or ())
        kind = Kind.KEYED if keys else Kind.CHANGES if deletes else Kind.ROWS
        line = caller_line()
        with errors_at(line):
            declared = DatasetRow(
                name=name,
                version=version,
                unit=None if lots is None else Unit.parse(lots),
                kind=kind,
                key=keys,
                order_by=order,
                deletes=bool(keys) or deletes,
                schema=schema,
                drift=drift_of(drift),
            )
            expected = expectations.validate(checks)
            keep_s = seconds("keep", keep)
            fresh_s = seconds("fresh_within", fresh_within)
            check_keep_rows(name, keep_s, keep_rows=keep_rows)
        decl = DatasetDecl(
            dataset=declared,
            schema=schema,
            line=line,
            checks=expected,
            keep_s=keep_s,
            keep_rows=keep_rows or kind is not Kind.ROWS,
        )
        self._new_table(name, line)
        self.datasets[name] = decl
        self._limit_age(name, fresh_s)
        return self._dataset(name)

    def source(
        self, dataset: Dataset | str, source: Source, *, name: str = "", checks: Sequence[Check] = ()
    ) -> None:
        """Declare where the rows of a dataset come from. Each file, row or message is read once.

        A dataset can have several sources, for example one for each file format. Each of them needs a name;
        one may go without. In a dataset with a key, the rows of each source are upserted in the order in
        which they arrive. Between sources there is no order: use `order_by=` of the dataset if it matters.

        >>> import tidemill as tm
        >>> shop = tm.Pipeline("shop", home="shop-home")
        >>> orders = shop.dataset("orders", "id BIGINT")
        >>> shop.source(orders, tm.folder("landing/orders/*.json"))
        >>> shop.source(orders, tm.folder("landing/orders/*.csv"), name="csv")

        Args:
            dataset: the dataset, or its name.
            source: such as `tm.folder(…)`, `tm.bucket(…)`, `tm.kafka(…)`, `tm.http_poll(…)`,
                `tm.http_push(…)`.
            name: the name of this source, if the dataset has several: letters, digits, - and _. What a source
                has read is stored under its name, so a source with a new name reads everything again.
            checks: conditions for rows of this source, in addition to the checks of the dataset.
        """
        line = caller_line()
        table = self._name_of(dataset)
        if table not in self.datasets:
            raise DeclarationError(
                f"{line}: {self.name} has no dataset {table}", hint="declare the dataset first"
            )
        if name and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise DeclarationError(
                f"{line}: {name!r:.80} is not a valid source name",
                hint="use up to 64 letters, digits, - and _",
            )
        label = source_label(table, name)
        if label in self.sources:
            raise DeclarationError(
                f"{line}: {table} already has a source{f' named {name}' if name else ''},"
                f" declared at {self.sources[label].line}",
                hint="give each source of a dataset a name: pipeline.source(dataset, …, name='csv')",
            )
        if self.datasets[table].dataset.kind is Kind.CHANGES:
            raise DeclarationError(
                f"{line}: a source cannot write to {table}, because the dataset has deletes=True",
                hint="declare a key instead of deletes=True",
            )
        if not isinstance(source, Source):
            kinds = ", ".join(f"tm.{kind}(…)" for kind in SOURCES)
            raise DeclarationError(f"{line}: {source!r:.80} is not a source", hint=f"pass one of {kinds}")
        with errors_at(line):
            expected = expectations.validate([*self.datasets[table].checks, *checks])
        self.sources[label] = SourceDecl(dataset=table, source=source, line=line, checks=expected, name=name)

    def sources_of(self, dataset: str) -> list[SourceDecl]:
        """Return the sources of a dataset."""
        return [decl for decl in self.sources.values() if decl.dataset == dataset]

    def arc(
        self,
        *,
        reads: Readable | Sequence[Readable],
        writes: str | Sequence[str] | Mapping[str, str],
        partition_by: str | Sequence[str] = (),
        schema: str | None = None,
        retries: int = 3,
        parts: int = 8,
        max_concurrent: int = 4,
        changes: Changes | None = None,
        pace: Pace = FASTEST,
        grace: Duration = None,
        after_grace: Literal["wait", "partial", "skip"] = "wait",
        enabled: bool = True,
        name: str | None = None,
        checks: Sequence[Check] | Mapping[str, Sequence[Check]] = (),
        drift: Literal["freeze", "evolve"] = "freeze",
        keep: Duration = None,
        keep_rows: bool = False,
        fresh_within: Duration = None,
    ) -> Callable[[F], F]:
        """Declare a function that reads and writes lots. It gets a Spark DataFrame with one part of a lot.

        Args:
            reads: the table that the function reads, or several tables with equal intervals. With several
                tables, the function runs when all of them have the lot, and gets their DataFrames in this
                order. A pattern like `raw_*` is a template: it creates one arc for each table whose name
                matches, including tables that are declared later.
            writes: the table that the function writes. With several tables, the function returns one
                DataFrame for each, in this order. `writes` can also be a dictionary from names to schemas. In
                a template, `{name}` is the text that the star matched.
            partition_by: columns that partition the output. An arc that reads the output processes each lot
                in parts, divided by these columns.
            schema: the schema of the output, if Spark cannot derive it from the function.
            retries: how many times a failed part is retried automatically.
            parts: the maximum number of parts into which a lot is split.
            max_concurrent: how many lots run at the same time; they are published in order.
            pace: when the arc runs, like `tm.Pace(cadence="PT5M")`; by default as soon as a lot arrives.
            grace: for an arc that reads several tables: how long a lot waits for the last table, after the
                first table has the lot.
            after_grace: what to do when the grace period is over. `wait`: wait without limit. `partial`: run
                with the tables that have the lot, and run again when another table gets it. `skip`: skip the
                lot, unless it is requested.
            changes: needed if rows of the input can be deleted. `"linear"`: the function handles each row
                independently, and Tidemill computes the weights. `"raw"`: the function reads and returns
                `_weight`.
            enabled: whether the arc runs. A disabled arc loses nothing: once it is enabled, it processes all
                lots that have arrived.
            name: the name of the arc; the function's name by default.
            checks: conditions for the rows of every lot that the arc writes; for several tables, a dictionary
                by table name.
            drift: `evolve` allows new columns and wider types when the function returns them.
            keep: how long the lots that the arc writes are kept, like `"P30D"`; by default for ever. See
                `dataset`.
            keep_rows: with `keep`, whether the tables keep the rows of older lots; see `dataset`.
            fresh_within: how long ago the newest lot of each table may have been published; see `dataset`.
        """
        line = caller_line()
        tables = (reads,) if isinstance(reads, Table | str) else tuple(reads)
        with errors_at(line):
            sinks = sinks_of(
                writes,
                partition_by=partition_by,
                schema=schema,
                checks=checks,
                drift=drift,
                keep_s=seconds("keep", keep),
                keep_rows=keep_rows,
            )
            check_keep_rows(sinks[0].name if sinks else "the arc", keep, keep_rows=keep_rows)
            check_pace(pace)
            waits = grace_of(grace, after_grace, len(tables))
            fresh_s = seconds("fresh_within", fresh_within)
        if not sinks or not tables:
            raise DeclarationError(
                f"{line}: the arc has no input or no output",
                hint="pass at least one table in reads= and in writes=",
            )
        if retries < 0 or parts < 1 or max_concurrent < 1:
            raise DeclarationError(
                f"{line}: invalid retries={retries}, parts={parts} or max_concurrent={max_concurrent}",
                hint="set retries to 0 or more, and parts and max_concurrent to 1 or more",
            )

        def declare(function: F) -> F:
            arc_name = name or getattr(function, "__name__", "")
            if not arc_name or "/" in arc_name:
                raise DeclarationError(
                    f"{line}: the arc has no valid name", hint="set a name without a slash: name='…'"
                )
            for declared in (self.arcs, self.templates):
                if arc_name in declared:
                    raise DeclarationError(
                        f"{line}: the arc {arc_name} is already declared at {declared[arc_name].line}",
                        hint="set another name: name='…'",
                    )
            decl = ArcDecl(
                name=arc_name,
                reads=tuple(self._name_of(table) for table in tables),
                sinks=sinks,
                function=function,
                retries=retries,
                parts=parts,
                max_concurrent=max_concurrent,
                changes=changes,
                pace=pace,
                grace=waits,
                enabled=enabled,
                line=line,
            )
            self._declare_arc(decl)
            if arc_name in self.arcs:
                for sink in sinks:
                    self._limit_age(sink.name, fresh_s)
            return function

        return declare

    def _declare_arc(self, decl: ArcDecl) -> None:
        from tidemill.pipeline.plan import templates

        if any(templates.is_pattern(name) and name not in self.datasets for name in decl.reads):
            templates.check(self, decl)
            self.templates[decl.name] = decl
            return
        for sink in decl.sinks:
            self._new_table(sink.name, decl.line)
        self.arcs[decl.name] = decl

    def view(
        self,
        name: str,
        query: "str | Callable[..., DataFrame]",
        *,
        reads: Readable | Sequence[Readable] = (),
        linear: bool = False,
        keyed_by: str | Sequence[str] = (),
        full: bool = False,
        refresh: Refresh = "auto",
        group: str = GROUP,
        pace: Pace = FASTEST,
        checks: Sequence[Check] = (),
        keep: Duration = None,
        fresh_within: Duration = None,
    ) -> View:
        """Declare a view: a table with the result of a query, which Tidemill keeps up to date.

        Args:
            name: the name of the view.
            query: a Spark SQL query over tables of this pipeline. Or a function that takes a DataFrame for
                each table in `reads` and returns one DataFrame; declare it `linear`, `keyed_by` or `full`.
            reads: the tables of a function, in the order of its arguments.
            linear: the function handles each row independently: its result for two sets of rows together is
                the sum of its results for each set.
            keyed_by: the key columns of a function. The function computes the result rows of a key only from
                the input rows of the same key.
            full: the function needs whole tables.
            refresh: `auto` recomputes the view in each step only if necessary; `incremental` refuses a view
                that would be recomputed; `full` always recomputes it.
            group: the views of a group are updated together; each group has its own pace. A view can read a
                view of another group, whose query is then computed in both groups.
            pace: when the group of the view is updated, like `tm.Pace(cadence="PT5M")`; by default as soon as
                an input is published. A group has the shortest pace that its views declare.
            checks: conditions for all rows of the view: `[tm.unique("id"), tm.foreign_key("cust",
                references="customers", to="id")]`. The view `<name>_failures` has the rows that fail. While
                rows fail a check with `on_fail="fail"`, the view keeps its last table.
            keep: how long the changes of the view are kept, like `"P30D"`; by default for ever. The view
                itself does not change. A group keeps changes for the longest time that its views declare, and
                at least those of its last 100 steps.
            fresh_within: how long ago the newest step of the view's group may have been committed; see
                `dataset`.
        """
        line = caller_line()
        with errors_at(line):
            fresh_s = seconds("fresh_within", fresh_within)
        tables = (reads,) if isinstance(reads, Table | str) else tuple(reads)
        keys = (keyed_by,) if isinstance(keyed_by, str) else tuple(keyed_by)
        kinds = [linear, bool(keys), full]
        if isinstance(query, str):
            if tables or any(kinds):
                raise DeclarationError(
                    f"{line}: reads=, linear=, keyed_by= and full= are for functions, not for SQL",
                    hint="omit them",
                )
        elif kinds.count(True) != 1 or not tables:
            raise DeclarationError(
                f"{line}: the view {name} is a function, so it needs reads= and one of linear=, keyed_by="
                " or full=",
                hint="pass reads=[…] and exactly one of linear=True, keyed_by=[…] and full=True",
            )
        decl = ViewDecl(
            name=name,
            sql=query if isinstance(query, str) else "",
            function=None if isinstance(query, str) else query,
            reads=tuple(self._name_of(table) for table in tables),
            linear=linear,
            keyed_by=keys,
            group=group,
            refresh=refresh,
            pace=pace,
            line=line,
        )
        view = self._declare_view(decl, keep, checks)
        self._limit_age(name, fresh_s)
        return view

    def views_in(
        self, folder: str | os.PathLike[str] = "views", *, checks: Mapping[str, Sequence[Check]] | None = None
    ) -> list[View]:
        """Declare a view for every SQL file in a folder: `views/revenue.sql` declares the view `revenue`.

        Comment lines like `-- tidemill: cadence = PT5M` set the options of a view: `refresh`, `group`,
        `keep`, `cadence`, `debounce`, `max_wait`, `cron`, `zone` and `most_failures`.

        Args:
            folder: the folder; a relative path is relative to the file that declares the pipeline.
            checks: the checks of views, by the name of the view; see `view`.
        """
        line = caller_line()
        checks = checks or {}
        with errors_at(line):
            files = list(read_view_files(self.base / expanded(folder)))
        unknown = checks.keys() - {file.name for file in files}
        if unknown:
            raise DeclarationError(
                f"{line}: checks= names the view {min(unknown)}, but {folder} has no such file",
                hint="correct the name",
            )
        declared = []
        for file in files:
            options = {"refresh": "auto", "group": GROUP, **file.options}
            keep = options.pop("keep", None)
            decl = ViewDecl(name=file.name, sql=file.sql, pace=file.pace, line=file.line, **options)
            declared.append(self._declare_view(decl, keep, checks.get(file.name, ())))
        return declared

    def _declare_view(self, decl: ViewDecl, keep: Duration, checks: Sequence[Check]) -> View:
        with errors_at(decl.line):
            check_pace(decl.pace)
            keep_s = seconds("keep", keep)
            expected = expectations.validate(checks, of_view=True)
            if decl.refresh not in ("auto", "incremental", "full"):
                raise DeclarationError(
                    f"invalid refresh={decl.refresh!r}", hint="use auto, incremental or full"
                )
        views = with_checks(decl, expected)
        for view in views:
            self._new_table(view.name, decl.line)
        for view in views:
            self.views[view.name] = replace(view, keep_s=keep_s)
        return self._view(decl.name)

    def function(
        self, name: str, function: Callable[..., Any], returns: str, *, deterministic: bool = False
    ) -> None:
        """Declare a Python function that the queries of this pipeline's views can call.

        A view is computed again when the code of a function that it calls has changed. Each step recomputes
        a view that calls such a function.

        Args:
            name: the name in queries. Spark's own functions cannot be replaced.
            function: takes the values of one row, and returns one value.
            returns: the Spark type of the result, like `"STRING"`.
            deterministic: whether the function always returns the same value for the same arguments.
        """
        line = caller_line()
        lower = name.lower()
        if not name.isidentifier():
            raise DeclarationError(
                f"{line}: {name!r} is not a valid name of a function", hint="use letters, digits and _"
            )
        if ViewFunctions().is_known(lower):
            raise DeclarationError(
                f"{line}: {name} is a function of Spark", hint="choose another name for your function"
            )
        if lower in self.functions:
            raise DeclarationError(
                f"{line}: {name} is already declared at {self.functions[lower].line}",
                hint="choose another name",
            )
        self.functions[lower] = FunctionDecl(
            name=lower, function=function, returns=returns, deterministic=deterministic, line=line
        )

    def _limit_age(self, table: str, limit_s: float | None) -> None:
        if limit_s is not None:
            self.fresh_within[table] = limit_s

    def _new_table(self, name: str, line: SourceLine) -> None:
        for kind, other in self.declared_at(name):
            raise DeclarationError(
                f"{line}: {name} is already declared as {kind} at {other}", hint="use another name"
            )

    def declared_at(self, name: str) -> Iterable[tuple[str, SourceLine]]:
        """Yield the kind and the line of every declaration with this name."""
        if name in self.datasets:
            yield "a dataset", self.datasets[name].line
        if name in self.views:
            yield "a view", self.views[name].line
        for arc in self.arcs.values():
            if any(sink.name == name for sink in arc.sinks):
                yield "a table of an arc", arc.line

    def _name_of(self, table: Readable) -> str:
        if isinstance(table, str):
            return table
        if table.pipeline is not self:
            raise DeclarationError(
                f"{caller_line()}: {table.name} belongs to another pipeline, {table.pipeline.name}",
                hint="if both pipelines share a cluster, pass the table's name instead of the table",
            )
        return table.name
