"""The state of arcs' lots in reports: pages and single reads agree, and need few reads."""

import random

import msgspec
import pytest

from tests.unit.arcs_stage import ArcStage
from tidemill.arcs import lot_status
from tidemill.arcs.rows import AnyLot, CompleteLot, MissingLot, PartialLot, RunningLot
from tidemill.store import Tx

DONE = CompleteLot(attempt="a", inputs=(), at=1, tries=1)
OTHERS = (
    RunningLot(attempt="a", node="n", node_epoch=1, since=1),
    PartialLot(attempt="a", failed=("p",), error="no", at=1, tries=1),
    MissingLot(error="no", at=1, tries=1),
)


def filled(stage: ArcStage, lots: dict[str, list[AnyLot]]) -> str:
    """An arc with these generations of lots, between two arcs that have lots as well."""
    arc = stage.clean().id

    def write(tx: Tx) -> None:
        for name in (arc[:-1], arc, arc + "0"):
            for lot, rows in lots.items():
                for generation, row in enumerate(rows):
                    tx.set(stage.keys.lot[name, lot, generation], msgspec.msgpack.encode(row))

    stage.store.run(write)
    return arc


@pytest.mark.rule("LOT-12")
@pytest.mark.parametrize("seed", range(6))
def test_pages_of_any_size_give_the_state_of_each_lot(seed: int) -> None:
    chance, stage = random.Random(seed), ArcStage()
    lots = {
        f"A{number:03}": [DONE] * chance.choice((0, 0, 1, 4)) + [chance.choice((DONE, *OTHERS))]
        for number in range(20)
    }
    arc = filled(stage, lots)
    each = [stage.run(lot_status.status, stage.keys, arc, lot) for lot in lots]
    for status, rows in zip(each, lots.values(), strict=True):
        replaying = rows[-1] is not DONE and len(rows) > 1
        last = len(rows) - 1 - replaying
        assert (status.generation, status.row, status.replaying) == (last, rows[last], replaying)
    for size in (1, 2, 7, 20, 100):
        statuses: list[lot_status.LotStatus] = []
        while page := stage.run(
            lot_status.listed, stage.keys, arc, statuses[-1].lot if statuses else "", size
        ):
            assert len(page) == min(size, len(lots) - len(statuses))
            statuses += page
        assert statuses == each


def test_the_lots_of_an_arc_are_read_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = ArcStage()
    arc = filled(stage, {f"A{number:03}": [DONE] for number in range(200)})
    plain, limits = Tx.range, list[int]()

    def noted(tx: Tx, *args: bytes, limit: int, **options: bool) -> object:
        limits.append(limit)
        return plain(tx, *args, limit=limit, **options)

    def read(tx: Tx) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(Tx, "range", noted)
            return len(lot_status.listed(tx, stage.keys, arc, "", 150))

    assert stage.store.run(read) == 150
    assert limits == [151, 2]  # the page, and what may be behind it of its last lot
