"""A stage for tests of the page: a store with lots, runs, steps and futures, filled without Spark.

`HOSTILE` is the name of a table, an arc, a view and a future, and the text of an error. It must appear on no
page as it is.
"""

import contextlib
from functools import partial
from typing import Any

import msgspec
from starlette.testclient import TestClient

from tests.unit import futures_stage
from tests.unit.life_stage import LifeStage
from tests.unit.lots_stage import FIVE_MINUTES, SECOND_US
from tests.unit.steps_stage import StepStage, spec
from tidemill.arcs import declarations
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.events import ArcLotBegan, ArcLotPartial
from tidemill.cluster.events import NodeLost
from tidemill.lots import owners
from tidemill.lots.checks import expect, not_null, unique
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.obs import declared_checks, freshness
from tidemill.obs.event_log import EventLog
from tidemill.obs.freshness import Freshness
from tidemill.obs.keys import ObservationKeys
from tidemill.pipeline.descriptions import (
    DescriptionKeys,
    OperatorDescription,
    SourceDescription,
    ViewDescription,
)
from tidemill.publish.parts import PartSink
from tidemill.store import Store
from tidemill.ui.access import AccessPolicy
from tidemill.ui.actions import Actions
from tidemill.ui.app import Site, create_app
from tidemill.ui.model.reader import StoreReader
from tidemill.views.steps import checked_views
from tidemill.views.steps.checked_views import CheckedView
from tidemill.views.steps.events import StepTimed

HOSTILE = "<script>alert('x')</script>&\"'"
TOKEN = "a-random-token-of-24-chr"
URL = "http://127.0.0.1:8642"


