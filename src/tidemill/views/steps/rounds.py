"""Rounds: stop all groups of a pipeline at the same step, and start them again (DBSP-31 to DBSP-33).

    pause     each stepper finishes its step and rests
    stop      all steppers rest: they go on to the greatest step that one of them has reached
    finish    a stepper that reaches it commits a version and stops
    start     all have stopped: each opens the greatest version that all of them have

The coordinator runs a round under its lease. It keeps nothing: each function reads the states and versions of
the groups, so another coordinator continues a round, or ends it with `start`, wherever the last one died. The
order of the groups does not matter. A group without a row runs, so a pipeline without rounds stores nothing.

Each function is a transaction with a few small writes per group; `finish` is one per group, as it pins the
tables of the group. `Coordinator` calls them in order.
"""

from collections.abc import Mapping

import msgspec

from tidemill.cluster import leases
from tidemill.cluster.leases import Lease
from tidemill.errors import InvariantBroken, RoundBroken, RoundNotReady, StepConflict
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.subscriptions import Scheduled
from tidemill.views.steps import groups, states, versions
from tidemill.views.steps.groups import ViewGroup
from tidemill.views.steps.keys import StepKeys, group_id
from tidemill.views.steps.states import StepperEdge, StepperState


class Running(msgspec.Struct, frozen=True, tag="run"):
    """The stepper applies every record."""

    state = StepperState.RUN


class Pausing(msgspec.Struct, frozen=True, tag="pause"):
    """The stepper finishes the step that it computes."""

    state = StepperState.PAUSE


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """The stepper rests at a step."""

    step: int
    state = StepperState.PAUSED


class Stopping(msgspec.Struct, frozen=True, tag="stop"):
    """The stepper applies the records up to a step."""

    step: int
    state = StepperState.STOP


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """The stepper has committed a version at a step."""

    step: int
    state = StepperState.STOPPED


Stepping = Running | Pausing | Paused | Stopping | Stopped
_decoder: msgspec.msgpack.Decoder[Stepping] = msgspec.msgpack.Decoder(Stepping)


def read(tx: Tx, keys: StepKeys, pipeline: str, group: str) -> Stepping:
    """Return the state of a group's stepper."""
    raw = tx.get(keys.stepper[pipeline, group])
    return Running() if raw is None else _decoder.decode(raw)


def read_all(tx: Tx, keys: StepKeys, pipeline: str) -> dict[str, Stepping]:
    """Return the states of all steppers of a pipeline, by group."""
    declared = [group.spec.name for group in groups.listed(tx, keys, pipeline)]
    raws = tx.get_many([keys.stepper[pipeline, name] for name in declared]) if declared else []
    return {
        name: Running() if raw is None else _decoder.decode(raw)
        for name, raw in zip(declared, raws, strict=True)
    }


def last_step(state: Stepping) -> int | None:
    """Return the last record that a stepper in this state may apply; None if it may apply all."""
    match state:
        case Running():
            return None
        case Pausing():
            return 0
        case Paused(step) | Stopping(step) | Stopped(step):
            return step


# --- the coordinator


def pause(tx: Tx, keys: StepKeys, pipeline: str, lease: Lease) -> None:
    """Ask all steppers to rest after their step."""
    leases.check(tx, keys.coordinator_lease(pipeline), lease)
    for name, state in read_all(tx, keys, pipeline).items():
        if isinstance(state, Running):
            _write(tx, keys, pipeline, name, state, StepperEdge.PAUSE, Pausing())


def rest_idle(tx: Tx, keys: StepKeys, pipeline: str, lease: Lease) -> bool:
    """Let steppers rest that have no run; return whether all rest."""
    leases.check(tx, keys.coordinator_lease(pipeline), lease)
    resting = True
    for group in groups.listed(tx, keys, pipeline):
        if not isinstance(read(tx, keys, pipeline, group.spec.name), Pausing):
            continue
        row = subscriptions.read(tx, keys.triggers, group_id(pipeline, group.spec.name))
        if isinstance(row, Scheduled) and row.run is not None:
            resting = False
        else:
            rest(tx, keys, pipeline, group)
    return resting


