"""Groups: views that advance in the same steps, and the last step of each group (DBSP-34, DBSP-39).

A group's row holds its declaration, its step, and for each view the manifest of its table at that step. The
group's head, subscription and attempts use the group's id. The subscription follows the base datasets that
the group reads, and the pipeline's step log. Every group applies every record of that log, even if the record
contains no work for the group.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster.leases import Busy
from tidemill.errors import GroupUnknown, UsageError
from tidemill.lots import events, expiry
from tidemill.lots.keys import DatasetId
from tidemill.store import Row, Tx, long_values
from tidemill.triggers import alarms, schedules, subscriptions
from tidemill.triggers.subscriptions import MOST_SOURCES, Terms
from tidemill.triggers.terms import CatchUp
from tidemill.views.steps import divergence, records, retired, versions
from tidemill.views.steps.keys import StepKeys, alarm_of, group_id, group_source, step_log
from tidemill.views.steps.records import StepRecord
from tidemill.views.steps.retired import RetiredTable

MOST_VIEWS = 300
"""The maximum number of views in a group.

The commit of a step writes about 2,500 bytes for each view, if all views change and have the longest names
that are possible. With the declaration, this fits into one transaction.
"""


SPEC_BYTES = 192 * 1024
"""The maximum size of a group's declaration, which is a part of the group's row."""


class ViewSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a view.

    - code: a digest of everything that affects the result; when the digest changes, the next step rebuilds
      the view.
    - reads: the base datasets that the view reads directly.
    - uses: the views of the same group that this view reads; they come before this view in the group.
    """

    name: str
    code: str
    reads: tuple[DatasetId, ...] = ()
    uses: tuple[str, ...] = ()


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a group.

    - cadence_us, debounce_us, max_wait_us: the shortest values among its views.
    - gated: whether runs wait for the group's schedule.
    - most_failures, catch_up: see `Terms`.
    """

    name: str
    views: tuple[ViewSpec, ...]
    cadence_us: int = 0
    debounce_us: int = 0
    max_wait_us: int | None = None
    gated: bool = False
    most_failures: int = 0
    catch_up: CatchUp = CatchUp.ALL

    @property
    def names(self) -> frozenset[str]:
        """The names of its views."""
        return frozenset(view.name for view in self.views)

    @property
    def bases(self) -> tuple[DatasetId, ...]:
        """The base datasets that its views read, without duplicates."""
        return tuple(sorted({dataset for view in self.views for dataset in view.reads}))


class BuiltTable(msgspec.Struct, frozen=True, array_like=True):
    """A view's table at the group's step, and the code that built it."""

    view: str
    code: str
    table: str  # the key of the manifest that lists its files


class ViewGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group's row.

    - built: the tables of its views.
    - version: the key of the version file that lists the group's state; empty while there is none. The file
      records its step, which may be lower than the step of the group (DBSP-41).
    """

    spec: GroupSpec
    step: int
    built: tuple[BuiltTable, ...] = msgspec.field(name="made", default=())
    version: str = ""

    @property
    def tables(self) -> dict[str, str]:
        """The manifest of each view's table."""
        return {table.view: table.table for table in self.built}

    @property
    def stale(self) -> frozenset[str]:
        """Views without a table, or with a table that other code built. The next step rebuilds them."""
        codes = {table.view: table.code for table in self.built}
        return frozenset(view.name for view in self.spec.views if codes.get(view.name) != view.code)


_decoder = msgspec.msgpack.Decoder(ViewGroup)
_whole = msgspec.msgpack.Decoder(frozenset[DatasetId])


