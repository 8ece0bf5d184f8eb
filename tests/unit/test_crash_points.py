"""No crash point is forgotten: each is in a list of kills, or in a matrix of deaths in process.

The points are read from the source (`tests.crash_points`). A new one fails this test until somebody has it
in the pipeline's list (`tests/acceptance/test_pipeline_kills.py`), where a process is killed at it, or names
here the test in which a life ends there.
"""

import random
import re
from pathlib import Path

import pytest

import tidemill as tm
from tests import shop
from tests.acceptance.test_pipeline_kills import LATER, POINTS
from tests.crash_points import points
from tests.unit.test_triggers_heap import DAY_US, HeapStage
from tidemill import crash
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.lots import events
from tidemill.lots.keys import DatasetId
from tidemill.sources import source_lease
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock
from tidemill.triggers import alarms, attach, schedules, subscriptions
from tidemill.triggers.terms import Terms

ROOT = Path(__file__).parents[2]

IN_PROCESS: dict[str, str] = {
    "tests/unit/test_arcs_crashes.py": "arcs.fail arcs.finish arcs.give-up arcs.miss arcs.pass arcs.renew"
    " arcs.withdraw publish.part-failed publish.removed",
    "tests/unit/test_certify_attempts.py": "certify.begin certify.finish certify.withdraw",
    "tests/unit/test_arcs_grace.py": "arcs.skip arcs.wait",
    "tests/unit/test_publish_transaction.py": "publish.append-commit publish.append-open"
    " publish.close publish.seal publish.sweep",
    "tests/unit/test_life_crashes.py": "publish.correct-open",
    "tests/unit/test_pipeline_life.py": "lot_requests.submit",
    "tests/unit/test_pipeline_dropped.py": "publish.drop-files publish.drop-rows publish.dropped",
    "tests/unit/test_compaction.py": "publish.compact-commit publish.compact-digest publish.compact-open"
    " publish.retire-data publish.retire-manifest publish.retired",
    "tests/unit/test_sources_ingestion.py": "sources.fail sources.leave-out",
    "tests/unit/test_sources_listing_shards.py": "sources.cut-shards sources.finish-shard sources.take-shard",
    "tests/unit/test_sources_push_receiver.py": "sources.receive",
    "tests/integration/life_scenes.py": "sources.checkpoint sources.fetch",
    "tests/integration/test_sources_kafka.py": "sources.take-partition",
    "tests/integration/test_checks_spark.py": "spark.drop",
    "tests/integration/test_pipeline_templates.py": "template.child triggers.template attach.push",
    "tests/conformance/test_heap_machine.py": "attach.row",
    "tests/unit/test_crash_steps.py": "publish.retire-parts sources.ask sources.leave sources.renew"
    " sources.share views.abandon views.rest",
    "tests/unit/test_sources_drift.py": "sources.give-up",
    "tests/unit/test_sources_gone_files.py": "sources.forget sources.forget-windows",
    "tests/unit/test_steps.py": "views.pass",
    "tests/unit/test_steps_collecting.py": "views.collect",
    "tests/unit/test_steps_rounds.py": "views.finish views.pause views.resume views.start views.stop",
    "tests/unit/test_store_copy.py": "store.copy.begun store.copy.ended store.copy.page",
    "tests/unit/test_backups.py": "backup.between backup.object backup.report restore.between",
    "tests/unit/test_retention.py": "retention.expire retention.records retention.steps",
    "tests/unit/test_base_lots.py": "publish.merge-commit publish.merge-forget publish.merge-open"
    " retention.remove-base",
    "tests/unit/test_futures_leftovers.py": "futures.blob futures.result",
    "tests/unit/test_store_foundationdb.py": "store.foundationdb.commit",
    "tests/integration/views_daemon.py": "views.task",
    "tests/unit/test_views_run_files.py": "views.trace.bundle views.trace.version",
    "tests/unit/test_objects_local.py": "objects.local.link",
    "tests/integration/test_views_failed.py": "views.retry",
    "tests/integration/test_views_upgrade.py": "views.shadow-advance views.shadow-begin views.shadow-discard"
    " views.shadow-keep views.shadow-open views.shadow-take-over",
    "tests/integration/test_futures_segments.py": "segments.seal",
    "tests/integration/store_postgres/test_trouble.py": "store.postgres.commit",
    "tests/unit/test_crash_points.py": "sources.lapse spark.write_table triggers.collect triggers.fire"
    " triggers.look triggers.ring",
}
"""Steps that no run of the pipeline of kills needs, and where a life ends before and behind each."""

UNTRIED = {"views.diverge", "views.shadow-pass"}
"""Steps that no test dies at by name. This list may become shorter."""


@pytest.fixture(scope="module")
def existing() -> set[str]:
    return {*points()}


def step_of(point: str) -> str:
    """What a point is before or behind of."""
    return re.sub(r"\.(before|after)_", ".", re.sub(r"\.(before|after|reported)$", "", point))


@pytest.mark.slow
def test_each_point_is_in_the_list_of_kills_or_in_a_matrix(existing: set[str]) -> None:
    visited = {step_of(point) for point in existing}
    killed = {step_of(point) for point in POINTS} | set(LATER)
    listed = {step for steps in IN_PROCESS.values() for step in steps.split()}
    assert visited - killed - listed - UNTRIED == set(), "nobody dies there"
    assert (killed | listed) - visited == set(), "there are no such points any more"
    assert UNTRIED & (killed | listed) == set(), "somebody does, by now"


