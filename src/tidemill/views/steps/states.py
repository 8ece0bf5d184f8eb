"""The states of a stepper in a round of the coordinator, as a table (DBSP-32).

Outside a round, every stepper runs. A round stops all steppers of a pipeline at the same step.
"""

from enum import StrEnum

from tidemill.errors import IllegalTransition


class StepperState(StrEnum):
    """The state of a group's stepper.

    In a pause, a stepper finishes its step and rests. When all rest, they go on to the greatest
    step that one of them has reached, and stop there.
    """

    RUN = "run"
    PAUSE = "pause"
    PAUSED = "paused"
    STOP = "stop"
    STOPPED = "stopped"


class StepperEdge(StrEnum):
    """The transitions of a stepper."""

    START = "start"
    PAUSE = "pause"
    REST = "rest"
    STOP = "stop"
    FINISH = "finish"


STEPPER: dict[StepperState, dict[StepperEdge, StepperState]] = {
    StepperState.RUN: {StepperEdge.PAUSE: StepperState.PAUSE},
    StepperState.PAUSE: {StepperEdge.REST: StepperState.PAUSED, StepperEdge.START: StepperState.RUN},
    StepperState.PAUSED: {StepperEdge.STOP: StepperState.STOP, StepperEdge.START: StepperState.RUN},
    StepperState.STOP: {StepperEdge.FINISH: StepperState.STOPPED, StepperEdge.START: StepperState.RUN},
    StepperState.STOPPED: {StepperEdge.START: StepperState.RUN},
}


def step(state: StepperState, edge: StepperEdge) -> StepperState:
    """Return the next state; raise `IllegalTransition` if the table has no such transition."""
    try:
        return STEPPER[state][edge]
    except KeyError:
        raise IllegalTransition(
            f"a stepper in state {state.value} has no transition {edge.value!r}"
        ) from None
