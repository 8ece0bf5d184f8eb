"""Work: from an attempt that is ours to the rows that publish it. Arcs and sources share it.

Intents first, then the parts through the port, each with its manifests as soon as it ends, then what the lot
is. Nothing here decides who may do it: every step that counts is a transaction under the attempt's `Hold`,
before this (`opening`) and after it (`Door.publish`); what a zombie does here is beside the point.
"""

from collections.abc import Sequence

import msgspec

from tidemill.clock import Clock
from tidemill.errors import LeaseLost
from tidemill.events import Emit, ignore
from tidemill.lots import datasets
from tidemill.lots.checks import RESERVED
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.objects.port import Objects
from tidemill.publish.attempts import Hold
from tidemill.publish.events import ChecksFailed, PartEnded
from tidemill.publish.keys import PublishKeys
from tidemill.publish.manifests import Manifests, PartMade
from tidemill.publish.parts import PartDone, PartFailed, Parts, PartTask
from tidemill.store import Store


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt's parts ended; `rows` are to be published if none failed."""

    parts: tuple[PartMade, ...]
    failed: tuple[PartFailed, ...] = ()
    rows: tuple[LotRow, ...] = ()


class Work:
    """Makes the data and the manifests of attempts."""

    def __init__(
        self,
        store: Store,
        keys: PublishKeys,
        objects: Objects,
        parts: Parts,
        clock: Clock,
        *,
        emit: Emit = ignore,
    ) -> None:
        self.manifests = Manifests(objects, clock)
        self._store = store
        self._keys = keys
        self._parts = parts
        self._emit = emit

    def make(self, hold: Hold, tasks: Sequence[PartTask], *, adopted: bool = False) -> Made:
        """Have every part made that is not yet.

        - tasks: one for each listed part, in that order, made by `tasks_of`.
        - adopted: earlier holders may have made some. `AttemptDamaged` when what they left does not verify:
          the attempt is to be abandoned then.
        """
        fingerprints = self._schemas(hold)
        found = self.manifests.found(hold, [task.part for task in tasks]) if adopted else {}
        self.manifests.intend(hold)
        failed = []
        left = {task.part: task for task in tasks if task.part not in found}
        for end in self._parts.run(list(left.values())) if left else ():
            if left.pop(end.task.part, None) is None:
                continue  # told twice
            if isinstance(end, PartDone):
                made = self.manifests.part_made(hold, end, alone=len(tasks) == 1, fingerprints=fingerprints)
                found[made.part] = made
            else:
                self.manifests.part_failed(hold, end)
                failed.append(end)
            self._emit(_told(hold, end))
            if isinstance(end, PartDone):
                _tell_checks(self._emit, hold, end)
        if left:  # the port was ended from outside: nobody knows how these end
            raise LeaseLost(f"{len(left)} parts of attempt {hold.draft.id} were given up")
        parts = tuple(found[task.part] for task in tasks if task.part in found)
        if failed:
            return Made(parts=parts, failed=tuple(failed))
        return Made(parts=parts, rows=tuple(self.manifests.finish(hold, parts, fingerprints)))

    def _schemas(self, hold: Hold) -> dict[DatasetId, str]:
        wanted = {target.dataset for target in hold.draft.targets}
        return self._store.run(
            lambda tx: {one: datasets.read(tx, self._keys.lots, one).fingerprint for one in wanted}
        )


def tasks_of(hold: Hold, tasks: Sequence[PartTask]) -> list[PartTask]:
    """The tasks as parts of this attempt.

    Their keys name the attempt too: a part of an abandoned attempt is never reused, since its objects may be
    deleted at any moment; one of an adopted attempt is, because that is the same attempt.
    """
    return [
        msgspec.structs.replace(task, attempt=hold.draft.id, key=f"{hold.draft.id}/{task.key}")
        for task in tasks
    ]


def _tell_checks(emit: Emit, hold: Hold, done: PartDone) -> None:
    for one in done.written:
        failed = {name: count for name, count in one.checks.items() if count and name not in RESERVED}
        if failed:
            emit(
                ChecksFailed(
                    attempt=hold.draft.id,
                    author=hold.draft.author,
                    dataset=str(one.dataset),
                    lot=hold.draft.lot,
                    part=done.task.part,
                    checks=failed,
                )
            )


def _told(hold: Hold, end: PartDone | PartFailed) -> PartEnded:
    draft = hold.draft
    if isinstance(end, PartFailed):
        return PartEnded(
            attempt=draft.id,
            author=draft.author,
            lot=draft.lot,
            part=end.task.part,
            error=f"{end.kind}: {end.message}"[:500],
        )
    return PartEnded(
        attempt=draft.id,
        author=draft.author,
        lot=draft.lot,
        part=end.task.part,
        rows=sum(one.rows for one in end.written),
        objects=sum(len(one.objects) for one in end.written),
        reused=end.reused,
    )
