"""Commit a step: after its objects are written, one transaction moves the group to the new step (DBSP-39).

A *step batch* is what a group processes next: all records after its current step, up to and including the
first record that has work for the group. Records without work are skipped together, without a Spark job. A
batch with work has an attempt. The commit writes one row, which names the outputs of that attempt.

A commit is fenced. It is refused unless the run still holds its ticket, and the group still has the step and
the declaration that it had when the batch was read. So if two runs compute the same step, one of them commits
it, and a stale run commits nothing. The objects of a failed attempt are never reused: the step runs again.

The file is long because it holds one protocol: the input of a step, the result of its attempt, and the row of
its commit. These eight structs take 200 of its lines.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from tidemill.cluster.leases import Busy
from tidemill.errors import StepConflict
from tidemill.lots import events
from tidemill.lots.keys import DatasetId
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.transaction import Ending, publish_step
from tidemill.store import Row, Tx, long_values
from tidemill.triggers import alarms, runs
from tidemill.triggers.runs import Ticket
from tidemill.views.steps import (
    checked_views,
    divergence,
    failed_views,
    groups,
    range_setting,
    records,
    rounds,
)
from tidemill.views.steps.checked_views import CheckedView
from tidemill.views.steps.failed_views import FailedView, PassedLot
from tidemill.views.steps.groups import MOST_VIEWS, BuiltTable, GroupSpec, ViewGroup
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
"""How many records to read at once."""

MOST_TARGETS = 2 * MOST_VIEWS + 2
"""How many targets an attempt at a step has at most: the changes and the table of each view, the quarantine,
and the group's state."""

DRAFT_BYTES = 160 * 1024
"""The maximum size of the draft of an attempt at a step."""

BUSY_US = 250_000
"""How long a run waits before its retry when another process is the coordinator."""


ROUND_US = 250_000
"""How long a run waits before its retry while its group rests in a round."""


class StepBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The records after `after`, up to and including `step`.

    - moved: the base datasets of the group that have input in these records.
    - before, positions: the assigned positions of the group's base datasets at `after` and at `step`; the
      input of the batch is between the two.
    - stale: views to rebuild in this batch.
    - version: the version file of the group's state, at `after` or an earlier step; empty if there is none.
    - now: the value of `now()`, from the last record.
    - more: whether there are records after this batch.
    - aside: views to leave out: they fail on their input, or read such a view (`failed_views`).
    - failed: the views that are set aside before this batch, or pass over lots.
    - passed: for each view, the lots that it passes over in this batch.
    - checked: how many rows of views failed their checks before this batch.
    - ranges: how many ranges a step has at least; 0 lets the size of the step decide.
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
    aside: frozenset[str] = frozenset()
    failed: dict[str, FailedView] = {}
    passed: dict[str, tuple[PassedLot, ...]] = {}
    checked: dict[str, CheckedView] = {}
    ranges: int = 0

    @property
    def has_work(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.moved or self.stale)

    @property
    def resumed(self) -> frozenset[str]:
        """The views that were set aside before this batch, and are computed in it."""
        aside = frozenset(name for name, row in self.failed.items() if row.is_aside)
        return aside & (self.spec.names - self.aside)

    @property
    def computed(self) -> "StepBatch":
        """The batch as if the group had only the views that are not left out."""
        views = tuple(view for view in self.spec.views if view.name not in self.aside)
        spec = msgspec.structs.replace(self.spec, views=views)
        return msgspec.structs.replace(self, spec=spec, stale=self.stale - self.aside)

    @property
    def lot(self) -> str:
        """The lot id of the batch's output."""
        return step_lot(self.step)


class StepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a step for one view.

    - changes: the manifest of the view's changes; empty if there are none.
    - table: the manifest that lists the files of the view's table.
    - rows, size: the number of rows and the bytes of the changes.
    - digest: the digest of the changes.
    - content: the digest of the table after the step, which is the sum of all digests so far (DBSP-42).
    """

    view: str
    table: str
    changes: str = ""
    rows: int = 0
    size: int = 0
    digest: str = ""
    content: str = ""


class QuarantinedRows(msgspec.Struct, frozen=True, kw_only=True):
    """The input rows that this step put into quarantine: rows whose weight would be negative (DBSP-21).

    No view contains them. They cancel out when their insertion arrives. If only recomputed views read a
    dataset, these are all of its rows in quarantine.

    - manifest: a root manifest; each part belongs to one dataset and has the name of that dataset.
    - rows: for each dataset, how many rows there are.
    """

    manifest: str
    rows: dict[str, int]


class StepState(msgspec.Struct, frozen=True, kw_only=True):
    """The group's state after a step: the version file that lists it, and the bytes of its traces."""

    version: str
    size: int = 0


class StepAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """When the group's result next changes because of time alone (wall time, µs); None means never (DBSP-22).

    A computation that returns no alarm leaves the alarm unchanged.
    """

    at: int | None


class WholeReads(msgspec.Struct, frozen=True, kw_only=True):
    """The datasets that the group reads as a whole, in this step and in later steps like it.

    Their lots do not expire, because the next step needs them (LOT-39).
    """

    datasets: frozenset[DatasetId]


StepPart: TypeAlias = StepOutput | QuarantinedRows | StepState | StepAlarm | WholeReads | CheckedView
"""One part of a step's result.

A result has one output for each changed view, one `CheckedView` for each view with checks, and at most one
part of every other type.
"""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attempt at a step.

    - hold: the attempt, which is still open.
    - state: the group's new state; None leaves its version file unchanged.
    - alarm: when the next step is due because of time alone; None leaves the alarm unchanged.
    - whole: the datasets that the group reads as a whole; None leaves them unchanged.
    - checked: how many rows of views fail their checks.
    """

    hold: Hold
    outputs: tuple[StepOutput, ...] = ()
    quarantined: QuarantinedRows | None = None
    state: StepState | None = None
    alarm: StepAlarm | None = None
    whole: WholeReads | None = None
    checked: tuple[CheckedView, ...] = ()

    @classmethod
    def of(cls, hold: Hold, parts: Sequence[StepPart]) -> "StepResult":
        """Build a result from the parts that a computation returned."""
        return cls(
            hold=hold,
            outputs=tuple(part for part in parts if isinstance(part, StepOutput)),
            quarantined=next((part for part in parts if isinstance(part, QuarantinedRows)), None),
            state=next((part for part in parts if isinstance(part, StepState)), None),
            alarm=next((part for part in parts if isinstance(part, StepAlarm)), None),
            whole=next((part for part in parts if isinstance(part, WholeReads)), None),
            checked=tuple(part for part in parts if isinstance(part, CheckedView)),
        )

    def manifests(self, spec: GroupSpec) -> list[str]:
        """Return the key that the attempt wrote for each target of `open_step`, in order; empty if none."""
        outputs = {output.view: output for output in self.outputs}
        names: list[str] = []
        for view in spec.views:
            output = outputs.get(view.name)
            names += ("", "") if output is None else (output.changes, output.table)
        names.append("" if self.quarantined is None else self.quarantined.manifest)
        names.append("" if self.state is None else self.state.version)
        return names


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One commit: the group moved from `after` to `step`. Views without an output did not change.

    - version: the version file that this step wrote; empty if it wrote none.
    - state_size: the bytes of the traces that it lists; rows of earlier releases lack it.
    - resumed: the views that were set aside before this step, with the step of their tables before it. Their
      changes cover all steps since then.
    - epoch, fence: the epoch and the fence of the run that committed the step.
    - at: store time, µs.
    - wall_at: wall time, µs since 1970; for display.
    """

    step: int
    after: int
    attempt: str = ""
    outputs: tuple[StepOutput, ...] = ()
    quarantined: QuarantinedRows | None = msgspec.field(name="aside", default=None)
    version: str = ""
    state_size: int | msgspec.UnsetType = msgspec.UNSET
    epoch: int
    fence: int
    at: int
    wall_at: int
    resumed: dict[str, int] | UnsetType = UNSET

    def after_of(self, view: str) -> int:
        """Return the step after which the changes of a view in this row begin."""
        return self.after if self.resumed is UNSET else self.resumed.get(view, self.after)

    @property
    def state_bytes(self) -> int:
        """The bytes of the traces; 0 if they are not known."""
        return 0 if self.state_size is msgspec.UNSET else self.state_size