OF_TESTS = ("publish.adopt.", "publish.open.", "publish.parts.")
"""Points of a publisher that only tests use (`tests/unit/attempt_publisher.py`)."""


@pytest.mark.slow
def test_tests_name_only_points_that_exist(existing: set[str]) -> None:
    """Also the tests that only `make crash` runs."""
    rooms = "|".join({point.partition(".")[0] for point in existing})
    named = re.compile(rf"""["']((?:{rooms})(?:\.[a-z_-]+)*\.(?:before|after)(?:_[a-z]+)?)["':]""")
    gone = [
        f"{file.relative_to(ROOT)}: {point}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for point in named.findall(file.read_text())
        if point not in existing and not point.startswith(OF_TESTS)
    ]
    assert gone == []


@pytest.mark.parametrize("file", IN_PROCESS)
def test_the_matrices_name_their_steps(file: str) -> None:
    text = (ROOT / file).read_text()
    assert "crash" in text
    for step in IN_PROCESS[file].split():
        room, _, word = step.rpartition(".")
        assert re.search(rf"""["'._]{re.escape(word)}\b|\b{re.escape(room)}\.{re.escape(word)}\b""", text), (
            step
        )


# --- steps of one transaction, that have no matrix of their own

SOURCE = DatasetId("orders")


@pytest.mark.rule("LOT-20")
@pytest.mark.parametrize("point", ["spark.write_table", "publish.intent", "publish.append-commit"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_an_append_that_dies_is_a_lot_or_nothing_and_its_repetition_is_the_same_append(
    point: str, side: str, tmp_path: Path
) -> None:
    def declared() -> tuple[tm.Pipeline, tm.Dataset]:
        pipeline = tm.Pipeline("p", home=tmp_path / "home")
        return pipeline, pipeline.dataset("orders", "id BIGINT")

    pipeline, orders = declared()
    with crash.armed(f"{point}.{side}"), pytest.raises(crash.Crashed):
        orders.append([(1,)], producer="till", seq=1)
    pipeline.close()
    pipeline, orders = declared()
    with pipeline:
        position = orders.position
        assert position == (1 if (point, side) == ("publish.append-commit", "after") else 0)
        assert orders.append([(1,)], producer="till", seq=1).position == 1
        shop.clean_up(pipeline)
        assert shop.orphans(pipeline) == []
        assert shop.table(pipeline, "orders") == [(1,)]


def test_a_scheduler_that_dies_after_the_end_of_a_lost_run_has_ended_it_once() -> None:
    stage = HeapStage()
    stage.dataset(SOURCE.name)
    stage.attach("a", SOURCE)
    stage.add(SOURCE, "A00000000000000001")
    stage.tend()
    (due,) = stage.due_query.due().due
    ticket = stage.start(stage.node("gone", 10_000_000), due.name, due.epoch)
    assert ticket is not None
    stage.clock.advance(60)
    with crash.armed("triggers.look.after"), pytest.raises(crash.Crashed):
        stage.tend()
    stage.scheduler = stage.new_scheduler()
    assert stage.work() == ["a"], "it is run once more, and once"
    assert stage.work() == []


@pytest.mark.parametrize("kind", ["ring", "fire", "collect"])
def test_a_scheduler_that_dies_after_a_step_has_done_it_once(kind: str) -> None:
    stage = HeapStage()
    keys = stage.triggers
    if kind == "ring":
        stage.run(alarms.declare, stage.lots, SOURCE)
        stage.run(alarms.set_at, keys, SOURCE, 1)
    elif kind == "fire":
        stage.run(schedules.declare, keys, stage.lots, schedules.Schedule(name="s", expression="*/5 * * * *"))
        stage.clock.advance(310)
    else:
        stage.dataset(SOURCE.name)
        with crash.armed("attach.row.after"), pytest.raises(crash.Crashed):
            attach.attach(stage.store, keys, stage.lots, stage.heap, "a", Terms(sources=(SOURCE,)))
        stage.clock.advance(2 * DAY_US / 1_000_000)
    with crash.armed(f"triggers.{kind}.after"), pytest.raises(crash.Crashed):
        stage.tend()
    stage.scheduler = stage.new_scheduler()
    stage.tend()
    if kind == "collect":
        assert stage.run(subscriptions.read, keys, "a") is None
    else:
        source = SOURCE if kind == "ring" else schedules.source("s")
        assert stage.run(events.head, stage.lots, source) == 1


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_node_that_dies_where_it_ends_the_lease_of_its_last_life_gets_it_the_next_time(
    side: str,
) -> None:
    clock, chance = FakeClock(), random.Random(1)
    store = MemoryStore(clock=clock)
    for _ in range(2):  # lives of one node, each killed while it has the lease or is about to take it
        keeper = Keeper(store, "node", clock=clock, chance=chance)
        if source_lease.acquire(keeper, b"key") is None:
            continue
        with crash.armed(f"sources.lapse.{side}"), pytest.raises(crash.Crashed):
            source_lease.acquire(Keeper(store, "node", clock=clock, chance=chance), b"key")
    assert isinstance(
        source_lease.acquire(Keeper(store, "node", clock=clock, chance=chance), b"key"), HeldLease
    )
    assert source_lease.acquire(Keeper(store, "other", clock=clock, chance=chance), b"key") is None
