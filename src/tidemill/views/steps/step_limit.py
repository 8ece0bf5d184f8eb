"""How much input one step of a pipeline takes at most, as its declaration says.

A large backlog then becomes several steps. Each of them needs less memory and disk, and is committed, so a
crash repeats only the last one. The input of a step is cut between lots: a step has at least one lot, however
large the lot is.
"""

from collections.abc import Sequence

import msgspec

from tidemill.lots import events, lots
from tidemill.lots.keys import DatasetId
from tidemill.store import Tx
from tidemill.views.steps.keys import StepKeys

MOST_EVENTS = 1000
"""How many lots a record has at most, if there is a limit: its transaction reads a row of each."""


class StepLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The most rows and bytes of input in a step; 0 for no limit."""

    rows: int = 0
    size: int = 0


_decoder = msgspec.msgpack.Decoder(StepLimit)


def read(tx: Tx, keys: StepKeys, pipeline: str) -> StepLimit | None:
    """Return the limit of a pipeline's steps; None if there is none."""
    raw = tx.get(keys.limit[pipeline])
    return None if raw is None else _decoder.decode(raw)


def write(tx: Tx, keys: StepKeys, pipeline: str, limit: StepLimit | None) -> None:
    """Set the limit of later records, unless it is unchanged."""
    if read(tx, keys, pipeline) == limit:
        return
    if limit is None:
        tx.clear(keys.limit[pipeline], quiet=True)
    else:
        tx.set(keys.limit[pipeline], msgspec.msgpack.encode(limit), quiet=True)


class InputBudget:
    """How much input the record that is being written can still take."""

    def __init__(self, limit: StepLimit) -> None:
        self._limit = limit
        self._rows = self._size = self._lots = 0

    def cut(self, tx: Tx, keys: StepKeys, dataset: DatasetId, after: int, head: int) -> int:
        """Return the last position of a dataset that fits; `after` if nothing does.

        A lot counts with the rows of its current generation.
        """
        if self._lots >= MOST_EVENTS:
            return after
        page = events.read(tx, keys.lots, dataset, after, MOST_EVENTS - self._lots)
        page = [event for event in page if event.position <= head]
        to = after
        for event, row in zip(page, _rows(tx, keys, dataset, page), strict=True):
            rows, size = (0, 0) if row is None else (row.rows, row.size)
            if self._lots and self._exceeds(rows, size):
                return to
            self._rows, self._size, self._lots = self._rows + rows, self._size + size, self._lots + 1
            to = event.position
        return to if self._lots >= MOST_EVENTS else head

    def _exceeds(self, rows: int, size: int) -> bool:
        limit = self._limit
        return bool(
            (limit.rows and self._rows + rows > limit.rows) or (limit.size and self._size + size > limit.size)
        )


def _rows(
    tx: Tx, keys: StepKeys, dataset: DatasetId, page: Sequence[events.LotEvent]
) -> list[lots.LotRow | None]:
    return lots.current_of(tx, keys.lots, dataset, [event.lot for event in page])