_decoder = msgspec.msgpack.Decoder(StepRow)


def next_batch(tx: Tx, keys: StepKeys, pipeline: str, group_name: str, *, most: int = 1) -> StepBatch | None:
    """Return the next batch of a group; None when it has applied every record, or rests in a round.

    - most: if the group is behind, one batch has at most this many records with work. The table is the same
      as after separate steps; changes between the records cancel out.
    """
    divergence.check_not_diverged(tx, keys, pipeline, group_name)
    group = groups.read(tx, keys, pipeline, group_name)
    last = rounds.last_step(rounds.read(tx, keys, pipeline, group_name))
    page = records.read(tx, keys, pipeline, group.step, PAGE)
    if last is not None:
        page = [record for record in page if record.number <= last]
    if not page:
        return None
    bases = frozenset(group.spec.bases)
    failed = failed_views.listed(tx, keys, pipeline, group_name)
    resumed = {name for name, row in failed.items() if row.is_aside and name in group.spec.names}
    stale = group.stale | resumed
    stale -= failed_views.waiting(group.spec, failed, ())
    moved: set[DatasetId] = set()
    with_work = 0
    step, now = group.step, 0
    for record in page:
        touched = record.moved & bases
        step, now = record.number, record.now
        moved |= touched
        with_work += bool(touched or (stale and record is page[0]))
        if with_work == most:
            break
    corrected: frozenset[DatasetId] = frozenset()
    if any(row.passes for row in failed.values()):
        taken = [record for record in page if record.number <= step]
        corrected = failed_views.corrected(tx, keys, taken, bases)
    aside = failed_views.waiting(group.spec, failed, moved, corrected)
    stale = (group.stale | resumed) - aside
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
        more=step < (records.last(tx, keys, pipeline).number if last is None else last),
        ranges=range_setting.read(tx, keys, pipeline),
        version=group.version,
        aside=aside,
        failed=failed,
        passed=failed_views.passed_lots(tx, keys.lots, group.spec, failed),
        checked=checked_views.listed(tx, keys, pipeline, group_name),
    )


def next_record(
    tx: Tx, keys: StepKeys, pipeline: str, ticket: Ticket, group_name: str
) -> StepRecord | Busy | None:
    """Write a record for a run, if its group has applied all records and its datasets have new lots.

    The group applies existing records before it writes a new one, so a pipeline under load writes few large
    records. Returns `Busy` while another process is the coordinator.
    """
    runs.check(tx, keys.triggers, keys.cluster, ticket)
    group = groups.read(tx, keys, pipeline, group_name)
    if rounds.last_step(rounds.read(tx, keys, pipeline, group_name)) is not None:
        return None
    if group.step < records.last(tx, keys, pipeline).number:
        return None
    bases = group.spec.bases
    heads = events.heads(tx, keys.lots, bases) if bases else {}
    if heads == records.assigned(tx, keys, pipeline, bases):
        return None
    return records.write_record_now(tx, keys, pipeline, ticket.node.id)


def open_step(tx: Tx, keys: StepKeys, ticket: Ticket, batch: StepBatch, attempt: str) -> Hold:
    """Store the attempt at a step before it writes its first object, and abandon attempts of earlier runs."""
    _check_fence(tx, keys, ticket, batch)
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
    return attempts.begin(tx, keys, ticket.node, draft, most_targets=MOST_TARGETS, most_bytes=DRAFT_BYTES)