class PageStage(LifeStage):
    """A life stage whose declarations are stored as runners store them."""

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store, scan=False)
        self.futures = futures_stage.Stage(self.store, clock=self.clock, scan=False)
        self.steps = StepStage(self.store, scan=False)
        self.steps.clock, self.steps.chance = self.clock, self.chance

    def fill(self) -> "PageStage":
        """Store lots in every state, a run of each kind, steps of a view, and futures."""
        clean, sum_ = self.clean(max_concurrent=9), self.sum()
        self.declare(clean, sum_, self.join(), self.hostile_arc())
        worker = self.worker(self.living("runner-1"))
        lots = [self.append([number, number + 30], [number + 60]) for number in range(8)]
        self.append()
        for lot in lots[:4]:
            worker.work(clean, lot)
        for lot in lots[:2]:
            worker.work(sum_, lot)
        self.parts.failing[4] = 9
        worker.work(clean, lots[4])
        self._leave_running(clean, lots[5])
        for minutes in (0, 1, 2, 4):
            lot = f"20230131PT5M{minutes:03}"
            self.lot_of(self.clicks, lot, 1, 2, 3)
            if minutes < 2:
                self.lot_of(self.rates, lot, 5)
        self.fill_steps()
        self.fill_futures()
        self.fill_events()
        return self

    def declare(self, *specs: ArcSpec) -> None:
        for each in specs:
            self.run(declarations.declare, self.keys, each)
            self.subscribe(each.id, *each.reads)
        for table in self.tables:
            self.run(owners.declare, self.lots, table, "shop")

    def hostile_arc(self) -> ArcSpec:
        table = self.dataset(HOSTILE)
        self.tables.append(table)
        return ArcSpec(
            pipeline="shop",
            name=HOSTILE.replace("/", "|"),
            reads=(self.orders,),
            sinks=(PartSink(dataset=table),),
            code="v1",
        )

    def _leave_running(self, arc: ArcSpec, lot: str) -> None:
        class Died(BaseException):
            pass

        def die(_: object) -> None:
            raise Died

        self.parts.between = die
        with contextlib.suppress(Died):
            self.worker(self.living("runner-2")).work(arc, lot)

    def fill_steps(self) -> None:
        stage = self.steps
        node = stage.node("stepper", 10**13)
        names = ("totals", "totals_failures", HOSTILE)
        stage.declare(*(spec(name, self.orders) for name in names))
        view = ViewDescription(
            code="c",
            where="shop.py:12",
            sql=f"SELECT '{HOSTILE}' AS name FROM orders",
            incremental=True,
            operators=(
                OperatorDescription("a1", "aggregate", "native", "count(*)", "", ("b2",)),
                OperatorDescription("b2", "table", "linear", HOSTILE, "", ()),
            ),
        )
        keys = DescriptionKeys("c")
        source = SourceDescription(origin="landing/*.json")
        self.store.run(lambda tx: tx.set(keys.view["shop", "totals"], msgspec.msgpack.encode(view)))
        self.store.run(lambda tx: tx.set(keys.source["shop", "orders"], msgspec.msgpack.encode(source)))
        for _ in range(3):
            self.append([1])
            stage.settle(node, *names)

    def fill_futures(self) -> None:
        stage = self.futures
        worker = stage.worker("worker-1", ttl_s=10**7)
        done = stage.submit(name="load")
        stage.make(worker, done)
        failed = stage.submit(done, name=HOSTILE, max_retries=0)
        stage.fail(worker, stage.claim_one(worker, failed), message=HOSTILE)
        stage.submit(name="waits")

    def fill_events(self) -> None:
        """Store events, among them a hostile one, the times of a step, a limit and a check."""
        keys = ObservationKeys("c")
        log = EventLog(self.store, keys, pipeline="shop", node="runner-1", clock=self.clock)
        arc, lot = "arc:shop/clean", "A00000000000000005"
        log(ArcLotBegan(arc=arc, lot=lot, generation=0, attempt="1", tries=1, parts=2))
        log(ArcLotPartial(arc=arc, lot=lot, generation=0, failed=["4"], error=HOSTILE))
        log(NodeLost(node="runner-2", epoch=1))
        log(
            StepTimed(
                pipeline="shop",
                group="totals",
                step=3,
                views=("totals",),
                plan_s=0.02,
                job_s=0.31,
                load_s=0.0,
                kernel_s=0.12,
                place="runner",
                operators={"a1": ("GroupBy", 120, 8, 0.05), "b2": ("Distinct", 120, 120, 0.07)},
            )
        )
        log.flush()
        since = self.clock.wall() - 3600
        limits = {
            "cleaned": Freshness(within_s=60, since=since),
            "totals": Freshness(within_s=60, since=since, group="totals"),
        }
        checks = {
            "cleaned": (expect("amount > 0", on_fail="drop"), not_null("id")),
            "totals": (unique("id", name=HOSTILE), expect("n > 0", on_fail="warn")),
        }
        for module, wanted in ((freshness, limits), (declared_checks, checks)):
            declare: Any = module.declare
            self.store.run(partial(declare, keys=keys, pipeline="shop", wanted=wanted))
        counts = CheckedView(
            view="totals", failures="totals_failures", rows={HOSTILE: 1234}, refused=(HOSTILE,)
        )
        step_keys = self.steps.keys
        self.store.run(lambda tx: checked_views.store(tx, step_keys, "shop", "totals", {}, [counts]))

    def quarantine(self, table: DatasetId, lot: str, records: int) -> None:
        """Put records of a lot into quarantine."""
        from tidemill.lots import datasets
        from tidemill.lots.checks import quarantine_of

        id_ = quarantine_of(table)
        self.run(datasets.declare, self.lots, DatasetRow(name=id_.name, schema="error STRING"))
        self.add(id_, lot, rows=records)

    def site(
        self, *, token: str = TOKEN, host: str = "127.0.0.1", load: Any = None, cluster: str = "c"
    ) -> Site:
        reader = StoreReader(self.store, cluster, clock=self.clock, open_objects=lambda: self.objects)
        access = AccessPolicy(host=host, token=token, clock=self.clock, chance=self.chance)
        return Site(reader, Actions(reader, load), access)

    def client(self, *, cookies: dict[str, str] | None = None, **options: Any) -> TestClient:
        app = create_app(self.site(**options))
        return TestClient(app, base_url=URL, follow_redirects=False, cookies=cookies)


__all__ = ["FIVE_MINUTES", "HOSTILE", "SECOND_US", "TOKEN", "URL", "PageStage"]
