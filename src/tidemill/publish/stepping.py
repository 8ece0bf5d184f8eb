"""The one transaction for what has steps instead of lots: a group of views, and a pipeline's step log.

Such a source has a head as a dataset has, its newest step, and subscribers like one; nothing else is written
for it per view (DBSP-39). Attempts, waking and the end of the running subscription are those of any other
publication.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidemill.lots import events
from tidemill.lots.keys import DatasetId
from tidemill.publish import attempts
from tidemill.publish.attempts import Hold
from tidemill.publish.keys import PublishKeys
from tidemill.publish.transaction import Ending
from tidemill.store import Tx
from tidemill.triggers import runs, wakes

StepMove: TypeAlias = Callable[[Tx], None]


def tell(tx: Tx, keys: PublishKeys, source: DatasetId, position: int) -> None:
    """The head of a source that has no lots is here now, and its subscribers will be woken."""
    events.advance(tx, keys.lots, source, position)
    wakes.wake(tx, keys.triggers, source)


def publish_step(
    tx: Tx,
    keys: PublishKeys,
    hold: Hold | None,
    source: DatasetId,
    position: int,
    *,
    manifests: Sequence[str] = (),
    move: StepMove,
    ending: Ending | None = None,
) -> None:
    """Make an attempt the step.

    - hold: of the attempt that wrote the step's objects; None for a step that has none.
    - manifests: for each target of the attempt what lists its objects; an empty name where there are none.
    - move: the transition of the room above: the group goes on to this step, with what it names.
    - ending: the running subscription, finished in the same transaction.
    """
    if hold is not None:
        attempts.check(tx, keys, hold)
        attempts.end_published(tx, keys, hold, [position] * len(hold.draft.targets), manifests)
    move(tx)
    tell(tx, keys, source, position)
    if ending is not None:
        runs.finish(tx, keys.triggers, keys.lots, keys.cluster, ending.ticket, ending.target)