def commit(
    tx: Tx,
    keys: StepKeys,
    ticket: Ticket,
    batch: StepBatch,
    result: StepResult | None,
    *,
    ends: bool,
    failures: Mapping[str, FailedView] = MappingProxyType({}),
) -> StepRow:
    """Move the group to the batch's step, and to the version file of the result.

    - result: the result of the attempt; None for a batch without work.
    - ends: whether this is the run's last commit, which also finishes the run of its subscription.
    - failures: the views in `batch.aside` that failed in this step.
    """
    group = _check_fence(tx, keys, ticket, batch)
    if batch.has_work and result is None:
        raise StepConflict(
            f"step {batch.step} of {ticket.name} cannot be committed without a result: it has changes to"
            " process"
        )
    if result is not None and not batch.has_work:
        raise StepConflict(
            f"step {batch.step} of {ticket.name} cannot be committed with a result: it has no changes to"
            " process"
        )
    if result is not None:
        _check_state(batch, result)
    row = _row(tx, ticket, batch, result)
    tables = group.tables | {output.view: output.table for output in row.outputs}
    missing = [
        view.name for view in batch.spec.views if view.name not in tables and view.name not in batch.aside
    ]
    if missing:
        raise StepConflict(
            f"step {batch.step} of {ticket.name} would leave the view {missing[0]!r} without a table"
        )
    kept = {table.view: table for table in group.built}
    built = tuple(
        kept[view.name] if view.name in batch.aside else BuiltTable(view.name, view.code, tables[view.name])
        for view in batch.spec.views
        if view.name in tables
    )
    positions = {table.view: batch.after for table in group.built}
    failed = failed_views.after_step(
        batch.spec, batch.failed, batch.aside, failures, batch.moved, positions, batch.passed
    )

    def move(tx: Tx) -> None:
        name = batch.spec.name
        key = keys.step[batch.pipeline, name, batch.step]
        long_values.set_long(tx, keys.more, key, msgspec.msgpack.encode(row))
        version = row.version or group.version
        moved = ViewGroup(spec=batch.spec, step=batch.step, built=built, version=version)
        groups.write(tx, keys, batch.pipeline, moved)
        rounds.after_step(tx, keys, batch.pipeline, moved)
        failed_views.store(tx, keys, batch.pipeline, name, batch.failed, failed)
        if result is not None:
            checked_views.store(tx, keys, batch.pipeline, name, batch.checked, result.checked)
        if result is not None and result.alarm is not None:
            alarms.set_at(tx, keys.triggers, alarm_of(batch.pipeline, name), result.alarm.at)
        if result is not None and result.whole is not None:
            groups.set_whole_reads(tx, keys, batch.pipeline, name, result.whole.datasets)

    publish_step(
        tx,
        keys,
        None if result is None else result.hold,
        group_source(batch.pipeline, batch.spec.name),
        batch.step,
        manifests=[] if result is None else result.manifests(batch.spec),
        move=move,
        ending=Ending(ticket, {step_log(batch.pipeline): batch.step, **batch.positions}) if ends else None,
    )
    return row


def _row(tx: Tx, ticket: Ticket, batch: StepBatch, result: StepResult | None) -> StepRow:
    state = None if result is None else result.state
    return StepRow(
        step=batch.step,
        after=batch.after,
        attempt="" if result is None else result.hold.draft.id,
        outputs=() if result is None else result.outputs,
        quarantined=None if result is None else result.quarantined,
        version="" if state is None else state.version,
        state_size=(state.size if state is not None else 0) or msgspec.UNSET,
        epoch=ticket.epoch,
        fence=ticket.fence,
        at=tx.now(),
        wall_at=tx.wall(),
        resumed={view: batch.failed[view].current for view in batch.resumed} or UNSET,
    )


