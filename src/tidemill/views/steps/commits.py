"""Commits: a group goes from one step to a later one, in one transaction, after its objects (DBSP-39).

What a group has to do next is a *batch*: the records behind its step up to the first that concerns it. Those
that do not are passed together, without a job. A batch that concerns it has an attempt; its outputs are named
by the one row that the commit writes. The commit is refused unless the run is ours, the group stands where
the batch begins and is declared as it was when the batch was read: so of two that computed the same step one
commits it, a zombie commits nothing, and a step is never adopted but run again.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from tidemill.cluster.leases import Busy
from tidemill.errors import StepConflict
from tidemill.lots import events
from tidemill.lots.keys import DatasetId
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.transaction import Ending, publish_step
from tidemill.store import Tx
from tidemill.triggers import alarms, runs
from tidemill.triggers.runs import Ticket
from tidemill.views.steps import groups, records
from tidemill.views.steps.groups import GroupSpec, MadeTable, ViewGroup
from tidemill.views.steps.keys import (
    StepKeys,
    alarm_of,
    changes_of,
    group_id,
    group_source,
    quarantine_of,
    state_of,
    state_prefix,
    step_log,
    step_lot,
    table_of,
)
from tidemill.views.steps.records import StepRecord

PAGE = 100
"""Records that are read at once."""

BUSY_US = 250_000
"""How long a run waits that could not write a record, because somebody else is the coordinator."""


class StepBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The records behind `after`, up to `step`.

    - moved: the base datasets of the group that have input in them.
    - before, positions: up to where the group's base datasets belong to steps, at `after` and at `step`; what
      lies between them is the batch's input.
    - stale: views to be made anew in it.
    - version: the version file of the group's state at `after`, or of an earlier step; empty if it has none.
    - now: of the last record.
    - more: there are records behind it.
    """

    pipeline: str
    spec: GroupSpec
    after: int
    step: int
    moved: frozenset[DatasetId]
    positions: dict[DatasetId, int]
    stale: frozenset[str]
    tables: dict[str, str]
    now: int
    more: bool
    before: dict[DatasetId, int] = {}
    version: str = ""

    @property
    def concerns(self) -> bool:
        """Is there anything to compute?"""
        return bool(self.moved or self.stale)

    @property
    def lot(self) -> str:
        """The lot id of its output."""
        return step_lot(self.step)


class StepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a step made of one view.

    - changes: the manifest of its changes; empty when it has none.
    - table: the manifest that lists what makes up its table.
    - digest: of the changes; content: of the table after them, the sum of all digests so far (DBSP-42).
    """

    view: str
    table: str
    changes: str = ""
    rows: int = 0  # of the changes
    size: int = 0
    digest: str = ""
    content: str = ""


class QuarantinedRows(msgspec.Struct, frozen=True, kw_only=True):
    """What a step set aside of its inputs: rows whose weight would be negative, as of this step (DBSP-21).

    They are in no view, and are netted when their insertion arrives.

    - manifest: a root; each part is of one dataset, by its name.
    - rows: how many, by dataset.
    """

    manifest: str
    rows: dict[str, int]


class StepState(msgspec.Struct, frozen=True, kw_only=True):
    """What a step made of the group's state: the version file that lists it now."""

    version: str


class StepAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """When the group has another result by time alone (wall time, µs); None for never (DBSP-22).

    A computation that gives none leaves the alarm as it was.
    """

    at: int | None


StepPart: TypeAlias = StepOutput | QuarantinedRows | StepState | StepAlarm
"""What a computation of a step gives: each of these once at most, outputs once for each view."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One commit: the group went from `after` to `step`. Views that are not named did not change.

    - version: the version file that this step made; empty when it made none.
    """

    step: int
    after: int
    attempt: str = ""
    outputs: tuple[StepOutput, ...] = ()
    aside: QuarantinedRows | None = None
    version: str = ""
    epoch: int  # of the run that committed it, as its fence
    fence: int
    at: int  # store time, µs
    wall_at: int  # wall time, µs since 1970: for people


_row = msgspec.msgpack.Decoder(StepRow)


