"""Shadows: repeat the steps of a group on a copy of its state, and compare the digests (DBSP-43).

    begin       copy the state of a pinned version
    open_step   store an attempt at the next step that the group has committed
    advance     the step has the digests that the group committed: keep its state
    take_over   at the step where the group was stopped: the group continues with the state of the shadow
    discard     give up

A shadow computes with the code and the format of state that this process has. It never publishes: its
attempts stay open until the end, so all their objects are deleted when it is given up. A shadow takes over
only while its group is stopped in a round, at the shadow's step. The version that the round has pinned there
keeps the state of before, from which another shadow can go back.

A group whose views changed, failed or passed over lots since the version cannot be repeated from the records
alone; `begin` refuses it, and the caller pins a new version in a round.
"""

import contextlib

import msgspec

from tidemill.cluster import leases, nodes
from tidemill.cluster.leases import Lease
from tidemill.cluster.nodes import Node
from tidemill.errors import AttemptUnknown, LeaseLost, ShadowDiffers, ShadowNotReady, StepConflict
from tidemill.lots.keys import DatasetId
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.store import Tx, long_values
from tidemill.views.steps import commits, divergence, failed_views, groups, records, rounds, versions
from tidemill.views.steps.commits import StepBatch, StepResult
from tidemill.views.steps.divergence import Fate
from tidemill.views.steps.groups import GroupSpec, ViewGroup
from tidemill.views.steps.keys import (
    StepKeys,
    alarm_of,
    changes_of,
    group_id,
    quarantine_of,
    state_of,
    state_prefix,
    step_lot,
    table_of,
)
from tidemill.views.steps.rounds import Stopped

MOST_STEPS = 100
"""How many steps a shadow repeats at most. Each has an open attempt until the shadow ends."""

ATTEMPTS_PAGE = 5
"""How many attempts of a shadow end in one transaction: their drafts can be large."""

