"""The publisher: the durable steps of a publication. Each step is one transaction between two crash points.

Other packages call the publisher's methods instead of the store, so the crash points `publish.*` cover all
durable steps.

An **append** has its own attempt: begin, write objects and manifest, commit. In a dataset without intervals,
the append is then a lot. In a dataset with intervals, the append is staged: it is durable, and becomes
visible when its interval closes (`tidemill.publish.intervals`).

A **correction** replaces or removes a published lot (LOT-30). It is the lot's next generation. Readers see
the previous generation until the correction is published, and a reader that started with the previous
generation still finds it afterwards. The event of the correction makes all dependents process that lot again.
If two corrections are made at the same time, the second is refused. Each lot of a keyed dataset has one
generation: there, a correction is another upsert (LOT-40).

A **compaction** writes a new layout of a lot's content (LOT-37). It has an attempt, but creates no generation
and no event. The commit compares the lot's row: if the lot was replaced, corrected or compacted since the
compaction began, the compaction is refused. The old layout stays for readers that started with it, until the
cleaner removes it after a grace period.

A **merge** writes a new base lot from the last one and the lots that expired since (LOT-39). It has an
attempt, but no event. The commit compares the row of the base.
"""

from collections.abc import Sequence
from functools import partial

from tidemill.cluster.nodes import Node
from tidemill.errors import CorrectionRefused, LotUnknown
from tidemill.lots import base_lot, datasets, lots, producers, staging
from tidemill.lots.base_lot import BaseLot
from tidemill.lots.datasets import Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot
from tidemill.lots.producers import Identity, Receipt
from tidemill.lots.staging import Staged
from tidemill.lots.states import LotState
from tidemill.publish import attempts
from tidemill.publish.adoption import open_or_adopt
from tidemill.publish.attempts import Abandoned, Draft, Hold, Published, Target
from tidemill.publish.keys import PublishKeys
from tidemill.publish.transaction import Ending, Move, publish
from tidemill.scope import Scope
from tidemill.store import Tx
from tidemill.triggers import wakes


