"""Groups: the views that step together, and the step they have committed (DBSP-34, DBSP-39).

A group's row says what it consists of, as declared, and where it is: its step, and for each view the list of
what makes up its table at that step. Its head, its subscription and its attempts bear the group's id. The
subscription follows the base datasets the group reads, and the pipeline's step log: every group applies every
record, those that concern it and those that do not.
"""

from collections.abc import Sequence

import msgspec

from tidemill.cluster.leases import Busy
from tidemill.errors import GroupUnknown, UsageError
from tidemill.lots import events
from tidemill.lots.keys import DatasetId
from tidemill.publish.attempts import MOST_TARGETS
from tidemill.store import Tx
from tidemill.triggers import alarms, schedules, subscriptions
from tidemill.triggers.subscriptions import MOST_SOURCES, Terms
from tidemill.triggers.terms import CatchUp
from tidemill.views.steps import records, retired
from tidemill.views.steps.keys import StepKeys, alarm_of, group_id, group_source, step_log
from tidemill.views.steps.records import StepRecord
from tidemill.views.steps.retired import RetiredTable

MOST_VIEWS = (MOST_TARGETS - 2) // 2
"""A step's attempt has two targets for each view (its changes, its table), one for what is set aside, and one
for the group's state."""


SPEC_BYTES = 32 * 1024
"""A group's row holds its declaration and the names of its tables, and is one value of the store."""


class ViewSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A view as it was declared.

    - code: the digest of all that decides its result; another one has it computed anew in the next step.
    - reads: the base datasets it reads itself.
    - uses: the views of its own group that it reads, all of them before it in the group.
    """

    name: str
    code: str
    reads: tuple[DatasetId, ...] = ()
    uses: tuple[str, ...] = ()


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it was declared.

    - cadence_us, debounce_us, max_wait_us: the shortest of its views'.
    - gated: its runs wait for its schedule.
    - most_failures, catch_up: as `Terms` has them.
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
        """Of its views."""
        return frozenset(view.name for view in self.views)

    @property
    def bases(self) -> tuple[DatasetId, ...]:
        """The base datasets it reads, each once."""
        return tuple(sorted({dataset for view in self.views for dataset in view.reads}))


class MadeTable(msgspec.Struct, frozen=True, array_like=True):
    """A view's table at the group's step, and by which code it was made."""

    view: str
    code: str
    table: str  # the key of the manifest that lists it


class ViewGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group's row.

    - version: the key of the version file that lists its state; empty while it has none. The file itself says
      to which step it is current: it may be behind the group's (DBSP-41).
    """

    spec: GroupSpec
    step: int
    made: tuple[MadeTable, ...] = ()
    version: str = ""

    @property
    def tables(self) -> dict[str, str]:
        """The manifest of each view's table."""
        return {one.view: one.table for one in self.made}

    @property
    def stale(self) -> frozenset[str]:
        """Views whose table was made by other code, or not at all: the next step makes them anew."""
        made = {one.view: one.code for one in self.made}
        return frozenset(view.name for view in self.spec.views if made.get(view.name) != view.code)


_decoder = msgspec.msgpack.Decoder(ViewGroup)


