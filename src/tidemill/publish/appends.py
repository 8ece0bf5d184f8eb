"""Appends: publish the rows of a producer, in the same transaction as any publication.

An append has its own attempt: `begin`, write objects and manifest, `commit`. In a dataset without intervals
the append then is a lot. In a dataset with intervals it is staged: it is durable, and becomes visible when
its interval closes (`tidemill.publish.intervals`).
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

    - quarantine: the dataset for rows that checks drop. Its lot has the same id. If the append waits for its
      interval, it is the quarantine's next lot, because dropped rows do not wait.
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


def commit(
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
        return _stage(tx, keys, hold, row, append, *quarantined)

    position = publish(tx, keys, hold, [row, *quarantined]).positions[0]
    receipt = Receipt(dataset=row.dataset, lot=row.lot, position=position, visible_at=tx.wall())
    if append is not None:
        producers.record(tx, keys.lots, append, receipt)
    return receipt


def _stage(
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