class Publisher:
    """Publishes as one node."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._keys = PublishKeys(scope.cluster)

    # --- attempts

    def abandon(self, hold: Hold, why: str) -> Abandoned:
        """Give up an attempt that this node holds."""
        return self._scope.step("publish.abandon", lambda tx: attempts.abandon(tx, self._keys, hold, why))

    def abandon_lost(self, attempt: str, grace_us: int) -> Abandoned | None:
        """Give up an attempt whose node is gone."""
        return self._scope.step(
            "publish.abandon", lambda tx: attempts.abandon_lost(tx, self._keys, attempt, grace_us)
        )

    def forget(self, attempt: str) -> None:
        """Delete the rows of an ended attempt that the cleaner has visited for the last time."""
        while self._scope.step("publish.forget", lambda tx: attempts.forget(tx, self._keys, attempt)):
            pass

    def publish(
        self, hold: Hold, rows: Sequence[LotRow], *, move: Move | None = None, ending: Ending | None = None
    ) -> Published:
        """Publish the lots of an attempt, in one transaction."""
        return self._scope.step(
            "publish.commit", lambda tx: publish(tx, self._keys, hold, rows, move=move, ending=ending)
        )

    # --- appends

    def begin_append(
        self, dataset: DatasetId, attempt: str, append: Identity | None, quarantine: DatasetId | None = None
    ) -> Hold | Receipt:
        """Open the attempt of an append, or return the receipt if the same append was published before."""
        return self._scope.step(
            "publish.append-open",
            lambda tx: _begin_append(tx, self._keys, self._scope.node, dataset, attempt, append, quarantine),
        )

    def commit_append(
        self, hold: Hold, row: LotRow, append: Identity | None, *quarantined: LotRow
    ) -> Receipt:
        """Publish an append, or stage it for its interval.

        - quarantined: the lot with the rows that checks dropped; it is published at once.
        """
        return self._scope.step(
            "publish.append-commit",
            lambda tx: _commit_append(tx, self._keys, hold, row, append, *quarantined),
        )

    # --- corrections

    def begin_correction(self, dataset: DatasetId, lot: str, attempt: str, *, remove: bool = False) -> Hold:
        """Open the attempt at the next generation of a lot. `remove` means to remove its content."""

        def begin(tx: Tx) -> Hold:
            generation = self._correctable(tx, dataset, lot, remove=remove).generation + 1
            draft = Draft(
                id=attempt,
                author=f"correction {dataset}",
                lot=lot,
                generation=generation,
                targets=(Target(dataset, lot, generation),),
            )
            return attempts.begin(tx, self._keys, self._scope.node, draft)

        return self._scope.step("publish.correct-open", begin)

    def _correctable(self, tx: Tx, dataset: DatasetId, lot: str, *, remove: bool) -> LotRow:
        keys = self._keys.lots
        declared = datasets.read(tx, keys, dataset)
        declared.parse_lot(lot)  # raises BadLotId
        if declared.kind is Kind.KEYED:
            raise CorrectionRefused(
                f"lot {lot} cannot be corrected: {dataset} has a key",
                hint="correct the rows with another upsert",
            )
        current = lots.current(tx, keys, dataset, lot)
        if current is None:
            interval = staging.read(tx, keys, dataset)
            is_open = interval is not None and interval.lot <= lot
            raise LotUnknown(
                f"{dataset} has no lot {lot}",
                hint="its interval is not closed: append the rows instead"
                if is_open
                else "only published lots can be corrected; see `tidemill lots`",
            )
        if remove and current.state is LotState.REMOVED:
            raise CorrectionRefused(f"lot {lot} of {dataset} was already removed", hint="no action is needed")
        return current

    # --- compactions

    def begin_compaction(self, expected: LotRow, inputs: Sequence[InputLot], attempt: str) -> Hold | None:
        """Open the attempt at a new layout of a lot; None if the lot changed, or another node compacts it.

        If a dead node left an unfinished layout, its attempt is abandoned and the layout is written again.

        - inputs: the lots that the content was made from, for the manifest.
        """

        def begin(tx: Tx) -> Hold | None:
            if lots.current(tx, self._keys.lots, expected.dataset, expected.lot) != expected:
                return None
            draft = Draft(
                id=attempt,
                author=f"compaction {expected.dataset}",
                lot=expected.lot,
                generation=expected.generation,
                targets=(Target(expected.dataset, expected.lot, expected.generation),),
                inputs=tuple(inputs),
                code=attempt,
            )
            return self._open(tx, draft)

        return self._scope.step("publish.compact-open", begin)

    def _open(self, tx: Tx, draft: Draft) -> Hold | None:
        """Open an attempt that writes files again; None if another node does it."""
        opened = open_or_adopt(tx, self._keys, self._scope.node, draft, ["all"])
        return None if opened is None else opened.hold

    def digest_lot(self, expected: LotRow, digest: str) -> LotRow:
        """Store the digest of a lot's content in its row."""
        return self._scope.step(
            "publish.compact-digest", lambda tx: lots.set_digest(tx, self._keys.lots, expected, digest)
        )

    def commit_compaction(self, hold: Hold, expected: LotRow, layout: LotRow) -> LotRow:
        """Replace a lot's layout; raise `LotConflict` if the lot has changed."""

        def commit(tx: Tx) -> LotRow:
            attempts.check(tx, self._keys, hold)
            row = lots.revise(tx, self._keys.lots, expected, layout)
            attempts.end_published(tx, self._keys, hold, [expected.position], [layout.manifest])
            return row

        return self._scope.step("publish.compact-commit", commit)

    # --- base lots

    def begin_merge(self, dataset: DatasetId, expected: BaseLot, attempt: str) -> Hold | None:
        """Open the attempt at the next base lot; None if the base changed, or another node merges it."""

        def begin(tx: Tx) -> Hold | None:
            if base_lot.read(tx, self._keys.lots, dataset).generation != expected.generation:
                return None
            generation = expected.generation + 1
            draft = Draft(
                id=attempt,
                author=f"base {dataset}",
                lot=base_lot.LOT,
                generation=generation,
                targets=(Target(dataset, base_lot.LOT, generation),),
                code=attempt,
            )
            return self._open(tx, draft)

        return self._scope.step("publish.merge-open", begin)

    def commit_merge(self, hold: Hold, dataset: DatasetId, expected: BaseLot, merged: BaseLot) -> None:
        """Replace the base lot; raise `LotConflict` if it has changed."""

        def commit(tx: Tx) -> None:
            attempts.check(tx, self._keys, hold)
            base_lot.replace(tx, self._keys.lots, dataset, expected, merged)
            attempts.end_published(tx, self._keys, hold, [merged.position], [merged.manifest])

        self._scope.step("publish.merge-commit", commit)

    def forget_merged(self, dataset: DatasetId) -> None:
        """Retire the files of expired lots that the base lot contains."""
        forget = partial(base_lot.forget_merged, keys=self._keys.lots, dataset=dataset)
        while self._scope.step("publish.merge-forget", forget):
            pass


