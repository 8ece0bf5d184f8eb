"""The door: every durable step of a publication, each one transaction between two crash points.

Rooms above call these instead of the store, so that the list of crash points is the list of durable steps.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tidemill import crash
from tidemill.cluster.nodes import Node
from tidemill.lots import lots, staging
from tidemill.lots.ids import LotId
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot
from tidemill.lots.producers import Identity, Receipt
from tidemill.publish import appends, attempts, compactions, corrections
from tidemill.publish.attempts import PARTS_PAGE, Abandoned, Draft, Hold, Open, Published
from tidemill.publish.keys import PublishKeys
from tidemill.publish.transaction import Ending, Move, publish
from tidemill.store import Store, Tx

T = TypeVar("T")


class Door:
    """A node's way to publish."""

    def __init__(self, store: Store, keys: PublishKeys, node: Node) -> None:
        self._store = store
        self._keys = keys
        self._node = node

    def _step(self, name: str, fn: Callable[[Tx], T]) -> T:
        crash.point(f"publish.{name}.before")
        answer = self._store.run(fn)
        crash.point(f"publish.{name}.after")
        return answer

    def open(self, draft: Draft) -> Hold:
        """Enter an attempt."""
        return self._step("open", lambda tx: attempts.begin(tx, self._keys, self._node, draft))

    def list_parts(self, hold: Hold, names: Sequence[str]) -> None:
        """Store the list of parts, in pages."""
        for first in range(0, max(1, len(names)), PARTS_PAGE):
            page = names[first : first + PARTS_PAGE]
            last = first + len(page) == len(names)
            self._step(
                "parts",
                lambda tx, first=first, page=page, last=last: attempts.list_parts(  # type: ignore[misc]
                    tx, self._keys, hold, first, page, last=last
                ),
            )

    def adopt(self, seen: Open, inputs: Sequence[InputLot], code: str) -> Hold | None:
        """Go on with an attempt that was left open."""
        return self._step("adopt", lambda tx: attempts.adopt(tx, self._keys, self._node, seen, inputs, code))

    def abandon(self, hold: Hold, why: str) -> Abandoned:
        """Give up an attempt of ours."""
        return self._step("abandon", lambda tx: attempts.abandon(tx, self._keys, hold, why))

    def abandon_lost(self, attempt: str, grace_us: int) -> Abandoned | None:
        """Give up an attempt whose node is gone."""
        return self._step("abandon", lambda tx: attempts.abandon_lost(tx, self._keys, attempt, grace_us))

    def forget(self, attempt: str) -> None:
        """Drop an abandoned attempt whose data is gone."""
        while self._step("forget", lambda tx: attempts.forget(tx, self._keys, attempt)):
            pass

    def publish(
        self, hold: Hold, rows: Sequence[LotRow], *, move: Move | None = None, ending: Ending | None = None
    ) -> Published:
        """Make an attempt the lot: the one transaction."""
        return self._step("commit", lambda tx: publish(tx, self._keys, hold, rows, move=move, ending=ending))

    def begin_correction(self, dataset: DatasetId, lot: str, attempt: str, *, remove: bool = False) -> Hold:
        """Open the attempt at the next generation of a lot."""
        return self._step(
            "correct-open",
            lambda tx: corrections.begin(tx, self._keys, self._node, dataset, lot, attempt, remove=remove),
        )

    def begin_append(
        self, dataset: DatasetId, attempt: str, append: Identity | None, quarantine: DatasetId | None = None
    ) -> Hold | Receipt:
        """Open an append, or find its receipt."""
        return self._step(
            "append-open",
            lambda tx: appends.begin(tx, self._keys, self._node, dataset, attempt, append, quarantine),
        )

    def commit_append(self, hold: Hold, row: LotRow, append: Identity | None, *out: LotRow) -> Receipt:
        """Publish an append, or have it wait for its interval; what checks took out is published."""
        return self._step("append-commit", lambda tx: appends.commit(tx, self._keys, hold, row, append, *out))

    def begin_closing(self, dataset: DatasetId, lot: LotId, attempt: str) -> Hold:
        """Seal an interval and open the attempt at its lot."""
        return self._step(
            "seal", lambda tx: appends.begin_closing(tx, self._keys, self._node, dataset, lot, attempt)
        )

    def commit_closing(self, hold: Hold, row: LotRow) -> int:
        """Publish the lot of a sealed interval."""
        return self._step("close", lambda tx: appends.commit_closing(tx, self._keys, hold, row))

    def begin_compaction(self, seen: LotRow, inputs: Sequence[InputLot], attempt: str) -> Hold | None:
        """Open the attempt at another layout of a lot."""
        return self._step(
            "compact-open",
            lambda tx: compactions.begin(tx, self._keys, self._node, seen, inputs, attempt),
        )

    def digest_lot(self, seen: LotRow, digest: str) -> LotRow:
        """Write down what a lot holds."""
        return self._step("compact-digest", lambda tx: lots.digested(tx, self._keys.lots, seen, digest))

    def commit_compaction(self, hold: Hold, seen: LotRow, layout: LotRow) -> LotRow:
        """Swap a lot's layout."""
        return self._step("compact-commit", lambda tx: compactions.commit(tx, self._keys, hold, seen, layout))

    def sweep_staging(self) -> None:
        """Remove the staging rows of closed intervals."""
        while self._step("sweep", lambda tx: staging.sweep(tx, self._keys.lots)):
            pass
