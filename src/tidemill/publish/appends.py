"""Appends: the rows of a producer, through the same one transaction as any publication.

An append has its own attempt: `begin`, objects and manifest, `commit`. In a dataset without intervals the
append is a lot then. In a dataset with intervals it is staged: durable, and visible when its interval closes
(`tidemill.publish.intervals`).
"""

from tidemill.cluster.nodes import Node
from tidemill.lots import datasets, lots, producers, staging
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.producers import Identity, Receipt
from tidemill.lots.staging import Staged
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.keys import PublishKeys
from tidemill.publish.transaction import publish
from tidemill.store import Tx
from tidemill.triggers import wakes


def begin(
    tx: Tx,
    keys: PublishKeys,
    node: Node,
    dataset: DatasetId,
    attempt: str,
    append: Identity | None,
    quarantine: DatasetId | None = None,
) -> Hold | Receipt:
    """Open the attempt of an append, or return the receipt if the same append was published before.

    The append is the dataset's next lot, or part of the open interval; a later interval may be open when it
    is committed.

    - quarantine: the dataset for rows that checks remove. Its lot has the same id; for an append that waits
      for its interval it is the quarantine's next lot, because removed rows do not wait.
    """
    known = None if append is None else producers.find(tx, keys.lots, dataset, append)
    if known is not None:
        return known
    if datasets.read(tx, keys.lots, dataset).unit is None:
        lot = str(lots.next_append(tx, keys.lots, dataset))
    else:
        lot = staging.begin(tx, keys.lots, dataset).lot
    targets = [Target(dataset, lot)]
    if quarantine is not None:
        waits = datasets.read(tx, keys.lots, dataset).unit is not None
        beside = str(lots.next_append(tx, keys.lots, quarantine)) if waits else lot
        targets.append(Target(quarantine, beside, optional=True))
    draft = Draft(
        id=attempt,
        author=f"append {dataset}",
        lot=lot,
        targets=tuple(targets),
        code="" if append is None else append.digest,
    )
    return attempts.begin(tx, keys, node, draft)


def commit(
    tx: Tx, keys: PublishKeys, hold: Hold, row: LotRow, append: Identity | None, *out: LotRow
) -> Receipt:
    """Publish or stage an append, and store its receipt.

    When two tries of one append race, the second is abandoned and gets the receipt of the first.

    - out: the quarantine's lot, if checks removed rows; it is published at once.
    """
    known = None if append is None else producers.find(tx, keys.lots, row.dataset, append)
    if known is not None:
        attempts.abandon(tx, keys, hold, "the same append was published by another try")
        return known
    if datasets.read(tx, keys.lots, row.dataset).unit is not None:
        return _stage(tx, keys, hold, row, append, *out)

    position = publish(tx, keys, hold, [row, *out]).positions[0]
    receipt = Receipt(dataset=row.dataset, lot=row.lot, position=position, visible_at=tx.wall())
    if append is not None:
        producers.record(tx, keys.lots, append, receipt)
    return receipt


def _stage(
    tx: Tx, keys: PublishKeys, hold: Hold, row: LotRow, append: Identity | None, *out: LotRow
) -> Receipt:
    attempts.check(tx, keys, hold)
    beside = {one.dataset: (lots.add(tx, keys.lots, one), one.manifest) for one in out}
    for dataset in beside:
        wakes.wake(tx, keys.triggers, dataset)
    ends = [beside.get(target.dataset, (0, "")) for target in hold.draft.targets[1:]]
    attempts.end_published(
        tx, keys, hold, [0, *(end[0] for end in ends)], [row.manifest, *(end[1] for end in ends)]
    )
    staged = Staged(
        uri=row.manifest,
        digest="" if append is None else append.digest,
        rows=row.rows,
        size=row.size,
        producer="" if append is None else append.producer,
        seq=None if append is None else append.seq,
    )
    return staging.stage(tx, keys.lots, row.dataset, staged)