def _begin_append(
    tx: Tx,
    keys: PublishKeys,
    node: Node,
    dataset: DatasetId,
    attempt: str,
    append: Identity | None,
    quarantine: DatasetId | None = None,
) -> Hold | Receipt:
    """Open the attempt of an append, or return the receipt if the same append was published before.

    The append becomes the dataset's next lot, or a part of the open interval. By the time the append is
    committed, a later interval may be open.

    - quarantine: the dataset for rows that checks drop. Its lot has the same id. If the append waits for its
      interval, the dropped rows become the quarantine's next lot, because they do not wait.
    """
    receipt = None if append is None else producers.find(tx, keys.lots, dataset, append)
    if receipt is not None:
        return receipt
    has_intervals = datasets.read(tx, keys.lots, dataset).unit is not None
    if has_intervals:
        lot = staging.begin(tx, keys.lots, dataset).lot
    else:
        lot = str(lots.next_append(tx, keys.lots, dataset))
    targets = [Target(dataset, lot)]
    if quarantine is not None:
        quarantine_lot = str(lots.next_append(tx, keys.lots, quarantine)) if has_intervals else lot
        targets.append(Target(quarantine, quarantine_lot, optional=True))
    draft = Draft(
        id=attempt,
        author=f"append {dataset}",
        lot=lot,
        targets=tuple(targets),
        code="" if append is None else append.digest,
    )
    return attempts.begin(tx, keys, node, draft)


def _commit_append(
    tx: Tx, keys: PublishKeys, hold: Hold, row: LotRow, append: Identity | None, *quarantined: LotRow
) -> Receipt:
    """Publish or stage an append, and store its receipt.

    If the same append is published twice at the same time, the second is abandoned and gets the first
    receipt.

    - quarantined: the lot of the quarantine table, if checks dropped rows; it is published at once.
    """
    earlier = None if append is None else producers.find(tx, keys.lots, row.dataset, append)
    if earlier is not None:
        attempts.abandon(tx, keys, hold, "the same append was published by another attempt")
        return earlier
    if datasets.read(tx, keys.lots, row.dataset).unit is not None:
        return _stage_append(tx, keys, hold, row, append, *quarantined)

    position = publish(tx, keys, hold, [row, *quarantined]).positions[0]
    receipt = Receipt(dataset=row.dataset, lot=row.lot, position=position, visible_at=tx.wall())
    if append is not None:
        producers.record(tx, keys.lots, append, receipt)
    return receipt


def _stage_append(
    tx: Tx, keys: PublishKeys, hold: Hold, row: LotRow, append: Identity | None, *quarantined: LotRow
) -> Receipt:
    attempts.check(tx, keys, hold)
    published = {lot.dataset: (lots.add(tx, keys.lots, lot), lot.manifest) for lot in quarantined}
    for dataset in published:
        wakes.wake(tx, keys.triggers, dataset)
    ends = [published.get(target.dataset, (0, "")) for target in hold.draft.targets[1:]]
    positions = [0, *(position for position, _ in ends)]
    manifests = [row.manifest, *(manifest for _, manifest in ends)]
    attempts.end_published(tx, keys, hold, positions, manifests)
    staged = Staged(
        uri=row.manifest,
        digest="" if append is None else append.digest,
        rows=row.rows,
        size=row.size,
        producer="" if append is None else append.producer,
        seq=None if append is None else append.seq,
    )
    return staging.stage(tx, keys.lots, row.dataset, staged)