def stop(tx: Tx, keys: StepKeys, pipeline: str, lease: Lease) -> int:
    """Send all steppers to the greatest step that one of them has reached; return the step.

    Raises `RoundNotReady` unless all rest.
    """
    leases.check(tx, keys.coordinator_lease(pipeline), lease)
    resting: dict[str, int] = {}
    for name, state in read_all(tx, keys, pipeline).items():
        if not isinstance(state, Paused):
            raise RoundNotReady(f"group {name!r} of pipeline {pipeline!r} is in state {state.state.value}")
        resting[name] = state.step
    step = max(resting.values(), default=0)
    for name, at in resting.items():
        _write(tx, keys, pipeline, name, Paused(at), StepperEdge.STOP, Stopping(step))
    return step


def start(tx: Tx, keys: StepKeys, pipeline: str, lease: Lease) -> int:
    """Start all steppers at the greatest version that all of them have; return its number.

    Raises `RoundBroken` if there is none.
    """
    leases.check(tx, keys.coordinator_lease(pipeline), lease)
    states_now = read_all(tx, keys, pipeline)
    common = _common({name: versions.versions(tx, keys, pipeline, name) for name in states_now}, pipeline)
    for name, state in states_now.items():
        versions.open_version(tx, keys, pipeline, name, common)
        if not isinstance(state, Running):
            _write(tx, keys, pipeline, name, state, StepperEdge.START, Running())
    return common


def _common(of_groups: Mapping[str, range], pipeline: str) -> int:
    """Return the greatest version that all groups have."""
    if not of_groups:
        return 0
    common = set.intersection(*(set(numbers) for numbers in of_groups.values()))
    if not common:
        shown = ", ".join(f"{name}: {list(numbers)}" for name, numbers in sorted(of_groups.items()))
        raise RoundBroken(f"the groups of pipeline {pipeline!r} have no version in common ({shown})")
    return max(common)


def finish_idle(tx: Tx, keys: StepKeys, pipeline: str, group: str, lease: Lease) -> bool:
    """Stop a stepper that has already reached its last step; return whether it has stopped."""
    leases.check(tx, keys.coordinator_lease(pipeline), lease)
    finish(tx, keys, pipeline, groups.read(tx, keys, pipeline, group))
    return isinstance(read(tx, keys, pipeline, group), Stopped)


# --- a stepper


def check(tx: Tx, keys: StepKeys, pipeline: str, group: str, step: int) -> None:
    """Raise `StepConflict` unless the stepper may commit this step.

    In state `pause`, a stepper commits the step that it computes. One that rests or has stopped computes
    none, so the step is of a run that has lost its group.
    """
    state = read(tx, keys, pipeline, group)
    if isinstance(state, Paused | Stopping | Stopped) and step > state.step:
        raise StepConflict(f"group {group!r} has to stop at step {state.step}, before step {step}")


def end_abandoned(tx: Tx, keys: StepKeys, pipeline: str, holder: str) -> None:
    """Start all steppers again, if the coordinator of the round is gone."""
    lease = leases.acquire(tx, keys.coordinator_lease(pipeline), holder, leases.SECOND_US)
    if isinstance(lease, Lease):
        start(tx, keys, pipeline, lease)
        leases.release(tx, keys.coordinator_lease(pipeline), lease)


def rest(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup) -> None:
    """Let a stepper rest at its step."""
    name = group.spec.name
    _write(tx, keys, pipeline, name, read(tx, keys, pipeline, name), StepperEdge.REST, Paused(group.step))


def finish(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup) -> bool:
    """Commit a version and stop, if the stepper has reached its last step; return whether it has."""
    name = group.spec.name
    state = read(tx, keys, pipeline, name)
    if not isinstance(state, Stopping):
        return False
    if group.step > state.step:
        raise InvariantBroken(f"group {name!r} is at step {group.step}; it had to stop at step {state.step}")
    if group.step < state.step:
        return False
    versions.commit_version(tx, keys, pipeline, group)
    _write(tx, keys, pipeline, name, state, StepperEdge.FINISH, Stopped(state.step))
    return True


def after_step(tx: Tx, keys: StepKeys, pipeline: str, group: ViewGroup) -> None:
    """Let a stepper rest or stop after a step, if the coordinator has asked for it."""
    if isinstance(read(tx, keys, pipeline, group.spec.name), Pausing):
        rest(tx, keys, pipeline, group)
    else:
        finish(tx, keys, pipeline, group)


def _write(
    tx: Tx,
    keys: StepKeys,
    pipeline: str,
    group: str,
    before: Stepping,
    edge: StepperEdge,
    after: Stepping,
) -> None:
    assert states.step(before.state, edge) is after.state
    tx.set(keys.stepper[pipeline, group], msgspec.msgpack.encode(after), quiet=True)
