"""The table of a future's life, and that nothing moves a future in another way."""

from collections.abc import Callable

import pytest

from tests.unit.futures_stage import Stage
from tidemill.errors import IllegalTransition
from tidemill.futures.protocol import edges
from tidemill.futures.protocol.rows import (
    AnyRow,
    AttemptCounts,
    Blocked,
    Cancelled,
    Claimed,
    Failed,
    Location,
    Quarantined,
    Realized,
    Result,
    Unclaimed,
    Unsatisfiable,
)
from tidemill.futures.protocol.states import (
    ACTOR,
    ENDED,
    FUTURE,
    INITIAL,
    ActorEdge,
    ActorState,
    FutureEdge,
    FutureState,
    actor_step,
    step,
)

TALLY = AttemptCounts(epoch=3)

ROWS: dict[FutureState, Callable[[], AnyRow]] = {
    FutureState.BLOCKED: lambda: Blocked(tally=TALLY, waits_on=1),
    FutureState.UNCLAIMED: lambda: Unclaimed(tally=TALLY, ready_at=1),
    FutureState.CLAIMED: lambda: Claimed(tally=TALLY, holder="w", node_epoch=1, claimed_at=1),
    FutureState.REALIZED: lambda: Realized(
        tally=TALLY, result=Result(3, 1, 1, Location(kind="inline"), b"x"), at=1
    ),
    FutureState.FAILED: lambda: Failed(tally=TALLY, at=1, kind="exception"),
    FutureState.CANCELLED: lambda: Cancelled(tally=TALLY, at=1),
    FutureState.QUARANTINED: lambda: Quarantined(tally=TALLY, at=1),
    FutureState.UNSATISFIABLE: lambda: Unsatisfiable(tally=TALLY, since=1),
}


def test_every_state_has_a_row_of_its_own_and_a_line_in_the_table() -> None:
    assert set(ROWS) == set(FUTURE) == set(FutureState)
    assert all(make().state is state for state, make in ROWS.items())


@pytest.mark.rule("FUT-10", "FUT-12")
@pytest.mark.parametrize("edge", FutureEdge)
@pytest.mark.parametrize("state", FutureState)
def test_an_edge_is_followed_as_the_table_says_or_nothing_changes(
    state: FutureState, edge: FutureEdge
) -> None:
    stage = Stage(scan=False)
    spec = stage.spec()
    old = ROWS[state]()
    stage.here(edges.enter, spec, old)
    before = stage.all_rows()
    target = FUTURE[state].get(edge)
    for wanted in FutureState:
        new = ROWS[wanted]()
        if wanted is target:
            continue
        with pytest.raises(IllegalTransition):
            stage.here(edges.move, spec, old, edge, new)
        assert stage.all_rows() == before
    if target is not None:
        assert step(state, edge) is target
        stage.here(edges.move, spec, old, edge, ROWS[target]())
        assert stage.row(spec.id).state is target


@pytest.mark.rule("FUT-10")
def test_what_has_ended_is_left_by_loss_or_by_command_alone() -> None:
    leaving = {state: set(FUTURE[state]) for state in ENDED}
    assert leaving[FutureState.REALIZED] == {FutureEdge.LOSE, FutureEdge.FAIL}
    assert leaving[FutureState.FAILED] == leaving[FutureState.QUARANTINED] == {FutureEdge.REQUEUE}
    assert leaving[FutureState.CANCELLED] == set()


def test_every_state_can_be_reached_and_every_future_can_end() -> None:
    reached = set(INITIAL)
    while True:
        more = {target for state in reached for target in FUTURE[state].values()} - reached
        if not more:
            break
        reached |= more
    assert reached == set(FutureState)
    for state in FutureState:
        seen = {state}
        while not seen & ENDED:
            seen |= {target for source in seen for target in FUTURE[source].values()}
        assert seen & ENDED


def test_a_row_cannot_be_rewritten_into_another_state() -> None:
    stage = Stage(scan=False)
    spec = stage.spec()
    stage.here(edges.enter, spec, ROWS[FutureState.UNCLAIMED]())
    with pytest.raises(IllegalTransition):
        stage.here(edges.rewrite, spec, ROWS[FutureState.UNCLAIMED](), ROWS[FutureState.CLAIMED]())


@pytest.mark.parametrize("edge", ActorEdge)
@pytest.mark.parametrize("state", ActorState)
def test_an_actor_dies_once(state: ActorState, edge: ActorEdge) -> None:
    if edge in ACTOR[state]:
        assert actor_step(state, edge) is ACTOR[state][edge]
    else:
        with pytest.raises(IllegalTransition):
            actor_step(state, edge)
