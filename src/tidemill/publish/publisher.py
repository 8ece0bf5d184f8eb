"""The publisher: every durable step of a publication, each one transaction between two crash points.

Other packages call these methods instead of the store, so the list of crash points `publish.*` is the list of
durable steps.
"""

from collections.abc import Sequence

from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot
from tidemill.lots.producers import Identity, Receipt
from tidemill.publish import appends, attempts, compactions, corrections
from tidemill.publish.attempts import Abandoned, Hold, Published
from tidemill.publish.keys import PublishKeys
from tidemill.publish.transaction import Ending, Move, publish
from tidemill.scope import Scope


class Publisher:
    """Publishes as one node."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._keys = PublishKeys(scope.cluster)

    # --- attempts

    def abandon(self, hold: Hold, why: str) -> Abandoned:
        """Give up an attempt that we hold."""
        return self._scope.step("publish.abandon", lambda tx: attempts.abandon(tx, self._keys, hold, why))

    def abandon_lost(self, attempt: str, grace_us: int) -> Abandoned | None:
        """Give up an attempt whose node is gone."""
        return self._scope.step(
            "publish.abandon", lambda tx: attempts.abandon_lost(tx, self._keys, attempt, grace_us)
        )

    def forget(self, attempt: str) -> None:
        """Delete the rows of an abandoned attempt whose data is deleted."""
        while self._scope.step("publish.forget", lambda tx: attempts.forget(tx, self._keys, attempt)):
            pass

    def publish(
        self, hold: Hold, rows: Sequence[LotRow], *, move: Move | None = None, ending: Ending | None = None
    ) -> Published:
        """Make an attempt the lot, in the one transaction."""
        return self._scope.step(
            "publish.commit", lambda tx: publish(tx, self._keys, hold, rows, move=move, ending=ending)
        )

    # --- appends and corrections

    def begin_append(
        self, dataset: DatasetId, attempt: str, append: Identity | None, quarantine: DatasetId | None = None
    ) -> Hold | Receipt:
        """Open the attempt of an append, or return the receipt of the same append."""
        return self._scope.step(
            "publish.append-open",
            lambda tx: appends.begin(tx, self._keys, self._scope.node, dataset, attempt, append, quarantine),
        )

    def commit_append(self, hold: Hold, row: LotRow, append: Identity | None, *out: LotRow) -> Receipt:
        """Publish an append, or stage it for its interval; `out` are the lots of rows that checks removed."""
        return self._scope.step(
            "publish.append-commit", lambda tx: appends.commit(tx, self._keys, hold, row, append, *out)
        )

    def begin_correction(self, dataset: DatasetId, lot: str, attempt: str, *, remove: bool = False) -> Hold:
        """Open the attempt at the next generation of a lot."""
        return self._scope.step(
            "publish.correct-open",
            lambda tx: corrections.begin(
                tx, self._keys, self._scope.node, dataset, lot, attempt, remove=remove
            ),
        )

    # --- compactions

    def begin_compaction(self, seen: LotRow, inputs: Sequence[InputLot], attempt: str) -> Hold | None:
        """Open the attempt at another layout of a lot."""
        return self._scope.step(
            "publish.compact-open",
            lambda tx: compactions.begin(tx, self._keys, self._scope.node, seen, inputs, attempt),
        )

    def digest_lot(self, seen: LotRow, digest: str) -> LotRow:
        """Store the digest of a lot's content in its row."""
        return self._scope.step(
            "publish.compact-digest", lambda tx: lots.set_digest(tx, self._keys.lots, seen, digest)
        )

    def commit_compaction(self, hold: Hold, seen: LotRow, layout: LotRow) -> LotRow:
        """Replace a lot's layout."""
        return self._scope.step(
            "publish.compact-commit", lambda tx: compactions.commit(tx, self._keys, hold, seen, layout)
        )
