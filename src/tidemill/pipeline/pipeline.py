"""A pipeline: what users declare, and run.

>>> import tidemill as tm
>>> shop = tm.Pipeline("shop", home="shop-home")
>>> orders = shop.dataset("orders", "id BIGINT, cust BIGINT, amount DECIMAL(10,2)")
>>> shop
<Pipeline shop: 1 dataset>

Declaring touches neither a store nor Spark: a file that declares a pipeline can be imported anywhere. The
store is opened when it is first needed, and Spark when something has to be computed.
"""

import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import DeclarationError, TidemillError
from tidemill.events import Emit, ignore
from tidemill.futures.home import CLUSTER, Place
from tidemill.lots import checks as expectations
from tidemill.lots.checks import Check, quarantine_of
from tidemill.lots.datasets import Dataset as Declared
from tidemill.lots.datasets import Drift, Kind
from tidemill.lots.ids import Unit
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.declarations import (
    AnySource,
    ArcDecl,
    Changes,
    DatasetDecl,
    Refresh,
    SinkDecl,
    SourceDecl,
    ViewDecl,
)
from tidemill.pipeline.lines import Line, folder, here
from tidemill.pipeline.pace import Duration, grace_of, pace_of
from tidemill.pipeline.site import Site
from tidemill.pipeline.tables import Dataset, Table, View
from tidemill.sources.pushing import PushSpec
from tidemill.spark.sessions import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.gaps import GapReport
    from tidemill.pipeline.graph import Bound
    from tidemill.pipeline.orders import OrderPlan
    from tidemill.pipeline.pace import CatchUpWord
    from tidemill.pipeline.plan import Plan
    from tidemill.pipeline.report import Report
    from tidemill.pipeline.retired import RetiredView

F = TypeVar("F", bound=Callable[..., Any])
Drifts = Literal["freeze", "evolve", "rescue"]
Readable: TypeAlias = Table | str
GROUP = "main"


def _drift(text: str) -> Drift:
    if text not in list(Drift):
        raise DeclarationError(f"drift={text!r}", hint="freeze, evolve or rescue")
    return Drift(text)


