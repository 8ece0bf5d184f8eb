"""Define `Pipeline`, which users declare and run.

>>> import tidemill as tm
>>> shop = tm.Pipeline("shop", home="shop-home")
>>> orders = shop.dataset("orders", "id BIGINT, cust BIGINT, amount DECIMAL(10,2)")
>>> shop
<Pipeline shop: 1 dataset>

Declaring uses neither the store nor Spark, so a file that declares a pipeline can be imported anywhere. The
store is opened when it is first needed, and Spark when something must be computed.

The file is long because `Pipeline` is one class, and users read the documentation of its methods here.
"""

import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import DeclarationError, SparkDied, SparkUnavailable, SubscriptionUnknown, UsageError
from tidemill.events import Emit, ignore
from tidemill.futures.home import CLUSTER
from tidemill.lots import checks as expectations
from tidemill.lots.checks import quarantine_of
from tidemill.lots.keys import DatasetId
from tidemill.obs.event_log import KEEP_S
from tidemill.obs.hooks import Hooks, hooks_of
from tidemill.obs.lines import counted
from tidemill.paths import expanded
from tidemill.pipeline import graph
from tidemill.pipeline.context import PipelineContext
from tidemill.pipeline.declarations import ArcDecl
from tidemill.pipeline.pace import Duration, seconds
from tidemill.pipeline.registry import Readable, Registry
from tidemill.pipeline.settings import DECLARED, DEFAULT, SPARK, PipelineLocation, Setting, shown
from tidemill.pipeline.source_line import SourceLine
from tidemill.pipeline.tables import Dataset, RetiredDataset, RetiredView, Table, View
from tidemill.spark.sessions import SparkSettings
from tidemill.store import Tx
from tidemill.triggers import subscriptions, templates
from tidemill.triggers.subscriptions import AnyRow
from tidemill.triggers.terms import CatchUp
from tidemill.views.steps.keys import group_id
from tidemill.views.steps.step_limit import StepLimit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.gaps import GapReport
    from tidemill.pipeline.graph import Bound
    from tidemill.pipeline.lot_requests import LotRequestPlan
    from tidemill.pipeline.pace import CatchUpWord
    from tidemill.pipeline.plan.plan import Plan
    from tidemill.pipeline.retention import VacuumReport
    from tidemill.pipeline.run_report import Report


