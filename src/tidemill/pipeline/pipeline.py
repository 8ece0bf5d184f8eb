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
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import DeclarationError
from tidemill.events import Emit, ignore
from tidemill.futures.home import CLUSTER, Place
from tidemill.lots import checks as expectations
from tidemill.lots.checks import quarantine_of
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.context import Site
from tidemill.pipeline.declarations import ArcDecl
from tidemill.pipeline.registry import Readable, Register
from tidemill.pipeline.source_line import Line, folder
from tidemill.pipeline.tables import Dataset, Table, View
from tidemill.spark.sessions import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.gaps import GapReport
    from tidemill.pipeline.graph import Bound
    from tidemill.pipeline.lot_requests import LotRequestPlan
    from tidemill.pipeline.pace import CatchUpWord
    from tidemill.pipeline.plan.plan import Plan
    from tidemill.pipeline.retired import RetiredView
    from tidemill.pipeline.run_report import Report


class Pipeline(Register):
    """Datasets, sources, arcs and views that belong together.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> orders = shop.dataset("orders", "id BIGINT, amount DECIMAL(10,2)")
    >>> large = shop.view("large_orders", "SELECT id FROM orders WHERE amount > 100")
    >>> shop
    <Pipeline shop: 1 dataset, 1 view>

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
        super().__init__(name)
        self.base = folder()
        """What relative paths are relative to: the folder of the file that declares the pipeline."""
        if home is None and store is None:
            home = f"{name}-home"
        if home is not None:
            home = self.base / Path(home).expanduser()
        self._place: Callable[[], Place] = lambda: Place.of(
            home=home, store=store, objects=objects, cluster=cluster, key_file=key_file
        )
        self._spark = spark
        self._clock = clock
        self._chance = chance if chance is not None else random.Random()
        self._site: Site | None = None
        self._lock = threading.RLock()

    def all_arcs(self) -> dict[str, ArcDecl]:
        """The arcs by name, with those of templates: for tables declared here, and for those in the store.

        That is asked only where there is a template.
        """
        if not self.templates:
            return self.arcs
        from tidemill.pipeline.plan import templates as fanout

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
        found = {name: decl.line for name, decl in self.sources.items() if decl.source.quarantines}
        found |= {name: one.line for name, one in self.datasets.items() if expectations.drops(one.expected)}
        for arc in self.all_arcs().values():
            found |= {sink.name: arc.line for sink in arc.sinks if expectations.drops(sink.checks)}
        return {quarantine_of(DatasetId(name)).name: line for name, line in found.items()}

    def __getitem__(self, name: str) -> Table:
        """A table by its name: `shop["revenue"]`."""
        if name in self.views:
            return self._view(name)
        if name in self.datasets:
            return self._dataset(name)
        if name in self.names or name in self.quarantines:
            return Table(self, name)
        from difflib import get_close_matches

        near = get_close_matches(name, self.names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.names) or 'none'}"
        raise DeclarationError(f"the pipeline {self.name} has no table {name!r}", hint=hint)

    def _dataset(self, name: str) -> Dataset:
        return Dataset(self, name)

    def _view(self, name: str) -> View:
        return View(self, name)

    def retired(self) -> "dict[str, RetiredView]":
        """Views that were declared once and are not any more, by name: their tables can still be read, until
        they are dropped: `shop.retired()["old"].drop()`.
        """
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
        from tidemill.pipeline.plan.plan import make_plan

        return make_plan(self)

    def run(
        self, *, watch: bool = False, emit: Emit = ignore, stop: threading.Event | None = None
    ) -> "Report":
        """Catch up: everything that has arrived is taken through arcs and views. `watch` stays for more."""
        from tidemill.pipeline.run import run

        return run(self, watch=watch, emit=emit, stop=stop)

    def gaps(self, *tables: str, first: "Bound" = None, last: "Bound" = None) -> "GapReport":
        """Which lots should be there and are not, of these tables or of all; true when none is missing.

        Each gap says what became of it (absent, running, partial, missing, dead), and where that began: the
        table furthest upstream that has not the lot. Read from the store alone, without Spark.

        >>> import tidemill as tm
        >>> shop = tm.Pipeline("shop", home="shop-home")
        >>> orders = shop.dataset("orders", "id BIGINT")
        >>> shop.gaps("orders").gaps
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
    ) -> "LotRequestPlan":
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
    ) -> "LotRequestPlan":
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
    ) -> "LotRequestPlan":
        from tidemill.arcs.asks import AskKind
        from tidemill.pipeline import lot_requests as orders

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
        from tidemill.pipeline import lot_requests as orders

        return orders.retry(self, None if table is None else self._name_of(table), lots)

    def pause(self, *names: str) -> list[str]:
        """Run these arcs or view groups no more. Nothing is lost: what is published meanwhile waits for them.

        Args:
            names: of arcs, tables that arcs make, views, or groups of views.
        """
        from tidemill.pipeline import pauses as switches

        return switches.pause(self, names)

    def resume(self, *names: str, catch_up: "CatchUpWord | None" = None) -> list[str]:
        """Run these arcs or view groups again.

        Args:
            names: as for `pause`.
            catch_up: what of that which was published meanwhile is processed: `all`, of each source the
                `latest`, or `none`; what is left out counts as seen, and can be backfilled.
        """
        from tidemill.pipeline import pauses as switches

        return switches.resume(self, names, catch_up)

    def snapshot(self) -> "Mapping[str, DataFrame]":
        """All tables as they are at one moment, by name."""
        from tidemill.pipeline.reader import snapshot

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