class Pipeline:
    """Datasets, sources, arcs and views that belong together.

    Args:
        name: of the pipeline; its arcs and views are known by it.
        home: a folder with everything in it (SQLite and files), beside the file that declares the pipeline
            unless the path is absolute; made if missing.
        store: the store's URL, instead of a home, with `objects` and the cluster key.
        objects: the URL of the object storage that goes with `store`.
        cluster: the name that everything in the store lies under.
        key_file: the file of the cluster key; a home has its own.
        spark: the session to use, a master (`local[4]`, `spark://…`), a Spark Connect address (`sc://…`), or
            `SparkSettings`; `local[*]` by default.
    """

    def __init__(
        self,
        name: str,
        *,
        home: str | os.PathLike[str] | None = None,
        store: str | None = None,
        objects: str | None = None,
        cluster: str = CLUSTER,
        key_file: str | os.PathLike[str] | None = None,
        spark: "SparkSession | SparkSettings | str | None" = None,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
    ) -> None:
        if not name or "/" in name or ":" in name:
            raise DeclarationError(f"{name!r} is no name of a pipeline", hint="letters, digits, - and _")
        self.base = folder()
        """What relative paths are relative to: the folder of the file that declares the pipeline."""
        if home is None and store is None:
            home = f"{name}-home"
        if home is not None:
            home = self.base / Path(home).expanduser()
        self.name = name
        self.datasets: dict[str, DatasetDecl] = {}
        self.sources: dict[str, SourceDecl] = {}
        self.arcs: dict[str, ArcDecl] = {}
        self.templates: dict[str, ArcDecl] = {}
        self.views: dict[str, ViewDecl] = {}
        self._place: Callable[[], Place] = lambda: Place.of(
            home=home, store=store, objects=objects, cluster=cluster, key_file=key_file
        )
        self._spark = spark
        self._clock = clock
        self._chance = chance if chance is not None else random.Random()
        self._site: Site | None = None
        self._lock = threading.RLock()

    # --- declaring

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
        try:
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
        except TidemillError as error:
            raise DeclarationError(f"{line}: {error.message}", hint=error.hint) from error
        decl = DatasetDecl(dataset=declared, schema=schema, line=line, checks=expected)
        self._new_table(name, line)
        self.datasets[name] = decl
        return Dataset(self, name)

    def source(self, dataset: Dataset | str, source: AnySource, *, checks: Sequence[Check] = ()) -> None:
        """What arrives there becomes lots of this dataset, each file, row or message once.

        Into a dataset with a key rows are upserted, in the order in which they arrive.

        >>> shop.source(orders, tm.folder("landing/orders/*.json"))  # doctest: +SKIP

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
        if not isinstance(source, AnySource):
            raise DeclarationError(
                f"{line}: {source!r:.80} is no source", hint="tm.folder(…), tm.bucket(…), tm.http_push(…), …"
            )
        try:
            expected = expectations.of([*self.datasets[name].checks, *checks])
        except TidemillError as error:
            raise DeclarationError(f"{line}: {error.message}", hint=error.hint) from error
        self.sources[name] = SourceDecl(dataset=name, spec=source, line=line, checks=expected)

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
        cadence: Duration = None,
        debounce: Duration = None,
        max_wait: Duration = None,
        cron: str | None = None,
        zone: str = "UTC",
        catch_up: "CatchUpWord | None" = None,
        most_failures: int = 0,
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
            cadence: consecutive runs start at least so far apart: seconds, or a duration like `PT5M`.
            debounce: it runs when nothing has come for so long, but no later than after `max_wait`.
            max_wait: the longest that a lot waits for a debounce.
            cron: it runs at these times alone (`0 6 * * *`), for all that has come by then.
            zone: the time zone of `cron`.
            catch_up: what is made up for, of times at which nobody ran and of what came while it was paused:
                `all`, `latest` or `none`. Left out, one run for the missed times, and all that came.
            most_failures: after so many failed runs in a row it is not run any more, until somebody says
                `retry`; 0 for never. A lot that fails is no failed run: the arc goes on with the next.
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
        by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        if isinstance(writes, Mapping):
            sinks = tuple(SinkDecl(name=one, partition_by=by, schema=ddl) for one, ddl in writes.items())
        else:
            names = (writes,) if isinstance(writes, str) else tuple(writes)
            if schema is not None and len(names) != 1:
                raise DeclarationError(
                    f"{line}: one schema for {len(names)} tables", hint="writes={name: schema}"
                )
            sinks = tuple(SinkDecl(name=one, partition_by=by, schema=schema) for one in names)
        if drift not in ("freeze", "evolve"):
            raise DeclarationError(f"{line}: drift={drift!r}", hint="what an arc makes can freeze or evolve")
        sinks = tuple(replace(sink, drift=Drift(drift)) for sink in self._checked(sinks, checks, line))
        if not sinks or not tables:
            raise DeclarationError(f"{line}: an arc reads a table and writes one")
        if retries < 0 or parts < 1 or max_concurrent < 1:
            raise DeclarationError(f"{line}: retries is 0 or more, parts and max_concurrent 1 or more")

        try:
            pace = pace_of(
                cadence,
                debounce,
                max_wait,
                cron=cron,
                zone=zone,
                catch_up=catch_up,
                most_failures=most_failures,
            )
            waits = grace_of(grace, after_grace, len(tables))
        except DeclarationError as error:
            raise DeclarationError(f"{line}: {error.message}", hint=error.hint) from None

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
        from tidemill.pipeline import fanout

        if any(fanout.is_pattern(name) and name not in self.datasets for name in decl.reads):
            fanout.check(self, decl)
            self.templates[decl.name] = decl
            return
        for sink in decl.sinks:
            self._new_table(sink.name, decl.line)
        self.arcs[decl.name] = decl

    @staticmethod
    def _checked(
        sinks: tuple[SinkDecl, ...], checks: Sequence[Check] | Mapping[str, Sequence[Check]], line: Line
    ) -> tuple[SinkDecl, ...]:
        """The tables of an arc, each with what is expected of it."""
        if not isinstance(checks, Mapping):
            if checks and len(sinks) > 1:
                raise DeclarationError(
                    f"{line}: one list of checks for {len(sinks)} tables", hint="checks={name: […]}"
                )
            checks = {sink.name: checks for sink in sinks}
        strange = [name for name in checks if name not in {sink.name for sink in sinks}]
        if strange:
            raise DeclarationError(
                f"{line}: checks of {strange[0]}, which this arc does not write",
                hint=f"it writes {', '.join(sink.name for sink in sinks)}",
            )
        try:
            return tuple(replace(sink, checks=expectations.of(checks.get(sink.name, ()))) for sink in sinks)
        except TidemillError as error:
            raise DeclarationError(f"{line}: {error.message}", hint=error.hint) from error

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
        cadence: Duration = None,
        debounce: Duration = None,
        max_wait: Duration = None,
        cron: str | None = None,
        zone: str = "UTC",
        catch_up: "CatchUpWord | None" = None,
        most_failures: int = 0,
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
            cadence: consecutive steps of its group start at least so far apart: seconds, or a duration like
                `PT5M`. A group has the shortest of each that its views declare.
            debounce: a step starts when nothing has come for so long, but no later than after `max_wait`.
            max_wait: the longest that something waits for a debounce.
            cron: its group steps at these times alone (`0 6 * * *`), over all that has come by then.
            zone: the time zone of `cron`.
            catch_up: as for arcs.
            most_failures: after so many failed steps in a row the group is not run any more, until somebody
                says `retry`; 0 for never.
        """
        line = here()
        try:
            pace = pace_of(
                cadence,
                debounce,
                max_wait,
                cron=cron,
                zone=zone,
                catch_up=catch_up,
                most_failures=most_failures,
            )
        except DeclarationError as error:
            raise DeclarationError(f"{line}: {error.message}", hint=error.hint) from None
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
        return View(self, name)

    def _new_table(self, name: str, line: object) -> None:
        for what, before in self.declared_at(name):
            raise DeclarationError(
                f"{line}: there is {what} {name} already, see {before}",
                hint="each table has a name of its own",
            )

    def declared_at(self, name: str) -> Iterable[tuple[str, object]]:
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

    # --- using

    def all_arcs(self) -> dict[str, ArcDecl]:
        """The arcs by name, with those of templates: for tables declared here, and for those in the store.

        That is asked only where there is a template.
        """
        if not self.templates:
            return self.arcs
        from tidemill.pipeline import fanout

        return {**self.arcs, **fanout.children_of(self, fanout.stored(self))}

    @property
    def names(self) -> list[str]:
        """All tables, in the order of their declarations."""
        arcs = [sink.name for arc in self.all_arcs().values() for sink in arc.sinks]
        return [*self.datasets, *arcs, *self.views]

    @property
    def quarantines(self) -> dict[str, Line]:
        """The tables for what does not fit, or was taken out by checks, and where what they belong to is
        declared. They are there though nobody declares them.
        """
        found = {name: one.line for name, one in self.sources.items() if not isinstance(one.spec, PushSpec)}
        found |= {name: one.line for name, one in self.datasets.items() if expectations.drops(one.expected)}
        for arc in self.all_arcs().values():
            found |= {sink.name: arc.line for sink in arc.sinks if expectations.drops(sink.checks)}
        return {quarantine_of(DatasetId(name)).name: line for name, line in found.items()}

    def __getitem__(self, name: str) -> Table:
        """A table by its name: `shop["revenue"]`."""
        if name in self.views:
            return View(self, name)
        if name in self.datasets:
            return Dataset(self, name)
        if name in self.names or name in self.quarantines:
            return Table(self, name)
        from difflib import get_close_matches

        near = get_close_matches(name, self.names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.names) or 'none'}"
        raise DeclarationError(f"the pipeline {self.name} has no table {name!r}", hint=hint)

    def retired(self) -> "dict[str, RetiredView]":
        """Views that were declared once and are not any more, by name: their tables can still be read."""
        from tidemill.pipeline import retired

        return retired.listed(self)

    @property
    def site(self) -> Site:
        """The store, the objects and Spark, opened when first asked for."""
        with self._lock:
            if self._site is None:
                self._site = Site(
                    self._place(), self._spark, app=self.name, clock=self._clock, chance=self._chance
                )
            return self._site

    def use_spark(self, spark: "SparkSession | SparkSettings | str") -> None:
        """Use another Spark than was declared, from the next time on that it is opened."""
        self.close()
        self._spark = spark

    def plan(self) -> "Plan":
        """What running would set up, and whether everything fits together."""
        from tidemill.pipeline.plan import make_plan

        return make_plan(self)

    def run(
        self, *, watch: bool = False, emit: Emit = ignore, stop: threading.Event | None = None
    ) -> "Report":
        """Catch up: everything that has arrived is taken through arcs and views. `watch` stays for more."""
        from tidemill.pipeline.running import run

        return run(self, watch=watch, emit=emit, stop=stop)

    def gaps(self, *tables: str, first: "Bound" = None, last: "Bound" = None) -> "GapReport":
        """Which lots should be there and are not, of these tables or of all; true when none is missing.

        Each gap says what became of it (absent, running, partial, missing, dead), and where that began: the
        table furthest upstream that has not the lot. Read from the store alone, without Spark.

        >>> shop.gaps("revenue").gaps  # doctest: +SKIP
        []

        Args:
            tables: by name; of a view those of the tables it is made from.
            first: look at lots from here on: a lot, a day or a moment.
            last: look at lots up to here, included.
        """
        from tidemill.pipeline.gaps import gaps_of

        return gaps_of(self, tables, first=first, last=last)

    def backfill(
        self,
        table: Readable,
        lots: Iterable[str] | None = None,
        *,
        first: "Bound" = None,
        last: "Bound" = None,
        at_once: int | None = None,
        dry_run: bool = False,
    ) -> "OrderPlan":
        """Ask for lots that are not there, though what they are made from is; the next run makes them.

        Where an input is not there either, the arcs further up are asked for it. What is there is left alone.

        Args:
            table: one that an arc makes, or the arc.
            lots: these; or else all from `first` to `last`.
            first: a lot, a day or a moment; from the first lot on if left out.
            last: the same, and included.
            at_once: how many may run at a time; as many as the arc allows if left out.
            dry_run: only say what would be done.
        """
        return self._order("backfill", table, lots, first, last, at_once, dry_run)

    def replay(
        self,
        table: Readable,
        lots: Iterable[str] | None = None,
        *,
        first: "Bound" = None,
        last: "Bound" = None,
        at_once: int | None = None,
        dry_run: bool = False,
    ) -> "OrderPlan":
        """Ask for lots to be made once more, say because the arc's code was wrong; the next run does it.

        Each becomes the next generation of its lot: readers have the one before until then, and what was made
        from it follows. Arguments as for `backfill`.
        """
        return self._order("replay", table, lots, first, last, at_once, dry_run)

    def _order(
        self,
        kind: str,
        table: Readable,
        lots: Iterable[str] | None,
        first: "Bound",
        last: "Bound",
        at_once: int | None,
        dry_run: bool,
    ) -> "OrderPlan":
        from tidemill.arcs.asks import AskKind
        from tidemill.pipeline import orders

        name = self._name_of(table)
        plan = orders.plan(self, AskKind(kind), name, lots, first=first, last=last, at_once=at_once)
        return plan if dry_run else orders.ask(self, plan)

    def retry(self, table: Readable | None = None, lots: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Ask for another try at lots that are partial or missing; which ones, as (arc, lot).

        Only parts that failed are run again, unless the arc's code has changed. An arc that failed too often
        is armed again.

        Args:
            table: of this one, or of the arc that is called so; of all arcs if left out.
            lots: only these.
        """
        from tidemill.pipeline import orders

        return orders.retry(self, None if table is None else self._name_of(table), lots)

    def pause(self, *names: str) -> list[str]:
        """Run these arcs or view groups no more. Nothing is lost: what is published meanwhile waits for them.

        Args:
            names: of arcs, tables that arcs make, views, or groups of views.
        """
        from tidemill.pipeline import switches

        return switches.pause(self, names)

    def resume(self, *names: str, catch_up: "CatchUpWord | None" = None) -> list[str]:
        """Run these arcs or view groups again.

        Args:
            names: as for `pause`.
            catch_up: what of that which was published meanwhile is processed: `all`, of each source the
                `latest`, or `none`; what is left out counts as seen, and can be backfilled.
        """
        from tidemill.pipeline import switches

        return switches.resume(self, names, catch_up)

    def snapshot(self) -> "Mapping[str, DataFrame]":
        """All tables as they are at one moment, by name."""
        from tidemill.pipeline.reading import snapshot

        return snapshot(self)

    def close(self) -> None:
        """Close the store; it is opened again when needed. Spark is left running: a process has one, and what
        else is done in it may stand on it.
        """
        with self._lock:
            site, self._site = self._site, None
        if site is not None:
            site.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        counts = {
            "dataset": len(self.datasets),
            "source": len(self.sources),
            "arc": len(self.arcs),
            "template": len(self.templates),
            "view": len(self.views),
        }
        shown = ", ".join(f"{n} {what}{'s' if n > 1 else ''}" for what, n in counts.items() if n)
        return f"<Pipeline {self.name}: {shown or 'empty'}>"
