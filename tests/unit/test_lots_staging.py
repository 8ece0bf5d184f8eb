"""Intervals: an append is durable at once and in exactly one lot, and intervals close in order."""

import random
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.lots_stage import FIVE_MINUTES, Stage
from tidemill.errors import BadDataset, IllegalTransition, IntervalConflict, ProducerConflict
from tidemill.lots import staging
from tidemill.lots.ids import LotId
from tidemill.lots.keys import DatasetId
from tidemill.lots.staging import Staged
from tidemill.lots.states import INTERVAL, IntervalEdge, IntervalState, step
from tidemill.store import open_store
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock
from tidemill.testing.threads import together

FIVE_S = 300


def put(stage: Stage, dataset: DatasetId, uri: str, **fields) -> staging.Receipt:
    return stage.run(staging.stage, stage.lots, dataset, Staged(uri=uri, digest=uri, **fields))


def close_one(stage: Stage, dataset: DatasetId, lot: LotId, page: int = 500) -> list[str]:
    """What a closer does without the publication; the uris the lot holds."""
    stage.run(staging.seal, stage.lots, dataset, lot)
    uris: list[str] = []
    after = None
    while True:
        rows = stage.run(staging.page, stage.lots, dataset, lot, after, page)
        uris += [row.append.uri for row in rows]
        if len(rows) < page:
            break
        after = rows[-1].key
    stage.run(staging.close, stage.lots, dataset, lot)
    return uris


def close_due(stage: Stage) -> list[tuple[str, list[str]]]:
    closed = []
    while due := stage.run(staging.due, stage.lots):
        for dataset, lot in due:
            closed.append((str(lot), close_one(stage, dataset, lot)))
    return closed


def test_the_table_of_intervals_has_two_edges():
    allowed = {(state, edge) for state, edges in INTERVAL.items() for edge in edges}
    assert allowed == {
        (IntervalState.OPEN, IntervalEdge.SEAL),
        (IntervalState.SEALED, IntervalEdge.CLOSE),
    }
    for state in IntervalState:
        for edge in IntervalEdge:
            if (state, edge) not in allowed:
                with pytest.raises(IllegalTransition):
                    step(state, edge)


@pytest.mark.rule("LOT-42")
def test_the_receipt_says_when_the_append_becomes_visible():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    receipt = put(stage, orders, "a")
    lot = LotId.parse(receipt.lot)
    wall = int(stage.clock.wall() * 1e6)
    assert receipt.position is None
    assert receipt.visible_at == staging.wall_us(lot.end)
    assert staging.wall_us(lot.start) <= wall < receipt.visible_at
    assert stage.run(staging.due, stage.lots) == []
    stage.clock.advance((receipt.visible_at - wall) / 1e6)
    assert stage.run(staging.due, stage.lots) == [(orders, lot)]


@pytest.mark.rule("LOT-42")
def test_missed_intervals_close_in_order_the_empty_ones_too():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    first = LotId.parse(put(stage, orders, "a").lot)
    stage.clock.advance(3 * FIVE_S)
    late = LotId.parse(put(stage, orders, "b").lot)  # nobody closed the intervals between: it waits its turn
    assert late == first.next().next().next()
    with pytest.raises(IntervalConflict, match="the current interval of"):
        stage.run(staging.seal, stage.lots, orders, first.next())
    assert close_due(stage) == [(str(first), ["a"]), (str(first.next()), []), (str(first.next().next()), [])]
    with pytest.raises(IntervalConflict, match="has not ended"):
        stage.run(staging.seal, stage.lots, orders, late)
    stage.clock.advance(FIVE_S)
    assert close_due(stage) == [(str(late), ["b"])]


@pytest.mark.rule("LOT-42")
def test_an_append_to_a_sealed_interval_lands_in_the_next_one_even_if_the_clock_is_set_back():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    first = LotId.parse(put(stage, orders, "a").lot)
    stage.clock.advance(FIVE_S)
    stage.run(staging.seal, stage.lots, orders, first)
    stage.clock.wall_s -= 2 * FIVE_S
    assert put(stage, orders, "b").lot == str(first.next())
    assert close_one(stage, orders, first) == ["a"]
    assert put(stage, orders, "c").lot == str(first.next())


def test_sealing_can_be_repeated_and_an_open_interval_is_neither_read_nor_closed():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    lot = LotId.parse(put(stage, orders, "a").lot)
    stage.clock.advance(FIVE_S)
    with pytest.raises(IntervalConflict, match="still accepts appends"):
        stage.run(staging.page, stage.lots, orders, lot)
    with pytest.raises(IllegalTransition):
        stage.run(staging.close, stage.lots, orders, lot)
    stage.run(staging.seal, stage.lots, orders, lot)
    stage.run(staging.seal, stage.lots, orders, lot)
    assert stage.writes == 0
    close_one(stage, orders, lot)
    with pytest.raises(IntervalConflict):
        stage.run(staging.close, stage.lots, orders, lot)  # of two closers one publishes