class Pipeline(Registry):
    """Datasets, sources, arcs and views that belong together.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> orders = shop.dataset("orders", "id BIGINT, amount DECIMAL(10,2)")
    >>> large = shop.view("large_orders", "SELECT id FROM orders WHERE amount > 100")
    >>> shop
    <Pipeline shop: 1 dataset, 1 view>

    Args:
        name: the name of the pipeline. The ids of its arcs and views in the store contain this name.
        home: a folder for everything (SQLite and files); created if missing. A relative path is relative to
            the file that declares the pipeline.
        store: the URL of the store, instead of a home; needs `objects` and a cluster key.
        objects: the URL of the object storage, for use with `store`.
        cluster: the name under which everything is kept in the store.
        key_file: the file with the cluster key; a home has its own key file.
        spark: a session, a master (`local[4]`, `spark://…`), a Spark Connect address (`sc://…`), or
            `SparkSettings`; `local[*]` by default.
        on_failure: hooks that get an alert when an arc, a source or a step fails: `tm.webhook(…)`,
            `tm.command([…])`.
        on_stale: hooks that get an alert when a table is older than its `fresh_within`, and when it is not
            any more.
        keep_events: how long the event log keeps events.
        max_step_rows, max_step_bytes: how many rows and compressed bytes of input a step of views takes at
            most. A larger backlog becomes several steps, each of which is committed. A step has at least
            one lot.
        lineage: where to send OpenLineage events: the URL of a server, like `"http://marquez:5000"`, or a
            file that gets one event per line. A relative path is relative to the file that declares the
            pipeline. It needs `tidemill[lineage]`.
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
        on_failure: Hooks = (),
        on_stale: Hooks = (),
        keep_events: Duration = "P14D",
        max_step_rows: int | None = None,
        max_step_bytes: int | None = None,
        lineage: str | os.PathLike[str] = "",
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(name)
        given = {"home": home, "store": store, "objects": objects, "key_file": key_file}
        if home is None and store is None:
            home = f"{name}-home"
        if home is not None:
            home = self.base / expanded(home)
        self._location = PipelineLocation(
            home=None if home is None else str(home),
            store=store,
            objects=objects,
            cluster=cluster,
            key_file=None if key_file is None else os.fspath(key_file),
            origins=dict.fromkeys((name for name, value in given.items() if value is not None), DECLARED),
        )
        self._spark = spark
        self._spark_origin = DEFAULT if spark is None else DECLARED
        self.hooks = {
            "on_failure": hooks_of("on_failure", on_failure),
            "on_stale": hooks_of("on_stale", on_stale),
        }
        self.keep_events_s = seconds("keep_events", keep_events) or KEEP_S
        self.step_limit = _step_limit(max_step_rows, max_step_bytes)
        is_url = isinstance(lineage, str) and "://" in lineage
        self.lineage = str(lineage) if is_url or not lineage else str(self.base / expanded(lineage))
        self.lineage_namespace = f"tidemill.{cluster}"
        self._clock = clock
        self._chance = chance if chance is not None else random.Random()
        self._context: PipelineContext | None = None
        self._lock = threading.RLock()

    def all_arcs(self) -> dict[str, ArcDecl]:
        """Return all arcs by name, including the arcs of templates.

        This reads the store only if the pipeline has templates.
        """
        if not self.templates:
            return self.arcs
        from tidemill.pipeline.plan.templates import children_of, stored_tables

        return {**self.arcs, **children_of(self, stored_tables(self))}

    @property
    def names(self) -> list[str]:
        """The names of all tables, in the order of their declarations."""
        arcs = [sink.name for arc in self.all_arcs().values() for sink in arc.sinks]
        return [*self.datasets, *arcs, *self.views]

    @property
    def quarantines(self) -> dict[str, SourceLine]:
        """The quarantine tables, which contain rows that do not fit the columns or that a check drops.

        They need no declaration; each has the line of the dataset, source or arc that it belongs to.
        """
        lines = {name: decl.line for name, decl in self.sources.items() if decl.source.quarantines}
        lines |= {
            name: decl.line for name, decl in self.datasets.items() if expectations.can_drop(decl.expected)
        }
        for arc in self.all_arcs().values():
            lines |= {sink.name: arc.line for sink in arc.sinks if expectations.can_drop(sink.checks)}
        return {quarantine_of(DatasetId(name)).name: line for name, line in lines.items()}

    def __getitem__(self, name: str) -> Table:
        """Return a table by its name: `shop["revenue"]`."""
        if name in self.views:
            return self._view(name)
        if name in self.datasets:
            return self._dataset(name)
        if name in self.names or name in self.quarantines:
            return Table(self, name)
        from difflib import get_close_matches

        near = get_close_matches(name, self.names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"its tables are: {', '.join(self.names) or '(none)'}"
        raise DeclarationError(f"the pipeline {self.name} has no table {name!r}", hint=hint)

    def _dataset(self, name: str) -> Dataset:
        return Dataset(self, name)

    def _view(self, name: str) -> View:
        return View(self, name)

    def retired(self) -> "dict[str, RetiredView | RetiredDataset]":
        """Return the datasets and views that are no longer declared, by name.

        You can read them until you drop them: `shop.retired()["old"].drop()`. If a dataset is declared with
        another version, the earlier one is `"orders@1"`.
        """
        from tidemill.pipeline.retired import retired_tables

        return retired_tables(self)

    @property
    def context(self) -> PipelineContext:
        """The store, the object storage and Spark, each opened when first used."""
        with self._lock:
            if self._context is None:
                self._context = PipelineContext(
                    self._location.address(),
                    self._spark,
                    app=self.name,
                    clock=self._clock,
                    chance=self._chance,
                )
            return self._context

    def use_spark(self, spark: "SparkSession | SparkSettings | str") -> None:
        """From now on, use this Spark session instead of the declared one."""
        self.close()
        self._spark, self._spark_origin = spark, "--spark"

    def move_to(self, folder: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        """From now on, use a home in this folder, and resolve relative paths there; for tests.

        The declarations stay the same. The declared home or store is not touched.

        Args:
            folder: the folder.
            clock: the source of time from now on; None to keep it.
        """
        self.close()
        self._clock = clock or self._clock
        self.base = expanded(folder).resolve()
        self._location = PipelineLocation(home=str(self.base / f"{self.name}-home"))

    def use_settings(self, values: Mapping[str, str], origin: str, base: Path) -> None:
        """From now on, use these settings instead of the declared ones.

        Args:
            values: such as `home` or `store`; see `tidemill.pipeline.settings`.
            origin: where they were set, for `tidemill config`.
            base: the folder that relative paths are relative to.
        """
        self.close()
        self._location = self._location.overridden(values, origin, base)
        if SPARK in values:
            self._spark, self._spark_origin = values[SPARK], origin

    @property
    def settings(self) -> list[Setting]:
        """The settings that decide where the pipeline runs, without secrets, each with its origin."""
        return shown(self._location, self._spark, self._spark_origin)

    def plan(self) -> "Plan":
        """Check the declarations; return what running the pipeline would change in the store."""
        from tidemill.pipeline.plan.plan import make_plan

        return make_plan(self)

    def run(
        self,
        *,
        watch: bool = False,
        select: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        emit: Emit = ignore,
        stop: threading.Event | None = None,
    ) -> "Report":
        """Process everything that has arrived, in sources, arcs and views.

        Args:
            watch: keep running, and process new data as it arrives.
            select: process only a part of the pipeline, with the selectors of dbt: `"+revenue"`
                (see `tidemill.pipeline.selection`).
            exclude: selectors of what to leave out.
            emit: called with each event.
            stop: set it to end the run.
        """
        from tidemill.pipeline.run import join_cluster, run_as_node
        from tidemill.pipeline.selection import select as selected

        selection = selected(self, select, exclude) if select or exclude else None
        try:
            with join_cluster(self, emit) as presence:
                return run_as_node(self, presence, watch=watch, emit=emit, stop=stop, selection=selection)
        except SparkDied as error:
            raise SparkUnavailable(str(error), hint="restart Python, and run the pipeline again") from error

    def vacuum(self, *, dry_run: bool = False) -> "VacuumReport":
        """Let old lots and changes expire as `keep=` says, and delete files that no reader needs any more.

        Runners do this regularly; call it to see what expires, or to do it now. It is safe while runners and
        readers work.

        >>> import tidemill as tm
        >>> shop = tm.Pipeline("shop", home="shop-home")
        >>> orders = shop.dataset("orders", "id BIGINT", keep="P30D")
        >>> shop.vacuum(dry_run=True).tables
        ()

        Args:
            dry_run: report what would expire and be deleted, and change nothing.
        """
        from tidemill.pipeline.retention import vacuum

        return vacuum(self, dry_run=dry_run)

    def events(self, *, limit: int = 10_000) -> "DataFrame":
        """Return the event log of the cluster as a table, the newest events first.

        The columns are `at`, `severity`, `kind`, `about`, `text`, `lot`, `pipeline`, `node` and `details`
        (JSON). Runners write the log about once a second, and keep events as long as `keep_events` says.

        >>> import tidemill as tm
        >>> shop = tm.Pipeline("shop", home="shop-home", spark=spark)
        >>> shop.events().where("severity = 'error'").count()
        0

        Args:
            limit: how many events to read.
        """
        from tidemill.pipeline.observing import events_of

        return events_of(self, limit)

    def gaps(self, *tables: str, first: "Bound" = None, last: "Bound" = None) -> "GapReport":
        """Return the lots that are expected but not published, in these tables or in all tables.

        Each gap has a state (absent, running, partial, missing, dead) and a cause: the first table upstream
        that lacks the lot. This reads only the store, without Spark.

        >>> import tidemill as tm
        >>> shop = tm.Pipeline("shop", home="shop-home")
        >>> orders = shop.dataset("orders", "id BIGINT")
        >>> shop.gaps("orders").gaps
        []

        Args:
            tables: names of tables; for a view, the tables it reads are checked.
            first: the first lot to check: a lot id, a day or a time.
            last: the last lot to check.
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
        parallel: int | None = None,
        dry_run: bool = False,
    ) -> "LotRequestPlan":
        """Request missing lots; the next run makes them.

        If an input is missing too, it is requested from its arc. Existing lots stay as they are.

        Args:
            table: an arc, or a table that an arc writes.
            lots: the lots; by default all from `first` to `last`.
            first: a lot id, a day or a time; by default the first lot.
            last: a lot id, a day or a time, included; by default the last lot.
            parallel: how many lots run in parallel; by default as many as the arc allows.
            dry_run: return the plan, and change nothing.
        """
        return self._request("backfill", table, lots, first, last, parallel, dry_run)

    def replay(
        self,
        table: Readable,
        lots: Iterable[str] | None = None,
        *,
        first: "Bound" = None,
        last: "Bound" = None,
        parallel: int | None = None,
        dry_run: bool = False,
    ) -> "LotRequestPlan":
        """Request that the next run makes existing lots again, for example after a bug fix.

        This creates the next generation of each lot. Readers see the old generation until the new one is
        published. Tables and views downstream are then updated. The arguments are those of `backfill`.
        """
        return self._request("replay", table, lots, first, last, parallel, dry_run)

    def _request(
        self,
        kind: str,
        table: Readable,
        lots: Iterable[str] | None,
        first: "Bound",
        last: "Bound",
        parallel: int | None,
        dry_run: bool,
    ) -> "LotRequestPlan":
        from tidemill.arcs.lot_requests import RequestKind
        from tidemill.pipeline import lot_requests

        name = self._name_of(table)
        plan = lot_requests.plan(
            self, RequestKind(kind), name, lots, first=first, last=last, parallel=parallel
        )
        return plan if dry_run else lot_requests.submit(self, plan)

    def retry(self, table: Readable | None = None, lots: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Request a retry of lots that are partial or missing; return them as (arc, lot).

        Only the parts that failed run again, unless the code of the arc has changed. An arc that stopped
        after too many failures runs again. The next step computes views again that are set aside.

        Args:
            table: an arc, a table that an arc writes, or a view; by default all of them.
            lots: only these lots.
        """
        from tidemill.pipeline import lot_requests, view_retries

        name = None if table is None else self._name_of(table)
        requested = lot_requests.retry(self, name, lots)
        view_retries.retry(self, name)
        return requested

    def pause(self, *names: str) -> list[str]:
        """Pause arcs or view groups; return their names (LOT-38).

        A lot or step that is running when the pause begins still runs to the end. After an arc is resumed, it
        processes the lots that were published during the pause, unless `catch_up` skips them. Lots that were
        requested during the pause are never skipped. A view never skips lots.

        Args:
            names: names of arcs, tables that arcs write, views, or groups of views.
        """
        keys = self.context.keys.triggers
        return self._change_subscriptions(names, lambda tx, name: subscriptions.pause(tx, keys, name))

    def resume(self, *names: str, catch_up: "CatchUpWord | None" = None) -> list[str]:
        """Resume arcs or view groups.

        Args:
            names: as for `pause`.
            catch_up: which of the lots that were published during the pause an arc processes: `all`, the
                `latest` of each input, or `none`. By default, the declaration of the arc decides. You can
                backfill skipped lots later. A view never skips lots. With `none`, the view does not start a
                step just for these lots; it processes them in its next step, which starts when something else
                changes.
        """
        keys, lots = self.context.keys.triggers, self.context.keys.lots
        policy = None if catch_up is None else CatchUp(catch_up)
        return self._change_subscriptions(
            names, lambda tx, name: subscriptions.resume(tx, keys, lots, name, policy)
        )

    def _change_subscriptions(self, names: Sequence[str], change: Callable[[Tx, str], AnyRow]) -> list[str]:
        """Change the subscriptions of these arcs or groups in one transaction; return their names."""
        labels = {id_: label for name in names for id_, label in self._subscriptions(name).items()}

        def step(tx: Tx) -> None:
            for id_, label in labels.items():
                try:
                    change(tx, id_)
                except SubscriptionUnknown:
                    raise SubscriptionUnknown(
                        f"{label} has not run yet",
                        hint="run the pipeline once first; to keep an arc from ever starting, declare it with"
                        " enabled=False",
                    ) from None

        self.context.store.run(step)
        return list(labels.values())

    def _subscriptions(self, name: str) -> dict[str, str]:
        """Return the subscriptions of an arc, a table, a view, a group or a template, with names to show."""
        if name in self.templates:
            keys, id_ = self.context.keys.triggers, graph.arc_id(self, name)
            children = self.context.store.run(lambda tx: list(templates.children(tx, keys, id_)))
            return {child: child.partition("/")[2] for child in children}
        groups = graph.groups(self)
        if name in groups:
            return {group_id(self.name, groups[name]): name}
        if name in self.datasets:
            raise UsageError(
                f"{name} is a dataset, so it cannot be paused or resumed",
                hint="use the names of the arcs that read it",
            )
        return {graph.arc_id(self, graph.maker(self, name).name): name}

    def snapshot(self) -> "Mapping[str, DataFrame]":
        """Return all tables that are not empty, by name, as of the same step.

        Every view in it is the result of its query over the other tables in it, also if views are computed by
        different runners at different speeds. Data that not all views contain yet is left out, and so are
        views that are set aside.
        """
        from tidemill.pipeline.history import snapshot

        return snapshot(self)

    def close(self) -> None:
        """Close the store; it is opened again when needed. Leave Spark running: other code may use it."""
        with self._lock:
            context, self._context = self._context, None
        if context is not None:
            context.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:  # noqa: SIM105 - when Python exits, `suppress` may be gone
            self.close()
        except Exception:  # noqa: BLE001, S110
            pass

    @property
    def is_open(self) -> bool:
        """Whether this object has opened the store."""
        return self._context is not None

    def _repr_html_(self) -> str:
        from tidemill.pipeline.notebook import pipeline_html

        return pipeline_html(self)

    def __repr__(self) -> str:
        counts = {
            "dataset": len(self.datasets),
            "source": len(self.sources),
            "arc": len(self.arcs),
            "template": len(self.templates),
            "view": len(self.views),
        }
        shown = ", ".join(counted(n, kind) for kind, n in counts.items() if n)
        return f"<Pipeline {self.name}: {shown or 'empty'}>"


def _step_limit(rows: int | None, size: int | None) -> StepLimit | None:
    for name, value in (("max_step_rows", rows), ("max_step_bytes", size)):
        if value is not None and value < 1:
            raise UsageError(f"{name}={value} is not positive", hint=f"omit {name} for no limit")
    return None if rows is None and size is None else StepLimit(rows=rows or 0, size=size or 0)
