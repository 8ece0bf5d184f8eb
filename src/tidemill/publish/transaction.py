"""The publication transaction: it publishes an attempt as a lot in each of its sinks (LOT-20).

The transaction does all of the following or nothing. It ends the attempt and applies the caller's own state
transition. For every sink, it points the lot row to the new manifest and adds an event at the next position.
It announces the new data to subscribers, and ends the run of the subscription. The size of the transaction
depends only on the number of sinks: files and appends are listed in manifests, and one row per dataset
announces the data to all subscribers (HEAP-20).

Groups of views and a pipeline's step log have steps instead of lots. `publish_step` is the same transaction
for them: a group or a step log has subscribers, and its head is its newest step (DBSP-39).
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
    """The run that ends with this publication, and the progress it has made."""

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
    """Publish the lots of an attempt.

    - rows: one for each target of the attempt. Their manifests are already stored. An optional target may be
      left out.
    - move: the caller's own transition, such as completing an arc's lot or closing an interval.
    - ending: finishes the running subscription; passed only with the last lot of a run.
    """
    by_place = {(row.dataset, row.lot, row.generation): row for row in rows}
    required = {target.place for target in hold.draft.targets if not target.optional}
    targets = [target for target in hold.draft.targets if target.place in by_place]
    if len(by_place) != len(rows) or len(targets) != len(rows) or not required <= set(by_place):
        raise UsageError(
            f"these are not the lots of attempt {hold.draft.id}",
            hint="publish exactly the lots that the attempt was opened for, in one call",
        )
    if any(row.attempt != hold.draft.id for row in rows):
        raise UsageError(
            f"attempt {hold.draft.id} cannot publish a manifest of another attempt",
            hint="publish the rows that this attempt wrote",
        )
    attempts.check(tx, keys, hold)
    if ending is not None:
        runs.check(tx, keys.triggers, keys.cluster, ending.ticket)
    # All publishers lock heads in the same order, which prevents deadlocks.
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
    """Publish a step of a group.

    - hold: our right to continue the attempt that wrote the step's objects; None for a step without objects.
    - manifests: for each target of the attempt, the file that lists its objects, or an empty name.
    - move: the caller's transition, which moves the group to this step.
    - ending: finishes the running subscription.
    """
    if hold is not None:
        attempts.check(tx, keys, hold)
        attempts.end_published(tx, keys, hold, [position] * len(hold.draft.targets), manifests)
    move(tx)
    advance(tx, keys, source, position)
    if ending is not None:
        runs.finish(tx, keys.triggers, keys.lots, keys.cluster, ending.ticket, ending.target)


def advance(tx: Tx, keys: PublishKeys, source: DatasetId, position: int) -> None:
    """Move the head of an input that has no lots, and wake its subscribers."""
    events.advance(tx, keys.lots, source, position)
    wakes.wake(tx, keys.triggers, source)