def test_a_dataset_without_intervals_stages_nothing():
    stage = Stage()
    with pytest.raises(BadDataset):
        put(stage, stage.dataset(), "a")


def test_a_repeated_append_is_staged_once_also_after_its_interval_closed():
    stage = Stage()
    orders = stage.dataset(unit=FIVE_MINUTES)
    first = put(stage, orders, "a", producer="p", seq=1)
    assert put(stage, orders, "a", producer="p", seq=1) == first
    stage.clock.advance(FIVE_S)
    assert close_due(stage) == [(first.lot, ["a"])]
    assert put(stage, orders, "a", producer="p", seq=1) == first
    with pytest.raises(ProducerConflict):
        put(stage, orders, "b", producer="p", seq=1)


def test_no_step_of_closing_grows_with_the_appends():
    stage = Stage(scan=False)
    orders = stage.dataset(unit=FIVE_MINUTES)
    count = 1_200
    for n in range(count):
        lot = LotId.parse(put(stage, orders, f"u{n}").lot)
        assert stage.writes <= 3
    stage.clock.advance(FIVE_S)
    assert close_one(stage, orders, lot, page=100) == [f"u{n}" for n in range(count)]
    assert stage.writes == 4
    pages = 0
    while stage.run(staging.sweep, stage.lots):
        assert stage.writes <= 2
        pages += 1
    assert pages == 3
    assert stage.store.run(lambda tx: tx.range(*stage.lots.staged.all())) == []


@pytest.mark.slow
@pytest.mark.rule("LOT-42")
@given(st.lists(st.sampled_from(["append", "append", "tick", "seal", "close", "sweep", "back"]), max_size=40))
@settings(max_examples=60)
def test_every_append_lands_in_exactly_one_lot(steps):
    stage = Stage(scan=False)
    orders = stage.dataset(unit=FIVE_MINUTES)
    stage.run(staging.begin, stage.lots, orders)
    closed: list[tuple[str, list[str]]] = []
    promised: dict[str, str] = {}
    for number, action in enumerate(steps):
        due = stage.run(staging.due, stage.lots)
        if action == "append":
            promised[f"u{number}"] = put(stage, orders, f"u{number}").lot
        elif action == "tick":
            stage.clock.advance(FIVE_S * 0.7)
        elif action == "back":
            stage.clock.wall_s -= FIVE_S
        elif action == "seal" and due:
            stage.run(staging.seal, stage.lots, *due[0])
        elif action == "close" and due:
            closed.append((str(due[0][1]), close_one(stage, *due[0], page=2)))
        elif action == "sweep":
            stage.run(staging.sweep, stage.lots, 1)
    stage.clock.advance(timedelta(days=1).total_seconds() / 4)
    closed += close_due(stage)
    landed = {uri: lot for lot, uris in closed for uri in uris}
    assert landed == promised
    assert sum(len(uris) for _, uris in closed) == len(promised)
    names = [LotId.parse(lot) for lot, _ in closed]
    assert all(after == before.next() for before, after in pairwise(names))


class SkewedClock(FakeClock):
    """The end of an interval, as seen by machines that do not agree whether it is over.

    A draw decides each time: a fixed pattern could repeat with every attempt of the closer, for ever.
    """

    def __init__(self, *, wall_s: float) -> None:
        super().__init__(wall_s=wall_s)
        self.draws = random.Random(3)

    def wall(self) -> float:
        return self.wall_s + (1 if self.draws.random() < 1 / 3 else -1)


@pytest.mark.rule("LOT-42")
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_appends_that_race_with_the_closing_land_in_exactly_one_lot(backend, tmp_path):
    clock = SkewedClock(wall_s=1_700_000_100.0)  # where one interval of five minutes ends
    with (
        MemoryStore(clock=clock)
        if backend == "memory"
        else open_store(f"sqlite:///{tmp_path}/s.db", clock=clock) as store
    ):
        stage = Stage(store, scan=False)
        orders = stage.dataset(unit=FIVE_MINUTES)
        first = LotId.parse(stage.run(staging.begin, stage.lots, orders).lot)

        def producer(number: int) -> list[tuple[str, str]]:
            receipts = []
            for n in range(30):
                append = Staged(uri=f"{number}-{n}", digest="")
                receipt = store.run(lambda tx, append=append: staging.stage(tx, stage.lots, orders, append))
                receipts.append((append.uri, receipt.lot))
            return receipts

        def closer() -> list[tuple[str, str]]:
            while True:
                try:
                    return [(uri, str(first)) for uri in close_one(stage, orders, first, page=7)]
                except IntervalConflict:
                    continue  # this time the clock said that it is not over

        *promised, stored = together(lambda: producer(1), lambda: producer(2), closer)
        promised = [receipt for receipts in promised for receipt in receipts]
        clock.advance(2 * FIVE_S + 10)  # within an interval, where all agree again
        stored += [(uri, lot) for lot, uris in close_due(stage) for uri in uris]
        assert sorted(stored) == sorted(promised)
