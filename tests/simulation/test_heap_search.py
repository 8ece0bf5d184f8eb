"""Every order of steps: nothing is stuck or leaks, every move is in the table, and what breaks is found."""

import pytest

from tests.heap_table import HeapState, allowed
from tests.simulation.heap_search import Plan, Search, SearchResult

COMES_AND_GOES = (
    "A_1>D_1 B_1>E_1 B_2>E_2 C_1>F_1 C_2>F_2 D_1>A_1 D_1>D_2 D_2>A_2 D_2>D_1 E_1>B_1 E_2>B_2 F_1>C_1 F_2>C_2"
)

REACHED = {
    "one source, two writes": (
        Plan(publications=(2,)),
        "B_1>B_2 B_1>C_1 B_2>B_1 C_1>B_1 C_1>C_2 C_2>B_2 C_2>C_1",
    ),
    "attached in two phases, deleted, attached again": (
        Plan(publications=(0,), attaches=2, deletes=1),
        "A_1>A_2 A_2>A_1 A_2>B_2 B_1>A_1 B_2>A_2 C_1>A_1 C_2>A_2",
    ),
    "a template and two schedulers": (
        Plan(sources=("raw_x",), publications=(1,), added=1, schedulers=2),
        "A_2>D_2 D_2>E_2 E_1>E_2 E_1>F_1 E_2>E_1 F_1>E_1 F_1>F_2 F_2>E_2 F_2>F_1",
    ),
    "a template that comes and goes, and comes and goes": (
        Plan(sources=("raw_x",), publications=(0,), added=2, removed=2, deletes=1),
        COMES_AND_GOES,
    ),
}
"""Plans, and the cells of the table that each of them reaches, among others."""


def cells(text: str) -> set[tuple[HeapState, HeapState]]:
    return {(HeapState(move[:3]), HeapState(move[4:])) for move in text.split()}


def searched(plan: Plan) -> SearchResult:
    result = Search(plan).run()
    assert result.broken == ""
    assert result.stuck is None
    return result


@pytest.mark.rule("HEAP-18", "HEAP-2", "HEAP-5")
@pytest.mark.parametrize("what", REACHED)
def test_no_subscription_is_stuck_and_every_move_is_in_the_table(what: str) -> None:
    plan, reached = REACHED[what]
    result = searched(plan)
    assert result.states > 500
    assert cells(reached) <= result.moves


@pytest.mark.rule("HEAP-5", "HEAP-6")
def test_the_searches_reach_every_cell_that_is_allowed_and_none_that_is_not() -> None:
    reached = set().union(*(cells(text) for _, text in REACHED.values()))
    every = {(a, b) for a in HeapState for b in HeapState if a != b}
    assert reached == {(a, b) for a, b in every if allowed(a, b)}


@pytest.mark.rule("HEAP-21", "HEAP-18")
@pytest.mark.parametrize(
    "plan",
    [
        Plan(sources=("a", "b"), publications=(1, 1), schedulers=2, prunes=False),
        Plan(sources=("a", "b"), publications=(1, 1), runners=2, kills=1, prunes=False),
    ],
    ids=["two schedulers", "two runners, a fence, a zombie"],
)
def test_two_sources_lose_nothing(plan: Plan) -> None:
    assert searched(plan).states > 3_000


@pytest.mark.rule("HEAP-8")
def test_a_barrier_sees_both_of_its_sources_or_its_grace_wakes_it() -> None:
    terms = {"barrier": True, "grace_us": 1}
    searched(Plan(sources=("a", "b"), publications=(1, 1), terms=terms, ticks=1, prunes=False))


@pytest.mark.rule("HEAP-1")
def test_starts_keep_their_cadence_although_a_runner_dies_and_its_run_lapses() -> None:
    terms = {"cadence_us": 2}
    searched(Plan(publications=(1,), runners=2, kills=1, terms=terms, ticks=3, prunes=False))


@pytest.mark.rule("HEAP-17")
def test_a_heap_that_is_lost_at_any_moment_is_pushed_again() -> None:
    searched(Plan(publications=(1,), losses=1))


@pytest.mark.rule("HEAP-18")
class TestAblations:
    """The search finds each of these, so it would find others."""

    def test_without_the_sweep_a_lost_push_leaves_a_subscription_stuck(self) -> None:
        result = Search(Plan(publications=(1,), sweeps=False)).run()
        assert result.stuck is not None

    def test_a_finish_that_looks_first_and_commits_afterwards_loses_a_write(self) -> None:
        result = Search(Plan(publications=(2,), torn_finish=True)).run()
        assert result.stuck is not None

    def test_a_start_without_a_fence_lets_two_run_as_one(self) -> None:
        result = Search(Plan(runners=2, kills=1, guarded=False)).run()
        assert "HEAP-7" in result.broken

    def test_a_start_that_does_not_look_at_the_time_breaks_the_cadence(self) -> None:
        result = Search(Plan(publications=(1,), guarded=False, terms={"cadence_us": 2}, ticks=3)).run()
        assert "HEAP-1" in result.broken

    def test_a_pruner_that_reads_the_rows_first_takes_the_signal_of_a_scheduled_row(self) -> None:
        result = Search(Plan(publications=(1,), attaches=1, rows_first=True)).run()
        assert "INV4" in result.broken
