"""Laws of kernels and traces: the result does not depend on how steps are divided, ordered or repeated."""

from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.kill_samples import half_or_all
from tests.unit.trace_stage import Change, Circuit, Row, expected
from tidemill.views.trace.hash_space import ranges

AMOUNTS = [None, 0.0, -0.0, 0.1, 0.2, 0.3, -0.1, 1.0, 1e16, -1e16, 1e300, -1e300, 5e-324, 3.3333, 1e-9]
PRICES = [None, Decimal("0.01"), Decimal("-0.01"), Decimal("99999999.99"), Decimal("12.34")]
LABELS = [None, "", "a", "b", "c", "d", "é", "zz"]
WEAK = 0xC000_0000_0000_0001  # only eight different hashes, in four parts of hash space, so keys share them

customers = st.tuples(st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, "x", "y", "z"]))
orders = st.tuples(
    st.sampled_from([None, 1, 2, 3, 4]),
    st.sampled_from(AMOUNTS),
    st.sampled_from(PRICES),
    st.sampled_from(LABELS),
)


@st.composite
def histories(draw: Any, most: int = 40) -> list[tuple[str, Row, int]]:
    """Inserts, and deletes of existing rows."""
    present: list[tuple[str, Row]] = []
    history = []
    for _ in range(draw(st.integers(1, most))):
        if present and draw(st.integers(0, 2)) == 0:
            table, row = present.pop(draw(st.integers(0, len(present) - 1)))
            history.append((table, row, -1))
        else:
            table = draw(st.sampled_from(["orders", "orders", "customers"]))
            row = draw(orders if table == "orders" else customers)
            present.append((table, row))
            history.append((table, row, 1))
    return history


def cut(history: Change, cuts: list[int]) -> list[Change]:
    bounds = [0, *sorted(cut_at % (len(history) + 1) for cut_at in cuts), len(history)]
    return [history[low:high] for low, high in pairwise(bounds)]


@st.composite
def independent_steps(draw: Any) -> tuple[Change, list[Change]]:
    """A history, and steps after it that can run in any order: they delete only rows of the history."""
    history = [change for change in draw(histories(25)) if change[2] > 0]
    deleted = draw(st.lists(st.integers(0, len(history) - 1), unique=True, max_size=8)) if history else []
    changes = [(*history[index][:2], -1) for index in deleted]
    changes += [change for change in draw(histories(12)) if change[2] > 0]
    return history, cut(draw(st.permutations(changes)), draw(st.lists(st.integers(0, 20), max_size=5)))


def run(steps: list[Change], **options: Any) -> Circuit:
    circuit = Circuit(**options)
    for step in steps:
        circuit.step(step)
    return circuit


@pytest.mark.slow
@pytest.mark.rule("DBSP-42")
@settings(max_examples=half_or_all(20))
@given(histories(), st.lists(st.integers(0, 40), max_size=12))
def test_the_result_equals_plain_python_for_any_division_into_steps(history: Change, cuts: list[int]) -> None:
    circuit = run(cut(history, cuts))
    assert circuit.content() == expected(circuit.base)


@pytest.mark.slow
@pytest.mark.rule("DBSP-42")
@settings(max_examples=half_or_all(10))
@given(independent_steps(), st.randoms(use_true_random=False))
def test_reordered_steps_give_the_same_digests_and_state(
    given_steps: tuple[Change, list[Change]], chance: Random
) -> None:
    history, steps = given_steps
    shuffled = steps.copy()
    chance.shuffle(shuffled)
    ordered, reordered = run([history, *steps]), run([history, *shuffled])
    extremes = ["groups.low", "groups.high"]  # the number of stored extreme values may differ
    assert ordered.state(without=extremes) == reordered.state(without=extremes)
    assert ordered.content() == reordered.content() == expected(ordered.base)


@pytest.mark.slow
@settings(max_examples=half_or_all(20))
@given(histories(30), st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 2**32))
def test_seven_ranges_give_the_same_digests_as_one(history: Change, cuts: list[int], seed: int) -> None:
    single, seven = Circuit(1), Circuit(7, seed=seed)
    for step in cut(history, cuts):
        assert single.step(step) == seven.step(step[::-1])
    without = [name for name in single.layouts() if name.startswith("groups.")]
    assert single.state(without=without) == seven.state(without=without)


@pytest.mark.slow
@settings(max_examples=half_or_all(20))
@given(histories(30), st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_hash_collisions_do_not_change_the_result(history: Change, cuts: list[int]) -> None:
    strong, weak = Circuit(2), Circuit(2, weak=WEAK)
    for step in cut(history, cuts):
        assert strong.step(step) == weak.step(step)


@settings(max_examples=half_or_all(20))
@given(histories(25), histories(15))
def test_a_change_and_its_inverse_restore_the_state(history: Change, change: Change) -> None:
    circuit = run([history])
    extremes = ["groups.low", "groups.high"]  # the number of stored extreme values may differ
    before, digests = circuit.state(without=extremes), circuit.content()
    circuit.step(change)
    circuit.step([(table, row, -weight) for table, row, weight in change])
    assert circuit.state(without=extremes) == before
    assert circuit.content() == digests


@pytest.mark.slow
@settings(max_examples=half_or_all(12))
@given(histories(60), st.integers(1, 50))
def test_merges_do_not_change_the_state(history: Change, budget_rows: int) -> None:
    steps = [history[n : n + 2] for n in range(0, len(history), 2)]
    merging, never = Circuit(2), Circuit(2)
    merging.budget_rows, never.budget_rows = budget_rows, 0
    for step in steps:
        assert merging.step(step) == never.step(step)
    assert merging.state() == never.state()


@pytest.mark.slow
@pytest.mark.rule("DBSP-42")
@settings(max_examples=half_or_all(12))
@given(histories(40), st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_a_replayed_step_gives_the_same_digests_and_state(history: Change, cuts: list[int]) -> None:
    circuit = Circuit(3)
    for step in cut(history, cuts):
        again = Circuit(3, seed=99, objects=circuit.objects)
        again.attempt, again.version = "attempt-2", circuit.version
        again.base = {name: rows.copy() for name, rows in circuit.base.items()}
        assert again.step(step) == circuit.step(step)
        assert again.state() == circuit.state()


@pytest.mark.slow
@settings(max_examples=half_or_all(12))
@given(histories(40), st.lists(st.sampled_from([1, 2, 7, 16]), min_size=3, max_size=6))
def test_new_ranges_keep_all_files_and_give_the_same_digests(history: Change, counts: list[int]) -> None:
    fixed, moving = Circuit(1), Circuit(1)
    steps = cut(history, [len(history) * n // len(counts) for n in range(1, len(counts))])
    for step, count in zip(steps, counts, strict=True):
        files = moving.version.files()
        moving.ranges = ranges(count)
        assert moving.step(step) == fixed.step(step)
        assert files <= moving.version.files()
