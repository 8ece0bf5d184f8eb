"""The one transaction: an attempt becomes the lot, of all its sinks, and everybody learns of it (LOT-20).

In it, all or nothing: the attempt is published, the room above makes its own transition, every sink's lot row
names its manifest, every sink has its event at its next position, every dataset's subscribers will be woken,
and the subscription that ran is finished. Its size depends on the number of sinks alone: not on files (they
are in manifests), nor on appends (in a manifest too), nor on subscribers (one mark per dataset, HEAP-20).

Groups of views and a pipeline's step log have steps instead of lots. `publish_step` is the same transaction
for them: such a source has a head like a dataset, its newest step, and subscribers (DBSP-39).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from tidemill.errors import UsageError
from tidemill.lots import events, lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.publish import attempts
from tidemill.publish.attempts import Hold, Published, Target
from tidemill.publish.keys import PublishKeys
from tidemill.store import Tx
from tidemill.triggers import runs, wakes
from tidemill.triggers.runs import Ticket

Positions: TypeAlias = Mapping[Target, int]
Move: TypeAlias = Callable[[Tx, Positions], None]


class Ending(msgspec.Struct, frozen=True):
    """The run that this publication is the last of, and how far it has come."""

    ticket: Ticket
    target: dict[DatasetId, int]


def publish(
    tx: Tx,
    keys: PublishKeys,
    hold: Hold,
    rows: Sequence[LotRow],
    *,
    move: Move | None = None,
    ending: Ending | None = None,
) -> Published:
    """Make an attempt the lot.

    - rows: one for each target of the attempt, with its final manifest, which is written already; an
      optional target may be left out.
    - move: the transition of the room above: an arc's lot complete, an append's receipt, an interval closed.
    - ending: the running subscription, finished in the same transaction; left out for all lots but the last.
    """
    by_place = {(row.dataset, row.lot, row.generation): row for row in rows}
    required = {target.place for target in hold.draft.targets if not target.optional}
    targets = [target for target in hold.draft.targets if target.place in by_place]
    if len(by_place) != len(rows) or len(targets) != len(rows) or not required <= set(by_place):
        raise UsageError(
            f"attempt {hold.draft.id} was opened for other lots",
            hint="all sinks of an attempt are published together",
        )
    if any(row.attempt != hold.draft.id for row in rows):
        raise UsageError("a lot of another attempt", hint="a manifest belongs to the attempt that wrote it")
    attempts.check(tx, keys, hold)
    if ending is not None:
        runs.check(tx, keys.triggers, keys.cluster, ending.ticket)
    # Heads are locked in one order by all publishers, so that they do not wait for each other in a circle.
    positions = {target: lots.add(tx, keys.lots, by_place[target.place]) for target in sorted(targets)}
    published = attempts.end_published(
        tx,
        keys,
        hold,
        [positions.get(target, 0) for target in hold.draft.targets],
        [by_place[target.place].manifest if target in positions else "" for target in hold.draft.targets],
    )
    for dataset in sorted({target.dataset for target in targets}):
        wakes.wake(tx, keys.triggers, dataset)
    if move is not None:
        move(tx, positions)
    if ending is not None:
        runs.finish(tx, keys.triggers, keys.lots, keys.cluster, ending.ticket, ending.target)
    return published


def publish_step(
    tx: Tx,
    keys: PublishKeys,
    hold: Hold | None,
    source: DatasetId,
    position: int,
    *,
    manifests: Sequence[str] = (),
    move: Callable[[Tx], None],
    ending: Ending | None = None,
) -> None:
    """Make an attempt the step of a group.

    - hold: of the attempt that wrote the step's objects; None for a step that has none.
    - manifests: for each target of the attempt the file that lists its objects, or an empty name.
    - move: the caller's transition: the group moves to this step.
    - ending: the running subscription, finished in the same transaction.
    """
    if hold is not None:
        attempts.check(tx, keys, hold)
        attempts.end_published(tx, keys, hold, [position] * len(hold.draft.targets), manifests)
    move(tx)
    advance(tx, keys, source, position)
    if ending is not None:
        runs.finish(tx, keys.triggers, keys.lots, keys.cluster, ending.ticket, ending.target)


def advance(tx: Tx, keys: PublishKeys, source: DatasetId, position: int) -> None:
    """Move the head of a source that has no lots, and wake its subscribers."""
    events.advance(tx, keys.lots, source, position)
    wakes.wake(tx, keys.triggers, source)