def next_batch(tx: Tx, keys: StepKeys, pipeline: str, group_name: str, *, most: int = 1) -> StepBatch | None:
    """What a group has to do next; None when it has applied every record.

    - most: how many records that concern it are taken together, if it is that far behind. Its table is the
      same; what changed between them is netted.
    """
    group = groups.read(tx, keys, pipeline, group_name)
    found = records.read(tx, keys, pipeline, group.step, PAGE)
    if not found:
        return None
    bases = frozenset(group.spec.bases)
    stale = group.stale
    moved: set[DatasetId] = set()
    concerning = 0
    step, now = group.step, 0
    for record in found:
        touched = record.moved & bases
        step, now = record.number, record.now
        moved |= touched
        concerning += bool(touched or (stale and record is found[0]))
        if concerning == most:
            break
    return StepBatch(
        pipeline=pipeline,
        spec=group.spec,
        after=group.step,
        step=step,
        moved=frozenset(moved),
        before=records.positions_at(tx, keys, pipeline, group.spec.bases, group.step),
        positions=records.positions_at(tx, keys, pipeline, group.spec.bases, step),
        stale=stale,
        tables=group.tables,
        now=now,
        more=step < records.last(tx, keys, pipeline).number,
        version=group.version,
    )


def next_record(
    tx: Tx, keys: StepKeys, pipeline: str, ticket: Ticket, group_name: str
) -> StepRecord | Busy | None:
    """Write a record for a run, if its group has applied all there are and its datasets moved on.

    First what is there, then what is new: so records are as few and as large as the load allows. `Busy` while
    somebody else is the coordinator.
    """
    runs.check(tx, keys.triggers, keys.cluster, ticket)
    group = groups.read(tx, keys, pipeline, group_name)
    if group.step < records.last(tx, keys, pipeline).number:
        return None
    bases = group.spec.bases
    heads = events.heads(tx, keys.lots, bases) if bases else {}
    if heads == records.assigned(tx, keys, pipeline, bases):
        return None
    return records.write_record_now(tx, keys, pipeline, ticket.node.id)


def open_step(tx: Tx, keys: StepKeys, ticket: Ticket, batch: StepBatch, attempt: str) -> Hold:
    """Enter the attempt at a step before its first object is written; what earlier runs left is given up."""
    _stand(tx, keys, ticket, batch)
    author = group_id(batch.pipeline, batch.spec.name)
    attempts.supersede(tx, keys, author, batch.lot)
    draft = Draft(
        id=attempt,
        author=author,
        lot=batch.lot,
        targets=(
            *(
                Target(of(batch.pipeline, view.name), batch.lot)
                for view in batch.spec.views
                for of in (changes_of, table_of)
            ),
            Target(quarantine_of(batch.pipeline, batch.spec.name), batch.lot),
            Target(state_of(batch.pipeline, batch.spec.name), batch.lot),
        ),
    )
    return attempts.begin(tx, keys, ticket.node, draft)


def commit(
    tx: Tx,
    keys: StepKeys,
    ticket: Ticket,
    batch: StepBatch,
    hold: Hold | None,
    outputs: Sequence[StepOutput],
    *,
    aside: QuarantinedRows | None = None,
    state: StepState | None = None,
    alarm: StepAlarm | None = None,
    ends: bool,
) -> StepRow:
    """The group goes on to the batch's step, and from its version file to the next.

    - hold, outputs: of the attempt; None and nothing for a batch that does not concern the group.
    - state: what the attempt made of the group's state; without it the version file stays the one it was.
    - alarm: when the next step is due by time alone.
    - ends: this is the run's last commit: its subscription is finished with it.
    """
    group = _stand(tx, keys, ticket, batch)
    if (hold is None) == batch.concerns:
        raise StepConflict(f"step {batch.step} of {ticket.name} has no attempt, or should have none")
    _check_state(batch, hold, state)
    row = StepRow(
        step=batch.step,
        after=batch.after,
        attempt="" if hold is None else hold.draft.id,
        outputs=tuple(outputs),
        aside=aside,
        version="" if state is None else state.version,
        epoch=ticket.epoch,
        fence=ticket.fence,
        at=tx.now(),
        wall_at=tx.wall(),
    )
    tables = group.tables | {one.view: one.table for one in outputs}
    missing = [view.name for view in batch.spec.views if view.name not in tables]
    if missing:
        raise StepConflict(f"step {batch.step} of {ticket.name} leaves {missing[0]!r} without a table")
    made = tuple(MadeTable(view.name, view.code, tables[view.name]) for view in batch.spec.views)

    def move(tx: Tx) -> None:
        name = batch.spec.name
        tx.set(keys.step[batch.pipeline, name, batch.step], msgspec.msgpack.encode(row), quiet=True)
        version = group.version if state is None else state.version
        moved = ViewGroup(spec=batch.spec, step=batch.step, made=made, version=version)
        groups.write(tx, keys, batch.pipeline, moved)
        if alarm is not None:
            alarms.set_at(tx, keys.triggers, alarm_of(batch.pipeline, name), alarm.at)

    ending = Ending(ticket, {step_log(batch.pipeline): batch.step, **batch.positions}) if ends else None
    named = {one.view: one for one in outputs}
    publish_step(
        tx,
        keys,
        hold,
        group_source(batch.pipeline, batch.spec.name),
        batch.step,
        manifests=[
            key
            for view in batch.spec.views
            for key in (
                (named[view.name].changes, named[view.name].table) if view.name in named else ("", "")
            )
        ]
        + ["" if aside is None else aside.manifest, "" if state is None else state.version],
        move=move,
        ending=ending,
    )
    return row


