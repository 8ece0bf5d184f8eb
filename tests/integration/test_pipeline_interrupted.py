"""Somebody presses Ctrl-C while a pipeline runs: it ends soon, and leaves nothing that is claimed."""

import _thread
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidemill as tm
from tidemill.clock import SYSTEM, poll
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.events import Event
from tidemill.futures.protocol import edges
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import Claimed
from tidemill.pipeline.run import join_cluster, run_as_node
from tidemill.runner import runner
from tidemill.store import Tx
from tidemill.testing.threads import STUCK_S
from tidemill.triggers import subscriptions
from tidemill.triggers.events import RunFailed
from tidemill.triggers.subscriptions import Scheduled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for interrupted jobs as long as it takes.

    A runner gives up after a few seconds. Then its lease ends first, and its run stays in the store.
    """
    monkeypatch.setattr(runner, "INTERRUPT_ROUNDS", int(STUCK_S))


def interrupt() -> None:
    """As Ctrl-C does, once: from a thread of the runner; the plan, in the main one, goes on."""
    if threading.current_thread() is not threading.main_thread():
        _thread.interrupt_main()


def left_of(shop: tm.Pipeline) -> list[str]:
    """What a run left that others would have to wait for."""
    site = shop.context
    keys, cluster = FutureKeys(site.place.cluster), ClusterKeys(site.place.cluster)

    def read(tx: Tx) -> list[str]:
        left = [node.id for node in nodes.read_all(tx, cluster) if node.kind == "runner"]
        for row in tx.range(*keys.future.all()):
            future_id = keys.future.unpack(row.key)[0]
            assert isinstance(future_id, bytes)
            future = edges.read(tx, keys, future_id)
            if isinstance(future, Claimed) or (future is not None and future.tally.reaps):
                left.append(f"future {future_id.hex()}")
        for row in tx.range(*site.keys.triggers.subscription.all()):
            subscription = subscriptions.decode(row.value)
            if isinstance(subscription, Scheduled) and subscription.run is not None:
                left.append(str(site.keys.triggers.subscription.unpack(row.key)))
        return left

    return site.store.run(read)


@pytest.mark.parametrize("where", ["arc", "view"])
def test_a_stopped_run_ends_after_its_grace_period_and_is_not_caught_up(
    spark: "SparkSession", tmp_path: Path, where: str
) -> None:
    stop, events = threading.Event(), list[Event]()

    def work(of: str, df: "DataFrame") -> "DataFrame":
        if not stop.is_set() and of == where and threading.current_thread() is not threading.main_thread():
            stop.set()
            spark.range(10**13).selectExpr("sum(id % 7)").collect()  # for hours, until it is interrupted
        return df.where("id > 0")

    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        orders = shop.dataset("orders", "id BIGINT")

        @shop.arc(reads=orders, writes="clean", schema="id BIGINT")
        def clean(df: "DataFrame") -> "DataFrame":
            return work("arc", df)

        shop.view("seen", lambda df: work("view", df), reads="clean", full=True)
        orders.append([(0,), (1,), (2,)])
        with join_cluster(shop) as presence:
            report = run_as_node(shop, presence, emit=events.append, stop=stop, left_s=lambda: 0.0)
        assert report.interrupted
        assert not report.ok
        assert not report.failures
        assert not [event for event in events if isinstance(event, RunFailed)]
        assert left_of(shop) == []
        assert shop.run().ok
        assert sorted(row.id for row in shop["seen"].df().collect()) == [1, 2]


def threads() -> set[str]:
    return {
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("run-", "future-", "claim-", "projections"))
    }


@pytest.mark.parametrize("where", ["arc", "view"])
def test_an_interrupted_run_ends_soon_leaves_nothing_claimed_and_can_be_repeated(
    spark: "SparkSession", tmp_path: Path, where: str
) -> None:
    slow, awaited = True, list[str]()

    def work(of: str, df: "DataFrame") -> "DataFrame":
        if slow and of == where and threading.current_thread() is not threading.main_thread():
            interrupt()
            spark.range(10**13).selectExpr("sum(id % 7)").collect()  # for hours, until it is interrupted
            awaited.append(of)
        return df.where("id > 0")

    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        orders = shop.dataset("orders", "id BIGINT")

        @shop.arc(reads=orders, writes="clean", schema="id BIGINT")
        def clean(df: "DataFrame") -> "DataFrame":
            return work("arc", df)

        shop.view("seen", lambda df: work("view", df), reads="clean", full=True)
        orders.append([(0,), (1,), (2,)])
        before = threads()
        with pytest.raises(KeyboardInterrupt):
            shop.run()
        assert poll(lambda: threads() <= before, SYSTEM, every_s=0.05, timeout_s=STUCK_S), threads()
        assert awaited == [], "no thread waited for the end of the job"
        assert left_of(shop) == []
        slow = False
        assert shop.run().ok
        assert sorted(row.id for row in shop["seen"].df().collect()) == [1, 2]
