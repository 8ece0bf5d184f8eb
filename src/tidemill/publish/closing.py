"""Closing intervals: what was appended while one was open becomes its lot (LOT-42).

Every runner does this, without a leader: of two that close the same interval one publishes. The lot's
manifest is a root over the manifests of the appends, which were written with them, so closing reads and
copies no data and its one transaction is as small for ten thousand appends as for one.
"""

from collections.abc import Callable
from functools import partial

from tidemill.errors import IntervalConflict, LotConflict, ObjectError
from tidemill.events import Emit, ignore
from tidemill.lots import datasets, staging
from tidemill.lots.ids import LotId
from tidemill.lots.keys import DatasetId
from tidemill.lots.staging import Staged
from tidemill.publish.door import Door
from tidemill.publish.events import IntervalClosed
from tidemill.publish.keys import PublishKeys
from tidemill.publish.manifests import Manifests
from tidemill.store import Store

PAGE = 500


class Closer:
    """Closes the intervals that are over."""

    def __init__(
        self,
        store: Store,
        keys: PublishKeys,
        manifests: Manifests,
        new_attempt: Callable[[], str],
        *,
        emit: Emit = ignore,
    ) -> None:
        self._store = store
        self._keys = keys
        self._manifests = manifests
        self._new_attempt = new_attempt
        self._emit = emit

    def close_due(self, door: Door, limit: int = 100) -> int:
        """Close a page of those that are over; how many."""
        due = self._store.run(lambda tx: staging.due(tx, self._keys.lots, limit))
        closed = sum(self.close(door, dataset, lot) for dataset, lot in due)
        if closed:
            door.sweep_staging()
        return closed

    def close(self, door: Door, dataset: DatasetId, lot: LotId) -> bool:
        """Close one; False when somebody else was faster, or it is not in turn."""
        try:
            hold = door.begin_closing(dataset, lot, self._new_attempt())
        except IntervalConflict:
            return False
        try:
            staged = self._staged(dataset, lot)
            declared = self._store.run(lambda tx: datasets.read(tx, self._keys.lots, dataset))
            rows, size = sum(one.rows for one in staged), sum(one.size for one in staged)
            parts = [one.uri for one in staged if one.rows]
            row = self._manifests.gathered(hold, parts, rows, size, declared.fingerprint)
            position = door.commit_closing(hold, row)
        except (IntervalConflict, LotConflict) as error:
            door.abandon(hold, error.message)
            return False
        except ObjectError as error:  # tried again by an attempt of its own: this one must not stay open
            door.abandon(hold, error.message)
            raise
        self._emit(
            IntervalClosed(
                dataset=str(dataset), lot=str(lot), position=position, appends=len(staged), rows=rows
            )
        )
        return True

    def _staged(self, dataset: DatasetId, lot: LotId) -> list[Staged]:
        """What a sealed interval holds."""
        found: list[Staged] = []
        after: bytes | None = None
        while True:
            read = partial(staging.page, keys=self._keys.lots, dataset=dataset, lot=lot, after=after)
            page = self._store.run(partial(read, limit=PAGE))
            found += [one.append for one in page]
            if len(page) < PAGE:
                return found
            after = page[-1].key