def rest(
    tx: Tx, keys: StepKeys, pipeline: str, ticket: Ticket, group_name: str, *, busy: bool = False
) -> int:
    """End a run that has no commit to end it with; the group's step.

    - busy: it had something to do, but somebody else is the coordinator: it begins again in a moment.
    """
    group = groups.read(tx, keys, pipeline, group_name)
    if busy:
        runs.fail(tx, keys.triggers, keys.cluster, ticket, backoff_us=BUSY_US, counted=False)
    else:
        target = progress(tx, keys, pipeline, group)
        runs.finish(tx, keys.triggers, keys.lots, keys.cluster, ticket, target)
    return group.step


def progress(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup) -> dict[DatasetId, int]:
    """How far a group's subscription has come: the step log, and what it assigned of the group's datasets."""
    seen = records.positions_at(tx, keys, pipeline, group.spec.bases, group.step)
    return {step_log(pipeline): group.step, **seen}


def rows(
    tx: Tx, keys: StepKeys, pipeline: str, group: str, after: int, to: int, limit: int = PAGE
) -> list[StepRow]:
    """A page of a group's commits of the steps behind `after`, up to `to`."""
    lo, hi = keys.step[pipeline, group, after + 1], keys.step[pipeline, group, to + 1]
    return [_row.decode(row.value) for row in tx.range(lo, hi, limit=limit, snapshot=True)]


def newest(tx: Tx, keys: StepKeys, pipeline: str, group: str, limit: int) -> list[StepRow]:
    """The last commits of a group, the newest first."""
    found = tx.range(*keys.step.under(pipeline, group), limit=limit, reverse=True, snapshot=True)
    return [_row.decode(row.value) for row in found]


def _check_state(batch: StepBatch, hold: Hold | None, state: StepState | None) -> None:
    """A version file is named by the attempt that wrote it: nobody else's is kept for us."""
    if state is None:
        return
    attempt = "" if hold is None else hold.draft.id
    if not attempt or not state.version.startswith(
        state_prefix(batch.pipeline, batch.spec.name, batch.lot, attempt)
    ):
        raise StepConflict(f"{state.version} is no version file of attempt {attempt or 'none'}")


def _stand(tx: Tx, keys: StepKeys, ticket: Ticket, batch: StepBatch) -> ViewGroup:
    """The fence: the run is ours, and the group is where and as the batch says."""
    runs.check(tx, keys.triggers, keys.cluster, ticket)
    group = groups.read(tx, keys, batch.pipeline, batch.spec.name)
    if ticket.name != group_id(batch.pipeline, batch.spec.name):
        raise StepConflict(f"a run of {ticket.name} has no right to step {batch.step} of {batch.spec.name}")
    if group.step != batch.after or group.spec != batch.spec:
        raise StepConflict(f"{ticket.name} is at step {group.step}, and not as it was at {batch.after}")
    return group
