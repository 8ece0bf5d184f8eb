"""Many values of few groups: the shortcuts that look at few of them do not change the result."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemill.views.aggregates.registry import Accumulator
from tidemill.views.kernels.extremes import BEST, ExtremeKernel, GroupValues
from tidemill.views.kernels.key_matching import distinct_keys, positions
from tidemill.views.trace.consolidation import consolidate
from tidemill.views.trace.key_hash import key_hashes
from tidemill.views.trace.layout import Layout

KEYS = pa.schema([("k", pa.int64())])
SIZES = [1, 15, 16, 17, 31, 63, 64, 65, 200, 1_000, 3]


@pytest.mark.parametrize("kind", [Accumulator.LEAST, Accumulator.GREATEST])
@pytest.mark.parametrize("span", [5, 40, 10**6])
@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
@pytest.mark.rule("DBSP-13")
def test_the_best_of_many_values_are_stored_and_truncation_is_marked(
    kind: Accumulator, span: int, order: str
) -> None:
    chance = np.random.default_rng(span)
    group = np.repeat(np.arange(len(SIZES)), SIZES)
    values = chance.integers(-span, span, len(group))
    if order != "random":
        values = np.sort(values)[:: 1 if order == "ascending" else -1]
    weights = chance.integers(1, 4, len(group))
    groups = pa.table({"_h": pa.array(np.arange(len(SIZES))), "k": pa.array(np.arange(len(SIZES)))})
    nothing = GroupValues(np.empty(0, np.int64), pa.array([], pa.int64()), np.empty(0, np.int64))
    for refill in (False, True):
        ranked = ExtremeKernel(kind, KEYS, pa.int64()).rank(
            groups,
            nothing,
            GroupValues(group, pa.array(values), weights),
            np.zeros(len(SIZES), bool),
            refill=refill,
        )
        state: Counter[Any] = Counter()
        for row in ranked.state.to_pylist():
            state[row["k"], row["_v"]] += row["_w"]
        for number in range(len(SIZES)):
            members: Counter[int] = Counter()
            for value, weight in zip(values[group == number], weights[group == number], strict=True):
                members[int(value)] += int(weight)
            best = sorted(members, reverse=kind is Accumulator.GREATEST)
            assert ranked.after[number].as_py() == best[0]
            stored = [value for (k, value) in state if k == number and value is not None]
            stored.sort(reverse=kind is Accumulator.GREATEST)
            assert stored == best[: len(stored)], "complete up to the worst stored value"
            assert [state[number, value] for value in stored] == [members[value] for value in stored]
            marks = state[number, None] + (1 if refill else 0)  # a refill finds the mark already stored
            assert marks == (len(best) > len(stored))
            # slightly fewer than BEST if values repeat, but never none
            assert len(stored) == min(BEST, len(best)) or (len(best) < SIZES[number] and stored)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float64()])
def test_grouping_neighbours_does_not_change_the_matches(kind: pa.DataType, shared: bool) -> None:
    """Keys may share one hash; then neighbours with an equal hash have different keys."""
    keys = pa.array([None, *range(40)], pa.int64()).cast(kind)
    of_row = np.repeat(np.arange(41), 200)
    if shared:
        of_row = np.random.default_rng(1).permutation(of_row)
    row_keys = keys.take(pa.array(of_row))
    hashes = np.zeros(len(of_row), np.int64) if shared else key_hashes([row_keys], len(of_row))
    rows = pa.table({"_h": pa.array(hashes), "k": row_keys})
    if not shared:
        rows = rows.take(pa.array(np.argsort(hashes, kind="stable")))
    all_keys = distinct_keys([rows], ["k"])
    assert sorted(map(str, all_keys["k"].to_pylist())) == sorted(map(str, keys.to_pylist()))
    targets = all_keys.slice(3)
    places = {value: place for place, value in enumerate(targets["k"].to_pylist())}
    matches = positions(targets, rows, ["k"])
    assert matches.tolist() == [places.get(value, -1) for value in rows["k"].to_pylist()]


@pytest.mark.parametrize("constant", ["none", "some", "all"])
def test_many_rows_of_few_groups_are_consolidated_exactly(constant: str) -> None:
    """Too many rows to sort: constant sums are computed from the count, others are added up."""
    count, groups = 70_000, 300
    chance = np.random.default_rng(3)
    of_row = chance.integers(0, groups, count)
    layout = Layout(pa.schema([("t", pa.string()), ("n", pa.int64())]), 2, ("a", "b", "c"))
    sums = {
        "a": np.ones(count, np.int64) if constant != "none" else chance.integers(-9, 9, count),
        "b": np.zeros(count, np.int64) if constant != "none" else chance.integers(-9, 9, count),
        "c": np.full(count, -7) if constant == "all" else chance.integers(-(2**40), 2**40, count),
    }
    texts = pa.array([None, *(f"t{n}" for n in range(groups - 1))]).take(pa.array(of_row))
    keys = [texts, pa.array(of_row % 7)]
    rows = pa.table(
        [pa.array(key_hashes(keys, count)), *keys, *map(pa.array, sums.values())], layout.schema.names
    )
    expected = {name: np.zeros(groups, np.int64) for name in sums}
    for name, values in sums.items():
        np.add.at(expected[name], of_row, values)
    result = consolidate(rows, layout)
    assert result["_h"].to_numpy().tolist() == sorted(result["_h"].to_pylist())
    places = [0 if text is None else int(text[1:]) + 1 for text in result["t"].to_pylist()]
    assert sorted(places) == [n for n in range(groups) if any(expected[name][n] for name in sums)]
    for name in sums:
        assert result[name].to_pylist() == [int(expected[name][place]) for place in places]