PAGE = 100


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a shadow.

    - id: a new id for each shadow.
    - spec: the declaration of the group, which must not change.
    - begun_at: the step of the version from which it began.
    - step: the last step that it has repeated.
    - origin: the version file of the pinned version.
    - version, tables: its version file, and the manifests of its tables.
    - attempts: the attempts that wrote them; they stay open until the end.
    - steps, rows: how many steps with work it has repeated, and how many changed rows they read.
    - covered: the datasets that had input in these steps.
    """

    id: str
    node: str
    node_epoch: int
    spec: GroupSpec
    begun_at: int
    step: int
    origin: str
    version: str
    tables: dict[str, str]
    attempts: tuple[str, ...] = ()
    steps: int = 0
    rows: int = 0
    covered: frozenset[DatasetId] = frozenset()

    def uncovered(self, pipeline: str) -> tuple[DatasetId, ...]:
        """The datasets of the group that had no input yet."""
        alarm = alarm_of(pipeline, self.spec.name)
        return tuple(base for base in self.spec.bases if base not in self.covered and base != alarm)


_decoder = msgspec.msgpack.Decoder(Shadow)


def read(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> Shadow | None:
    """Return the shadow of a group."""
    raw = long_values.get_long(tx, keys.more, keys.shadow[pipeline, group])
    return None if raw is None else _decoder.decode(raw)


def kept(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> Shadow | None:
    """Return the shadow of a group whose node works on it; the files that it lists are needed."""
    shadow = read(tx, keys, pipeline, group)
    if shadow is None:
        return None
    try:
        nodes.check(tx, keys.cluster, _node_of(shadow))
    except LeaseLost:
        return None
    return shadow


def can_begin(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup) -> bool:
    """Return whether the steps since the last version of a group can be repeated from their records."""
    pin = versions.listed(tx, keys, pipeline, group.spec.name)[-1]
    if not pin.version or group.stale or failed_views.listed(tx, keys, pipeline, group.spec.name):
        return False
    rows = commits.rows(tx, keys, pipeline, group.spec.name, pin.step, group.step, MOST_STEPS + 1)
    log = records.read(tx, keys, pipeline, pin.step, MOST_STEPS + 1)
    log = [record for record in log if record.number <= group.step]
    complete = [record.number for record in log] == list(range(pin.step + 1, group.step + 1))
    chained = [pin.step, *(row.step for row in rows)] == [*(row.after for row in rows), group.step]
    circuit = {record.circuit for record in log} | {(tx.get(keys.circuit[pipeline]) or b"").decode()}
    return complete and chained and len(circuit) == 1 and all(not row.resumed for row in rows)


def is_foreign(tx: Tx, keys: StepKeys, pipeline: str, group: str, node: Node) -> bool:
    """Return whether another living node works on a shadow of the group."""
    shadow = kept(tx, keys, pipeline, group)
    return shadow is not None and (shadow.node, shadow.node_epoch) != (node.id, node.epoch)


def begin(
    tx: Tx, keys: StepKeys, pipeline: str, group_name: str, node: Node, shadow: str, attempt: str
) -> tuple[Shadow, Hold]:
    """Begin a shadow at the last version of a group; return it, and the attempt that copies the state.

    The caller copies the version file `origin` to `version`, in the format and with the code to try. Raises
    `ShadowNotReady` unless `can_begin`, and while the group has another shadow: `discard` it first.
    """
    if read(tx, keys, pipeline, group_name) is not None:
        raise ShadowNotReady(f"another shadow of group {group_name!r} has not ended", hint="try again later")
    group = groups.read(tx, keys, pipeline, group_name)
    if not can_begin(tx, keys, pipeline, group):
        raise ShadowNotReady(
            f"the steps of group {group_name!r} cannot be repeated from its last version",
            hint="run the pipeline until no view fails or is rebuilt, and try again",
        )
    pin = versions.listed(tx, keys, pipeline, group_name)[-1]
    row = Shadow(
        id=shadow,
        node=node.id,
        node_epoch=node.epoch,
        spec=group.spec,
        begun_at=pin.step,
        step=pin.step,
        origin=pin.version,
        version=copied_version(pipeline, group_name, pin.step, attempt),
        tables=pin.tables,
        attempts=(attempt,),
    )
    draft = Draft(
        id=attempt,
        author=_author(pipeline, group_name),
        lot=step_lot(pin.step),
        targets=(Target(state_of(pipeline, group_name), step_lot(pin.step)),),
    )
    hold = attempts.begin(tx, keys, node, draft)
    _write(tx, keys, pipeline, row)
    return row, hold


def copied_version(pipeline: str, group: str, step: int, attempt: str) -> str:
    """Return the key of the version file with which a shadow begins."""
    return f"{state_prefix(pipeline, group, step_lot(step), attempt)}version"


def next_batch(tx: Tx, keys: StepKeys, pipeline: str, shadow: Shadow) -> StepBatch | None:
    """Return the next step to repeat, as the group read it; None if the shadow has repeated all of them.

    Commits without work are repeated together with the next one that has work.
    """
    group = _check(tx, keys, pipeline, shadow)
    name, bases = shadow.spec.name, shadow.spec.bases
    rows = commits.rows(tx, keys, pipeline, name, shadow.step, group.step, PAGE)
    until = next((at for at, row in enumerate(rows) if row.attempt), len(rows) - 1)
    taken = rows[: until + 1]
    if not taken:
        return None
    if any(row.resumed for row in taken) or failed_views.listed(tx, keys, pipeline, name):
        raise ShadowNotReady(
            f"a view of group {name!r} fails, so its steps cannot be repeated from their records",
            hint="correct the rows, or run `tidemill retry`; then try again",
        )
    step = taken[-1].step
    log = [record for record in records.read(tx, keys, pipeline, shadow.step, PAGE) if record.number <= step]
    if not log or log[-1].number != step:
        raise ShadowNotReady(f"the record of step {step} has expired", hint="begin again")
    return StepBatch(
        pipeline=pipeline,
        spec=shadow.spec,
        after=shadow.step,
        step=step,
        moved=frozenset[DatasetId]().union(*(record.moved for record in log)) & frozenset(bases),
        before=records.positions_at(tx, keys, pipeline, bases, shadow.step),
        positions=records.positions_at(tx, keys, pipeline, bases, step),
        stale=frozenset(),
        tables=shadow.tables,
        now=log[-1].now,
        more=step < group.step,
        version=shadow.version,
    )


def open_step(
    tx: Tx, keys: StepKeys, pipeline: str, shadow: Shadow, batch: StepBatch, attempt: str
) -> tuple[Shadow, Hold]:
    """Store an attempt at a step of a shadow, before its first object is written."""
    _check(tx, keys, pipeline, shadow)
    if len(shadow.attempts) > MOST_STEPS:
        raise ShadowNotReady(
            f"the shadow of group {shadow.spec.name!r} has repeated {MOST_STEPS} steps",
            hint="begin again; the next shadow begins at a newer version",
        )
    draft = Draft(
        id=attempt,
        author=_author(pipeline, shadow.spec.name),
        lot=batch.lot,
        targets=(
            *(
                Target(of(pipeline, view.name), batch.lot)
                for view in batch.spec.views
                for of in (changes_of, table_of)
            ),
            Target(quarantine_of(pipeline, shadow.spec.name), batch.lot),
            Target(state_of(pipeline, shadow.spec.name), batch.lot),
        ),
    )
    node = _node_of(shadow)
    hold = attempts.begin(
        tx, keys, node, draft, most_targets=commits.MOST_TARGETS, most_bytes=commits.DRAFT_BYTES
    )
    opened = msgspec.structs.replace(shadow, attempts=(*shadow.attempts, attempt))
    _write(tx, keys, pipeline, opened)
    return opened, hold


def advance(
    tx: Tx, keys: StepKeys, pipeline: str, shadow: Shadow, batch: StepBatch, result: StepResult, rows: int
) -> Shadow:
    """Move a shadow to the step of a batch; raise `ShadowDiffers` if the group committed other rows.

    - rows: how many changed rows the batch read.
    """
    group = _check(tx, keys, pipeline, shadow)
    committed = commits.rows(tx, keys, pipeline, shadow.spec.name, batch.after, batch.step, PAGE)
    compared = divergence.compare(committed, group.step, batch.after, batch.step, result.outputs)
    if compared.fate is Fate.DIFFERENT:
        error = ShadowDiffers(
            f"step {batch.step} of group {shadow.spec.name!r} gives other rows of"
            f" {', '.join(compared.views)} when it is computed again"
        )
        error.views = compared.views
        raise error
    if compared.fate is not Fate.EQUAL:
        raise StepConflict(f"the group has not committed step {batch.step}, which its shadow has computed")
    state = result.state
    moved = msgspec.structs.replace(
        shadow,
        step=batch.step,
        version=shadow.version if state is None else state.version,
        tables=shadow.tables | {each.view: each.table for each in result.outputs},
        steps=shadow.steps + 1,
        rows=shadow.rows + rows,
        covered=shadow.covered | batch.moved,
    )
    _write(tx, keys, pipeline, moved)
    return moved


def skip(tx: Tx, keys: StepKeys, pipeline: str, shadow: Shadow, batch: StepBatch) -> Shadow:
    """Move a shadow over steps without work."""
    _check(tx, keys, pipeline, shadow)
    moved = msgspec.structs.replace(shadow, step=batch.step)
    _write(tx, keys, pipeline, moved)
    return moved


def keep_state(tx: Tx, keys: StepKeys, pipeline: str, shadow: Shadow, hold: Hold, version: str) -> None:
    """End an attempt of a shadow that will take over: only its state is kept.

    If the shadow does not take over after all, the collector deletes the state, as no version lists it.
    """
    _check(tx, keys, pipeline, shadow)
    targets = hold.draft.targets
    names = [version if target.dataset.version == "state" else "" for target in targets]
    attempts.end_published(tx, keys, hold, [shadow.step] * len(targets), names)


def take_over(tx: Tx, keys: StepKeys, pipeline: str, shadow: Shadow, lease: Lease) -> ViewGroup:
    """Let a group continue with the state of its shadow, in a round that has stopped both at one step."""
    leases.check(tx, keys.coordinator_lease(pipeline), lease)
    group = _check(tx, keys, pipeline, shadow)
    state = rounds.read(tx, keys, pipeline, shadow.spec.name)
    if not isinstance(state, Stopped) or not shadow.step == state.step == group.step:
        raise ShadowNotReady(
            f"group {shadow.spec.name!r} is at step {group.step} and not stopped at step {shadow.step} of its"
            " shadow",
            hint="a shadow takes over in a round, after it has repeated all steps",
        )
    moved = msgspec.structs.replace(group, version=shadow.version)
    groups.write(tx, keys, pipeline, moved)
    remove(tx, keys, pipeline, shadow.spec.name)
    return moved


def discard(tx: Tx, keys: StepKeys, pipeline: str, group: str, limit: int = ATTEMPTS_PAGE) -> bool:
    """Give up the shadow of a group, if there is one; return True if attempts of it are left to give up.

    The cleaner then deletes the objects of the attempts. Call it until it returns False.
    """
    shadow = read(tx, keys, pipeline, group)
    if shadow is None:
        return False
    node = _living(tx, keys, shadow)
    for attempt in shadow.attempts[:limit]:
        with contextlib.suppress(AttemptUnknown):  # it has ended, and its row was deleted
            attempts.abandon_left(tx, keys, attempt, "its shadow was given up", node)
    if len(shadow.attempts) <= limit:
        remove(tx, keys, pipeline, group)
        return False
    _write(tx, keys, pipeline, msgspec.structs.replace(shadow, attempts=shadow.attempts[limit:]))
    return True


def remove(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> None:
    """Remove the row of a shadow."""
    long_values.clear_long(tx, keys.more, keys.shadow[pipeline, group])


def _living(tx: Tx, keys: StepKeys, shadow: Shadow) -> Node | None:
    """Return the node of a shadow; None if it is gone, so that anybody may give up its attempts."""
    node = _node_of(shadow)
    try:
        nodes.check(tx, keys.cluster, node)
    except LeaseLost:
        return None
    return node


def _check(tx: Tx, keys: StepKeys, pipeline: str, shadow: Shadow) -> ViewGroup:
    """Check that the shadow is the stored one, and that its group has not changed or diverged."""
    nodes.check(tx, keys.cluster, _node_of(shadow))
    name = shadow.spec.name
    if read(tx, keys, pipeline, name) != shadow:
        raise StepConflict(f"another process has changed the shadow of group {name!r}")
    divergence.check_not_diverged(tx, keys, pipeline, name)
    group = groups.read(tx, keys, pipeline, name)
    if group.spec != shadow.spec or group.stale:
        raise ShadowNotReady(
            f"the views of group {name!r} have changed since the shadow began", hint="begin again"
        )
    return group


def _write(tx: Tx, keys: StepKeys, pipeline: str, shadow: Shadow) -> None:
    key = keys.shadow[pipeline, shadow.spec.name]
    long_values.set_long(tx, keys.more, key, msgspec.msgpack.encode(shadow))


def _node_of(shadow: Shadow) -> Node:
    return Node(id=shadow.node, epoch=shadow.node_epoch)


def _author(pipeline: str, group: str) -> str:
    return f"shadow:{group_id(pipeline, group)}"
