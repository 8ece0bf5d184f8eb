"""Publishers, schedulers, runners and closers at once, on every backend: nothing lost, nothing doubled."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.unit.attempt_publisher import AttemptPublisher
from tests.unit.lots_stage import Stage, new_lot
from tidemill.cluster.nodes import Node
from tidemill.errors import IntervalConflict, LotConflict
from tidemill.lots import staging
from tidemill.lots.ids import LotId, Unit
from tidemill.lots.producers import Identity
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.intervals import IntervalCloser
from tidemill.publish.keys import PublishKeys
from tidemill.publish.transaction import Ending
from tidemill.store import Store, open_store
from tidemill.store.memory import MemoryStore
from tidemill.testing.threads import together
from tidemill.triggers import runs, wakes
from tidemill.triggers.subscriptions import Waiting

KEYS = PublishKeys("c")
EACH = 10
LONG_US = 10**12


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with MemoryStore() if url == "memory" else open_store(url) as store:
        yield store


@pytest.mark.rule("HEAP-2")
@pytest.mark.rule("LOT-5")
def test_everything_that_is_appended_is_processed_once_and_no_wake_up_is_lost(store: Store) -> None:
    stage = Stage(store, scan=False)
    source, sink = stage.dataset("source"), stage.dataset("sink")
    stage.subscribe("arc", source)
    stage.subscribe("reader", sink, source)
    numbers = count(1)

    def producer(name: str) -> int:
        publisher = AttemptPublisher(stage.scope(stage.node(name, LONG_US)))
        for seq in range(EACH):
            append = Identity(name, seq, "d")
            hold = publisher.begin_append(source, f"{name}-{seq}", append)
            assert isinstance(hold, Hold)
            publisher.commit_append(hold, new_lot(source, hold.draft.lot, attempt=hold.draft.id), append)
        return EACH

    def run_once(publisher: AttemptPublisher, node: Node) -> int:
        """What is due, if nobody is faster; how many lots it made."""
        made = 0
        for due in stage.due():
            ticket = store.run(
                lambda tx, due=due: runs.start(
                    tx, KEYS.triggers, KEYS.lots, KEYS.cluster, node, due.name, due.epoch
                )
            )
            if ticket is None:
                continue
            if ticket.name == "reader":
                store.run(
                    lambda tx, ticket=ticket: runs.finish(
                        tx, KEYS.triggers, KEYS.lots, KEYS.cluster, ticket, ticket.heads
                    )
                )
                continue
            events = stage.events(source, ticket.progress[source], 3)
            for event in events:
                last = event is events[-1]
                lot = f"A{event.position:017}"
                hold = publisher.open(
                    Draft(id=f"t{next(numbers)}", author="arc", lot=lot, targets=(Target(sink, lot),))
                )
                ending = Ending(ticket, {source: event.position}) if last else None
                publisher.publish(hold, [new_lot(sink, lot, attempt=hold.draft.id)], ending=ending)
                made += 1
        return made

    def runner(name: str) -> int:
        node = stage.node(name, LONG_US)
        publisher = AttemptPublisher(stage.scope(node))
        made = 0
        for _ in range(15):
            store.run(lambda tx: wakes.page_wakes(tx, KEYS.triggers, KEYS.lots, 1))
            made += run_once(publisher, node)
        return made

    together(lambda: producer("p1"), lambda: producer("p2"), lambda: runner("r1"), lambda: runner("r2"))
    last = stage.node("last", LONG_US)
    while stage.page() or stage.due():
        run_once(AttemptPublisher(stage.scope(last)), last)
    stage.check()
    assert len(stage.events(source)) == len(stage.events(sink)) == 2 * EACH
    for name, progress in (("arc", (2 * EACH,)), ("reader", (2 * EACH, 2 * EACH))):
        row = stage.row(name)
        assert isinstance(row, Waiting)
        assert row.tally.progress == progress


@pytest.mark.rule("LOT-42")
def test_appends_that_race_with_two_closers_land_in_exactly_one_lot(postgres_url: str) -> None:
    """On intervals of a second, by the server's own time: until two of them are closed."""
    with open_store(postgres_url) as store:
        stage = Stage(store, scan=False)
        orders = stage.dataset(unit=Unit(1))
        stage.run(staging.begin, stage.lots, orders)
        closed: dict[str, list[str]] = {}
        numbers = count(1)

        def producer(name: str) -> list[tuple[str, str]]:
            publisher = AttemptPublisher(stage.scope(stage.node(name, LONG_US)))
            mine = []
            while len(closed) < 2:
                hold = publisher.begin_append(orders, f"{name}-{next(numbers)}", None)
                row = new_lot(orders, hold.draft.lot, attempt=hold.draft.id, manifest=hold.draft.id)
                mine.append((row.manifest, publisher.commit_append(hold, row, None).lot))
            return mine

        def closer(name: str) -> list[tuple[str, str]]:
            closer = IntervalCloser(stage.scope(stage.node(name, LONG_US)))
            while len(closed) < 2:
                for dataset, lot in store.run(lambda tx: staging.due(tx, KEYS.lots)):
                    try:
                        hold = closer.seal(dataset, lot, f"{name}-{next(numbers)}")
                        held = read_all(store, lot)
                        closer.commit(hold, new_lot(orders, str(lot), attempt=hold.draft.id))
                    except (IntervalConflict, LotConflict):
                        continue  # the other one was faster
                    assert str(lot) not in closed
                    closed[str(lot)] = held
            return []

        def read_all(store: Store, lot: LotId) -> list[str]:
            held: list[str] = []
            after = None
            while page := store.run(
                lambda tx, after=after: staging.page(tx, KEYS.lots, orders, lot, after, 50)
            ):
                held += [row.append.uri for row in page]
                after = page[-1].key
            return held

        made = together(
            lambda: producer("p1"), lambda: producer("p2"), lambda: closer("c1"), lambda: closer("c2")
        )
        promised = {uri: lot for mine in made for uri, lot in mine}
        landed = [(uri, lot) for lot, uris in closed.items() for uri in uris]
        assert len(landed) == len(dict(landed))
        assert dict(landed) == {uri: lot for uri, lot in promised.items() if lot in closed}
        assert landed
        stage.check()