def read(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> ViewGroup:
    """A group's row; `GroupUnknown` when there is none."""
    raw = tx.get(keys.group[pipeline, group])
    if raw is None:
        raise GroupUnknown(f"pipeline {pipeline!r} has no group {group!r} of views")
    return _decoder.decode(raw)


def listed(tx: Tx, keys: StepKeys, pipeline: str) -> list[ViewGroup]:
    """Every group of a pipeline, by name."""
    return [_decoder.decode(row.value) for row in tx.range(*keys.group.under(pipeline), snapshot=True)]


def write(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup) -> None:
    """Store a group's row."""
    tx.set(keys.group[pipeline, group.spec.name], msgspec.msgpack.encode(group), quiet=True)


def declare(tx: Tx, keys: StepKeys, pipeline: str, spec: GroupSpec) -> ViewGroup:
    """Enter a group, or find it as it was declared.

    A new one stands at the newest record, and is made whole by the next one; one that is declared differently
    keeps its tables and its step, and the next record brings the views that changed up to date. That record
    is written by `declare_circuit`, which follows when all groups are declared.
    """
    _check(spec)
    for dataset in spec.bases:
        records.add_base(tx, keys, pipeline, dataset)
    if alarm_of(pipeline, spec.name) in spec.bases:
        alarms.declare(tx, keys.lots, alarm_of(pipeline, spec.name))
    raw = tx.get(keys.group[pipeline, spec.name])
    if raw is None:
        group = ViewGroup(spec=spec, step=records.last(tx, keys, pipeline).number)
        events.advance(tx, keys.lots, step_log(pipeline), group.step)
        events.advance(tx, keys.lots, group_source(pipeline, spec.name), group.step)
    else:
        group = _decoder.decode(raw)
        if group.spec == spec:
            return group
        retired.keep(tx, keys, pipeline, _gone(group, spec))
        retired.mark_for_collection(tx, keys, pipeline, group.spec.names - spec.names)
        group = msgspec.structs.replace(group, spec=spec)
    retired.forget(tx, keys, pipeline, [view.name for view in spec.views])
    write(tx, keys, pipeline, group)
    tx.clear(keys.circuit[pipeline], quiet=True)  # the next declaration of the circuit is a change
    _subscribe(tx, keys, pipeline, group)
    return group


def remove(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> bool:
    """Forget a group that nobody declares any more: a run of it commits nothing from now on.

    One that is declared under its name later is a new one. The head stays where it is: heads only grow. Its
    views' tables stay, and can be read (`retired`).
    """
    raw = tx.get(keys.group[pipeline, group])
    if raw is None:
        return False
    retired.keep(tx, keys, pipeline, _gone(_decoder.decode(raw), None))
    retired.mark_for_collection(tx, keys, pipeline, _decoder.decode(raw).spec.names, group)
    subscriptions.remove(tx, keys.triggers, group_id(pipeline, group))
    alarms.set_at(tx, keys.triggers, alarm_of(pipeline, group), None)
    tx.clear(keys.group[pipeline, group], quiet=True)
    tx.clear_range(*keys.step.under(pipeline, group))
    tx.clear(keys.circuit[pipeline], quiet=True)
    return True


def _gone(group: ViewGroup, spec: GroupSpec | None) -> list[RetiredTable]:
    """The views of a group that have a table, and are not in this declaration of it."""
    names = {view.name for view in spec.views} if spec is not None else set()
    return [
        RetiredTable(view=one.view, group=group.spec.name, step=group.step, table=one.table)
        for one in group.made
        if one.view not in names
    ]


def declare_circuit(
    tx: Tx, keys: StepKeys, pipeline: str, version: str, holder: str
) -> StepRecord | Busy | None:
    """The circuit is of this version now: a record says so, and has the groups make what changed.

    `Busy`, and nothing changed, while somebody holds the coordinator's office: to be tried again.
    """
    if tx.get(keys.circuit[pipeline]) == version.encode():
        return None
    office = records.become_coordinator(tx, keys, pipeline, holder)
    if isinstance(office, Busy):
        return office
    tx.set(keys.circuit[pipeline], version.encode(), quiet=True)
    record = records.write_record(tx, keys, pipeline, office, declared=True)
    records.resign_coordinator(tx, keys, pipeline, office)
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
    seen = records.positions_at(tx, keys, pipeline, bases, group.step)
    at = {log: group.step, **seen}
    subscriptions.subscribe(tx, keys.triggers, keys.lots, name, terms, at, attach=True, instead=True)


def _check(spec: GroupSpec) -> None:
    names = [view.name for view in spec.views]
    if not 0 < len(names) <= MOST_VIEWS or len(set(names)) < len(names):
        raise UsageError(
            f"group {spec.name!r} has {len(names)} views",
            hint=f'1 to {MOST_VIEWS}, each once; group="name" on a view sets it apart',
        )
    if len(spec.bases) >= MOST_SOURCES:
        raise UsageError(
            f"group {spec.name!r} reads {len(spec.bases)} datasets", hint=f"{MOST_SOURCES - 1} at most"
        )
    size = len(msgspec.msgpack.encode(spec))
    if size > SPEC_BYTES:
        raise UsageError(
            f"group {spec.name!r} has a declaration of {size:,} bytes",
            hint=f'{SPEC_BYTES:,} at most: shorter names, or group="name" on some of its views',
        )
    for number, view in enumerate(spec.views):
        _check_uses(view, names[:number])


def _check_uses(view: ViewSpec, before: Sequence[str]) -> None:
    late = [name for name in view.uses if name not in before]
    if late:
        raise UsageError(f"view {view.name!r} comes before {late[0]!r}, which it reads", hint="order them")