def read(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> ViewGroup:
    """Return a group's row; raise `GroupUnknown` if there is none."""
    raw = long_values.get_long(tx, keys.more, keys.group[pipeline, group])
    if raw is None:
        raise GroupUnknown(f"pipeline {pipeline!r} has no view group {group!r}")
    return _decoder.decode(raw)


def listed(tx: Tx, keys: StepKeys, pipeline: str) -> list[ViewGroup]:
    """Return all groups of a pipeline, sorted by name."""
    page = tx.range(*keys.group.under(pipeline), snapshot=True)
    return [_decoded(tx, keys, row) for row in page]


def listed_all(tx: Tx, keys: StepKeys, limit: int) -> list[tuple[str, ViewGroup]]:
    """Return the groups of all pipelines, each with the name of its pipeline, at most `limit` of them."""
    page = tx.range(*keys.group.all(), limit=limit, snapshot=True)
    return [(str(keys.group.unpack(row.key)[0]), _decoded(tx, keys, row)) for row in page]


def _decoded(tx: Tx, keys: StepKeys, row: Row) -> ViewGroup:
    return _decoder.decode(long_values.complete(tx, keys.more, row.key, row.value))


def whole_reads(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> frozenset[DatasetId] | None:
    """Return the datasets that the group's last step read as a whole, and its next step may read again.

    Return None if that is unknown, because an earlier release computed the step.
    """
    raw = tx.get(keys.whole[pipeline, group])
    return None if raw is None else _whole.decode(raw)


def set_whole_reads(
    tx: Tx, keys: StepKeys, pipeline: str, group: str, datasets: frozenset[DatasetId]
) -> None:
    """Store which datasets the group reads as a whole, unless it is unchanged."""
    if whole_reads(tx, keys, pipeline, group) != datasets:
        tx.set(keys.whole[pipeline, group], msgspec.msgpack.encode(sorted(datasets)), quiet=True)


def write(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup) -> None:
    """Store a group's row."""
    key = keys.group[pipeline, group.spec.name]
    long_values.set_long(tx, keys.more, key, msgspec.msgpack.encode(group))


def declare(tx: Tx, keys: StepKeys, pipeline: str, spec: GroupSpec) -> ViewGroup:
    """Store a group's declaration, unless it is unchanged.

    A new group starts at the newest record, and the next record builds its views. A group that is declared
    differently keeps its tables and its step, and the next record rebuilds the views that changed.
    `declare_circuit` writes that record after all groups are declared.
    """
    _check(spec)
    for dataset in spec.bases:
        records.add_base(tx, keys, pipeline, dataset)
    if alarm_of(pipeline, spec.name) in spec.bases:
        alarms.declare(tx, keys.lots, alarm_of(pipeline, spec.name))
    raw = long_values.get_long(tx, keys.more, keys.group[pipeline, spec.name])
    if raw is None:
        group = ViewGroup(spec=spec, step=records.last(tx, keys, pipeline).number)
        events.advance(tx, keys.lots, step_log(pipeline), group.step)
        events.advance(tx, keys.lots, group_source(pipeline, spec.name), group.step)
    else:
        group = _decoder.decode(raw)
        if group.spec == spec:
            return group
        retired.keep(tx, keys, pipeline, _removed_tables(group, spec))
        retired.mark_for_collection(tx, keys, pipeline, group.spec.names - spec.names)
        group = msgspec.structs.replace(group, spec=spec)
    _check_complete(tx, keys, group)
    if raw is None:
        versions.create(tx, keys, pipeline, spec.name, group.step)
    retired.forget(tx, keys, pipeline, [view.name for view in spec.views])
    write(tx, keys, pipeline, group)
    tx.clear(keys.circuit[pipeline], quiet=True)  # the next declaration of the circuit is a change
    _subscribe(tx, keys, pipeline, group)
    return group


def remove(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> bool:
    """Remove a group that is no longer declared. From now on, its runs cannot commit.

    A later group with the same name is a new group. The head keeps its position, because heads only grow. The
    tables of the views stay readable (`retired`).
    """
    raw = long_values.get_long(tx, keys.more, keys.group[pipeline, group])
    if raw is None:
        return False
    retired.keep(tx, keys, pipeline, _removed_tables(_decoder.decode(raw), None))
    retired.mark_for_collection(tx, keys, pipeline, _decoder.decode(raw).spec.names, group)
    subscriptions.remove(tx, keys.triggers, group_id(pipeline, group))
    alarms.set_at(tx, keys.triggers, alarm_of(pipeline, group), None)
    long_values.clear_long(tx, keys.more, keys.group[pipeline, group])
    tx.clear(keys.whole[pipeline, group], quiet=True)
    tx.clear(keys.stepper[pipeline, group], quiet=True)
    versions.remove(tx, keys, pipeline, group)
    divergence.clear_diverged(tx, keys, pipeline, group)
    tx.clear_range(*keys.failed.under(pipeline, group))
    tx.clear_range(*keys.checked.under(pipeline, group))
    long_values.clear_long_range(tx, keys.more, *keys.step.under(pipeline, group))
    tx.clear(keys.circuit[pipeline], quiet=True)
    return True


def _check_complete(tx: Tx, keys: StepKeys, group: ViewGroup) -> None:
    """Raise `HistoryExpired` if a view must be built, and lots that it needs have expired (LOT-39)."""
    views = {view.name: view for view in group.spec.views}
    names = sorted(group.stale)
    for name in names:  # also the views that it reads
        names += [used for used in views[name].uses if used not in names]
        for dataset in views[name].reads:
            expiry.check_complete(tx, keys.lots, dataset)


def _removed_tables(group: ViewGroup, spec: GroupSpec | None) -> list[RetiredTable]:
    """Return the tables of views that the new declaration does not contain."""
    names = spec.names if spec is not None else frozenset()
    return [
        RetiredTable(view=table.view, group=group.spec.name, step=group.step, table=table.table)
        for table in group.built
        if table.view not in names
    ]


def declare_circuit(
    tx: Tx, keys: StepKeys, pipeline: str, version: str, holder: str
) -> StepRecord | Busy | None:
    """Store the version of the circuit, and write a record that makes the groups rebuild what changed.

    Returns `Busy`, and changes nothing, while another process is the coordinator: the caller retries.
    """
    if tx.get(keys.circuit[pipeline]) == version.encode():
        return None
    lease = records.become_coordinator(tx, keys, pipeline, holder)
    if isinstance(lease, Busy):
        return lease
    tx.set(keys.circuit[pipeline], version.encode(), quiet=True)
    record = records.write_record(tx, keys, pipeline, lease, declared=True)
    records.resign_coordinator(tx, keys, pipeline, lease)
    return record


def _subscribe(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup) -> None:
    name = group_id(pipeline, group.spec.name)
    log, bases = step_log(pipeline), group.spec.bases
    spec = group.spec
    gate = schedules.source(name) if spec.gated else None
    terms = Terms(
        sources=(log, *bases) if gate is None else (log, *bases, gate),
        gate=gate,
        cadence_us=spec.cadence_us,
        debounce_us=spec.debounce_us,
        max_wait_us=spec.max_wait_us,
        most_failures=spec.most_failures,
        catch_up=spec.catch_up,
    )
    at = {log: group.step, **records.positions_at(tx, keys, pipeline, bases, group.step)}
    subscriptions.subscribe(
        tx,
        keys.triggers,
        keys.lots,
        name,
        terms,
        at,
        replace_inputs=True,
        creation=subscriptions.SCHEDULED,
    )


def _check(spec: GroupSpec) -> None:
    names = [view.name for view in spec.views]
    if not 0 < len(names) <= MOST_VIEWS or len(set(names)) < len(names):
        raise UsageError(
            f"group {spec.name!r} has an invalid list of views: {', '.join(names) or 'nothing'}",
            hint=f'use 1 to {MOST_VIEWS} different views; move some to another group with group="name"',
        )
    if len(spec.bases) >= MOST_SOURCES:
        raise UsageError(
            f"group {spec.name!r} reads {len(spec.bases)} datasets; the limit is {MOST_SOURCES - 1}",
            hint='move some views to another group with group="name"',
        )
    size = len(msgspec.msgpack.encode(spec))
    if size > SPEC_BYTES:
        raise UsageError(
            f"the declaration of group {spec.name!r} has {size:,} bytes; the limit is {SPEC_BYTES:,}",
            hint='use shorter names, or move some views to another group with group="name"',
        )
    for number, view in enumerate(spec.views):
        _check_uses(view, names[:number])


def _check_uses(view: ViewSpec, before: Sequence[str]) -> None:
    late = [name for name in view.uses if name not in before]
    if late:
        raise UsageError(
            f"view {view.name!r} comes before {late[0]!r}, which it reads",
            hint=f"put {late[0]!r} before {view.name!r}",
        )
