"""What is declared of a pipeline: its datasets, sources, arcs and views, each once, with its line.

Declaring touches neither a store nor Spark, so that a file that declares a pipeline can be imported anywhere.
What is wrong with one declaration alone is told at once; whether all of them fit together, `plan` finds out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from tidemill.errors import DeclarationError
from tidemill.lots import checks as expectations
from tidemill.lots.checks import Check
from tidemill.lots.datasets import Dataset as Declared
from tidemill.lots.datasets import Drift, Kind
from tidemill.lots.ids import Unit
from tidemill.pipeline.declarations import (
    ArcDecl,
    Changes,
    DatasetDecl,
    Refresh,
    SourceDecl,
    ViewDecl,
)
from tidemill.pipeline.pace import FASTEST, Duration, Pace, grace_of
from tidemill.pipeline.sinks import sinks_of
from tidemill.pipeline.source_line import Line, at, here
from tidemill.pipeline.tables import Dataset, Table, View
from tidemill.sources.registry import SOURCES
from tidemill.sources.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

F = TypeVar("F", bound=Callable[..., Any])
Drifts = Literal["freeze", "evolve", "rescue"]
Readable: TypeAlias = Table | str
GROUP = "main"


def _check_pace(pace: object) -> None:
    if not isinstance(pace, Pace):
        raise DeclarationError(f"pace={pace!r:.80}", hint='use tm.Pace(…), like tm.Pace(cadence="PT5M")')


def _drift(text: str) -> Drift:
    if text not in list(Drift):
        raise DeclarationError(f"drift={text!r}", hint="freeze, evolve or rescue")
    return Drift(text)


class Register(ABC):
    """The declarations of one pipeline, by name; `Pipeline` is the one that there is."""

    def __init__(self, name: str) -> None:
        if not name or "/" in name or ":" in name:
            raise DeclarationError(f"{name!r} is no name of a pipeline", hint="letters, digits, - and _")
        self.name = name
        self.datasets: dict[str, DatasetDecl] = {}
        self.sources: dict[str, SourceDecl] = {}
        self.arcs: dict[str, ArcDecl] = {}
        self.templates: dict[str, ArcDecl] = {}
        self.views: dict[str, ViewDecl] = {}

    @abstractmethod
    def _dataset(self, name: str) -> Dataset:
        """A dataset that is declared, as its user holds it."""

    @abstractmethod
    def _view(self, name: str) -> View:
        """The same of a view."""

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
    ) -> Dataset:
        """A table that is written by appends, or by a source.

        Args:
            name: any text.
            schema: its columns, as Spark writes them: `"id BIGINT, amount DECIMAL(10,2)"`.
            key: columns whose values name a row: then rows are upserted and deleted by key. What has a NULL
                there goes to the quarantine table.
            order_by: with a key, columns that say which of two writes of a key is the newer one, such as a
                time or a version: what is older than the row that is there, or than its deletion, changes
                nothing. Without it, and of two that are equal, the one that came later counts. As Spark
                sorts, NULL is older than all.
            deletes: whether `delete(rows)` is allowed; append-only is the default.
            lots: how long an interval is (`"PT5M"`); without it every append is a lot.
            version: another version is another table.
            checks: what is expected of the rows of every lot: `[tm.not_null("id"), tm.expect("amount > 0")]`.
            drift: what becomes of other columns, in files and in this declaration. `freeze`: they are left
                out and counted, and the declaration cannot change. `evolve`: new columns are added, and types
                may become wider. `rescue`: what does not fit is kept as JSON in the column `_rescued`.
        """
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        order = (order_by,) if isinstance(order_by, str) else tuple(order_by or ())
        kind = Kind.KEYED if keys else Kind.CHANGES if deletes else Kind.ROWS
        line = here()
        with at(line):
            declared = Declared(
                name=name,
                version=version,
                unit=None if lots is None else Unit.parse(lots),
                kind=kind,
                key=keys,
                order_by=order,
                deletes=bool(keys) or deletes,
                schema=schema,
                drift=_drift(drift),
            )
            expected = expectations.of(checks)
        decl = DatasetDecl(dataset=declared, schema=schema, line=line, checks=expected)
        self._new_table(name, line)
        self.datasets[name] = decl
        return self._dataset(name)

    def source(self, dataset: Dataset | str, source: Source, *, checks: Sequence[Check] = ()) -> None:
        """What arrives there becomes lots of this dataset, each file, row or message once.

        Into a dataset with a key rows are upserted, in the order in which they arrive.

        >>> import tidemill as tm
        >>> shop = tm.Pipeline("shop", home="shop-home")
        >>> orders = shop.dataset("orders", "id BIGINT")
        >>> shop.source(orders, tm.folder("landing/orders/*.json"))

        - checks: what is expected of what arrives, beside the checks of the dataset.
        """
        line = here()
        name = self._name_of(dataset)
        if name not in self.datasets:
            raise DeclarationError(f"{line}: {name} is no dataset of {self.name}", hint="declare it first")
        if name in self.sources:
            raise DeclarationError(f"{line}: {name} has a source already, see {self.sources[name].line}")
        if self.datasets[name].dataset.kind is Kind.CHANGES:
            raise DeclarationError(f"{line}: {name} takes changes, and a source brings rows")
        if not isinstance(source, Source):
            kinds = ", ".join(f"tm.{name}(…)" for name in SOURCES)
            raise DeclarationError(f"{line}: {source!r:.80} is not a source", hint=f"give one of {kinds}")
        with at(line):
            expected = expectations.of([*self.datasets[name].checks, *checks])
        self.sources[name] = SourceDecl(dataset=name, source=source, line=line, checks=expected)

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
    ) -> Callable[[F], F]:
        """A function from a lot to a lot: it is given a Spark DataFrame of one part of one lot.

        Args:
            reads: the table whose lots it is run for; or several of equal intervals, whose frames it is given
                in that order when all of them have the lot. `raw_*` is a template: one arc for each table
                whose name matches, also of those that are declared later.
            writes: the table it makes, or several: then it returns that many frames, in that order; or a
                dictionary from names to schemas. `{name}` is what the star of a template stands for.
            partition_by: columns its output is partitioned by; what reads it is run in parts by these.
            schema: of the output, where Spark's own analysis of the function does not do.
            retries: how often a part that failed is tried again by itself.
            parts: into how many parts a lot is split at most.
            max_concurrent: how many of its lots may be under way at once; they are published in order.
            pace: when it runs, like `tm.Pace(cadence="PT5M")`; by default as soon as a lot arrives.
            grace: of an arc that reads several tables: how long a lot waits for the last of them, from the
                moment on that the first of them has it.
            after_grace: what follows then: `wait` for ever; `partial`, make it of what is there, and once
                more with each table that comes late; `skip`, give it up, unless somebody asks for it.
            changes: for a table that can retract rows: `"linear"` says that it maps rows one by one, so that
                the weight is carried around it; `"raw"` gives and takes `_weight`.
            enabled: whether it is run; one that is not loses nothing, and is run for all of it when it is.
            name: of the arc; the function's by default.
            checks: what is expected of the rows of every lot it makes; of several tables: by name.
            drift: whether its tables may have more columns, and wider types, when the function returns them.
        """
        line = here()
        tables = (reads,) if isinstance(reads, Table | str) else tuple(reads)
        with at(line):
            sinks = sinks_of(writes, partition_by=partition_by, schema=schema, checks=checks, drift=drift)
            _check_pace(pace)
            waits = grace_of(grace, after_grace, len(tables))
        if not sinks or not tables:
            raise DeclarationError(f"{line}: an arc reads a table and writes one")
        if retries < 0 or parts < 1 or max_concurrent < 1:
            raise DeclarationError(f"{line}: retries is 0 or more, parts and max_concurrent 1 or more")

        def declare(function: F) -> F:
            called = name or getattr(function, "__name__", "")
            if not called or "/" in called:
                raise DeclarationError(f"{line}: this arc has no name", hint="give it one: name=…")
            for known in (self.arcs, self.templates):
                if called in known:
                    raise DeclarationError(f"{line}: there is an arc {called}, see {known[called].line}")
            decl = ArcDecl(
                name=called,
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
            return function

        return declare

    def _declare_arc(self, decl: ArcDecl) -> None:
        from tidemill.pipeline.plan import templates as fanout

        if any(fanout.is_pattern(name) and name not in self.datasets for name in decl.reads):
            fanout.check(self, decl)
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
    ) -> View:
        """A query whose result is kept as a table, up to date with what it reads.

        Args:
            name: of the view.
            query: one query of Spark SQL over tables of this pipeline; or a function from DataFrames of the
                tables in `reads` to one DataFrame, declared to be one of `linear`, `keyed_by` and `full`.
            reads: of a function, the tables it is given, in the order of its arguments.
            linear: the function maps rows one by one: what it makes of two tables together is what it makes
                of each.
            keyed_by: columns of the result; the function computes the rows of each value of them from the
                rows of that value alone.
            full: the function needs whole tables.
            refresh: `auto`; `incremental` refuses what would have to be recomputed; `full` always recomputes.
            group: views of one group are taken from step to step together; another group has its own pace.
            pace: when its group steps, like `tm.Pace(cadence="PT5M")`; by default as soon as an input is
                published. A group has the shortest of each that its views declare.
        """
        line = here()
        with at(line):
            _check_pace(pace)
        if refresh not in ("auto", "incremental", "full"):
            raise DeclarationError(f"{line}: refresh={refresh!r}", hint="auto, incremental or full")
        tables = (reads,) if isinstance(reads, Table | str) else tuple(reads)
        keys = (keyed_by,) if isinstance(keyed_by, str) else tuple(keyed_by)
        said = [linear, bool(keys), full]
        if isinstance(query, str):
            if tables or any(said):
                raise DeclarationError(
                    f"{line}: reads=, linear=, keyed_by= and full= are for functions",
                    hint="a query says itself what it reads",
                )
        elif said.count(True) != 1 or not tables:
            raise DeclarationError(
                f"{line}: the view {name} is a function, and must say what it reads and what it is",
                hint="reads=[…] and one of linear=True, keyed_by=[…], full=True",
            )
        self._new_table(name, line)
        self.views[name] = ViewDecl(
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
        return self._view(name)

    def _new_table(self, name: str, line: Line) -> None:
        for what, before in self.declared_at(name):
            raise DeclarationError(
                f"{line}: there is {what} {name} already, see {before}",
                hint="each table has a name of its own",
            )

    def declared_at(self, name: str) -> Iterable[tuple[str, Line]]:
        """What is called so, and where it is declared."""
        if name in self.datasets:
            yield "a dataset", self.datasets[name].line
        if name in self.views:
            yield "a view", self.views[name].line
        for arc in self.arcs.values():
            if any(sink.name == name for sink in arc.sinks):
                yield "a table of an arc,", arc.line

    def _name_of(self, table: Readable) -> str:
        if isinstance(table, str):
            return table
        if table.pipeline is not self:
            raise DeclarationError(
                f"{here()}: {table.name} belongs to the pipeline {table.pipeline.name}",
                hint="name it by its name, if both share a cluster",
            )
        return table.name
