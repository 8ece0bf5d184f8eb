"""Assembly: run the parts of an attempt and write the manifests of its lot. Arcs and file sources use it.

Assembly writes intent manifests, runs the parts through the interface `Parts`, writes a manifest for each
part as soon as it ends, and finally writes the manifest of the lot. If another node has taken over the
attempt, these writes are harmless: `Publisher.publish` checks the attempt's `Hold` and refuses to publish.
"""

from collections.abc import Sequence

import msgspec

from tidemill.errors import LeaseLost
from tidemill.events import Emit
from tidemill.lots import datasets
from tidemill.lots.checks import RESERVED
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.publish.attempts import Hold
from tidemill.publish.events import ChecksFailed, PartEnded
from tidemill.publish.keys import PublishKeys
from tidemill.publish.manifests import Manifests, PartMade
from tidemill.publish.parts import PartDone, PartFailed, Parts, PartTask
from tidemill.scope import Scope


class Assembled(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt's parts ended; `rows` are the rows to publish if no part failed."""

    parts: tuple[PartMade, ...]
    failed: tuple[PartFailed, ...] = ()
    rows: tuple[LotRow, ...] = ()


class Assembler:
    """Makes the data and the manifests of attempts."""

    def __init__(self, scope: Scope, parts: Parts) -> None:
        self.manifests = Manifests(scope.objects, scope.clock)
        self._scope = scope
        self._keys = PublishKeys(scope.cluster)
        self._parts = parts

    def assemble(self, hold: Hold, tasks: Sequence[PartTask], *, adopted: bool = False) -> Assembled:
        """Run the parts that are not completed yet, and write all manifests.

        - tasks: one for each part of the attempt, in the order of its list of parts; from `tasks_of`.
        - adopted: whether earlier holders may have completed some parts. Raises `AttemptDamaged` or
          `ManifestUnreadable` if their results are damaged; the caller then abandons the attempt.
        """
        fingerprints = self._fingerprints(hold)
        completed = self.manifests.finished_parts(hold, [task.part for task in tasks]) if adopted else {}
        self.manifests.write_intents(hold)
        failed = []
        left = {task.part: task for task in tasks if task.part not in completed}
        for end in self._parts.run(list(left.values())) if left else ():
            if left.pop(end.task.part, None) is None:
                continue  # reported twice
            if isinstance(end, PartDone):
                alone = len(tasks) == 1
                part = self.manifests.write_part(
                    hold, end.task.part, end.written, alone=alone, fingerprints=fingerprints
                )
                completed[part.part] = part
            else:
                self.manifests.write_failed_part(hold, end)
                failed.append(end)
            self._scope.emit(_part_event(hold, end))
            if isinstance(end, PartDone):
                _report_checks(self._scope.emit, hold, end)
        if left:  # `Parts` was closed: how these tasks end is unknown
            raise LeaseLost(
                f"this process is stopping while {len(left)} parts of attempt {hold.draft.id} are unfinished;"
                " a later run will finish them"
            )
        parts = tuple(completed[task.part] for task in tasks if task.part in completed)
        if failed:
            return Assembled(parts=parts, failed=tuple(failed))
        return Assembled(parts=parts, rows=tuple(self.manifests.finish(hold, parts, fingerprints)))

    def _fingerprints(self, hold: Hold) -> dict[DatasetId, str]:
        sinks = {target.dataset for target in hold.draft.targets}
        return self._scope.store.run(
            lambda tx: {sink: datasets.read(tx, self._keys.lots, sink).fingerprint for sink in sinks}
        )


def tasks_of(hold: Hold, tasks: Sequence[PartTask]) -> list[PartTask]:
    """Add the id of this attempt to the tasks and to their keys; return the tasks.

    Because of the keys, a part of an abandoned attempt is never reused: its objects may be deleted at any
    moment. A part of an adopted attempt is reused, because the id stays the same.
    """
    return [
        msgspec.structs.replace(task, attempt=hold.draft.id, key=f"{hold.draft.id}/{task.key}")
        for task in tasks
    ]


def _report_checks(emit: Emit, hold: Hold, part: PartDone) -> None:
    for sink in part.written:
        failed = {name: count for name, count in sink.checks.items() if count and name not in RESERVED}
        if failed:
            emit(
                ChecksFailed(
                    attempt=hold.draft.id,
                    author=hold.draft.author,
                    dataset=str(sink.dataset),
                    lot=hold.draft.lot,
                    part=part.task.part,
                    checks=failed,
                )
            )


def _part_event(hold: Hold, end: PartDone | PartFailed) -> PartEnded:
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
        rows=sum(sink.rows for sink in end.written),
        objects=sum(len(sink.objects) for sink in end.written),
        reused=end.reused,
    )