def end_run(
    tx: Tx, keys: StepKeys, pipeline: str, ticket: Ticket, group_name: str, *, busy: bool = False
) -> int:
    """End a run without a commit; return the group's step.

    - busy: whether there is work, but another process is the coordinator. Then the run is retried soon.
    """
    group = groups.read(tx, keys, pipeline, group_name)
    rounds.after_step(tx, keys, pipeline, group)
    if rounds.last_step(rounds.read(tx, keys, pipeline, group_name)) is not None:
        rounds.end_abandoned(tx, keys, pipeline, ticket.node.id)
        runs.fail(tx, keys.triggers, keys.cluster, ticket, backoff_us=ROUND_US, counted=False)
    elif busy:
        runs.fail(tx, keys.triggers, keys.cluster, ticket, backoff_us=BUSY_US, counted=False)
    else:
        target = progress(tx, keys, pipeline, group)
        runs.finish(tx, keys.triggers, keys.lots, keys.cluster, ticket, target)
    return group.step


def progress(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup) -> dict[DatasetId, int]:
    """Return the positions of a group's subscription: in the step log, and in each base dataset."""
    positions = records.positions_at(tx, keys, pipeline, group.spec.bases, group.step)
    return {step_log(pipeline): group.step, **positions}


def rows(
    tx: Tx, keys: StepKeys, pipeline: str, group: str, after: int, to: int, limit: int = PAGE
) -> list[StepRow]:
    """Return a page of a group's commits: the steps after `after`, up to `to`."""
    lo, hi = keys.step[pipeline, group, after + 1], keys.step[pipeline, group, to + 1]
    return _decoded(tx, keys, tx.range(lo, hi, limit=limit, snapshot=True))


def before(tx: Tx, keys: StepKeys, pipeline: str, group: str, to: int, limit: int = PAGE) -> list[StepRow]:
    """Return a page of a group's commits: the steps up to `to`, newest first."""
    lo, hi = keys.step[pipeline, group, 0], keys.step[pipeline, group, to + 1]
    return _decoded(tx, keys, tx.range(lo, hi, limit=limit, reverse=True, snapshot=True))


def oldest(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> StepRow | None:
    """Return the first commit of a group; None if it has none."""
    page = tx.range(*keys.step.under(pipeline, group), limit=1, snapshot=True)
    return next(iter(_decoded(tx, keys, page)), None)


def newest(tx: Tx, keys: StepKeys, pipeline: str, group: str, limit: int) -> list[StepRow]:
    """Return the last commits of a group, newest first."""
    page = tx.range(*keys.step.under(pipeline, group), limit=limit, reverse=True, snapshot=True)
    return _decoded(tx, keys, page)


def _decoded(tx: Tx, keys: StepKeys, page: Sequence[Row]) -> list[StepRow]:
    return [_decoder.decode(long_values.complete(tx, keys.more, row.key, row.value)) for row in page]


def _check_state(batch: StepBatch, result: StepResult) -> None:
    """Check that the attempt wrote the version file: the collector may remove files of other attempts."""
    attempt = result.hold.draft.id
    prefix = state_prefix(batch.pipeline, batch.spec.name, batch.lot, attempt)
    if result.state is not None and not result.state.version.startswith(prefix):
        raise StepConflict(f"version file {result.state.version} does not belong to attempt {attempt}")


def _check_fence(tx: Tx, keys: StepKeys, ticket: Ticket, batch: StepBatch) -> ViewGroup:
    """Check that the run holds its ticket, and that the group has the batch's step and declaration."""
    runs.check(tx, keys.triggers, keys.cluster, ticket)
    group = groups.read(tx, keys, batch.pipeline, batch.spec.name)
    if ticket.name != group_id(batch.pipeline, batch.spec.name):
        raise StepConflict(
            f"this run belongs to {ticket.name} and cannot commit step {batch.step} of group"
            f" {batch.spec.name}"
        )
    if group.step != batch.after:
        raise StepConflict(f"{ticket.name} is at step {group.step}; its input was read at step {batch.after}")
    rounds.check(tx, keys, batch.pipeline, batch.spec.name, batch.step)
    if group.spec != batch.spec:
        raise StepConflict(f"the declaration of {ticket.name} changed after its input was read")
    if group.version != batch.version:
        raise StepConflict(f"the state of {ticket.name} was replaced after its input was read")
    divergence.check_not_diverged(tx, keys, batch.pipeline, batch.spec.name)
    return group
