"""Appends and intervals: what producers bring, through the same one transaction.

An append is an attempt of its own: `begin`, objects and manifest, `commit`. Into a dataset without intervals
it is a lot then; into an open interval it is staged, durable and not visible yet. The interval is an attempt
when it closes: `begin_closing`, the manifest of what `staging.page` reads, `commit_closing`.
"""

from tidemill.cluster.nodes import Node
from tidemill.lots import datasets, lots, producers, staging
from tidemill.lots.ids import LotId
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.producers import Identity, Receipt
from tidemill.lots.staging import Staged
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.keys import PublishKeys
from tidemill.publish.transaction import Positions, publish
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
    """Open an append as the dataset's next lot, or for the interval in turn, which may be another one when it
    is committed; one that was taken already is answered as the first time.

    - quarantine: where rows go that checks take out. It has a lot of its own there: of the same id, or, for
      an append that waits for its interval, the next one, since what was taken out waits for nothing.
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
    """Publish or stage an append and keep its receipt. Of two tries of one append that race the second is
    abandoned, and answered with the receipt of the first.

    - out: of the quarantine, if rows were taken out; published in any case.
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


def begin_closing(
    tx: Tx, keys: PublishKeys, node: Node, dataset: DatasetId, lot: LotId, attempt: str
) -> Hold:
    """Seal an interval that is over, and open the attempt at its lot."""
    staging.seal(tx, keys.lots, dataset, lot)
    target = Target(dataset, str(lot))
    draft = Draft(id=attempt, author=f"interval {dataset}", lot=str(lot), targets=(target,))
    return attempts.begin(tx, keys, node, draft)


def commit_closing(tx: Tx, keys: PublishKeys, hold: Hold, row: LotRow) -> int:
    """Publish the lot of a sealed interval, which closes it; its position."""

    def move(tx: Tx, _: Positions) -> None:
        staging.close(tx, keys.lots, row.dataset, LotId.parse(row.lot))

    return publish(tx, keys, hold, [row], move=move).positions[0]
