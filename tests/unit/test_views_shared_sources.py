"""Joins that read the traces of sources: equal to plain Python, and to joins with their own traces."""

import math
import random
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.unit.memory_chain import (
    MemoryChain,
    built,
    join,
    masked_hashes,
    project,
    rows_of,
    source,
    without_sharing,
)
from tidemill.views.chain.chain import Chain, PlacedOperator
from tidemill.views.chain.join_operators import StatefulJoin
from tidemill.views.chain.source_operators import ChangesSource
from tidemill.views.circuit.operators import Operator

WEAK = 0xC100_0000_0000_0001
"""Few bits: three that distinguish ranges, and one that depends on the key only in a fine trace."""
LOWER = 0xFFFF_FFFF
"""All keys share the half of the hash that sources use, and no two keys share the other half."""

VALUES: dict[str, tuple[Any, ...]] = {
    "int": (None, 0, 1, 2, -7),
    "bigint": (None, 0, 1),
    "double": (None, 0.0, -0.0, math.nan, 1.5, -1.5),
    "string": (None, "", "a", "b"),
}


@dataclass(frozen=True)
class Shape:
    """A join of columns of two tables, or of one with itself, and how many sides read a source's trace.

    Args:
        tables: the types of each table's columns.
        left: the table of the left side, and its columns.
        right: the table of the right side, and its columns.
        keys: pairs of columns of the sides.
        shared: how many sides read a source's trace.
    """

    tables: dict[str, tuple[str, ...]]
    left: tuple[str, tuple[int, ...]]
    right: tuple[str, tuple[int, ...]]
    keys: tuple[tuple[int, int], ...]
    shared: int = 2

    @property
    def operator(self) -> Operator:
        sides = [
            project(source(table, *self.tables[table]), *places) for table, places in (self.left, self.right)
        ]
        return join(sides[0], sides[1], *self.keys)


SHAPES = {
    "numbers": Shape(
        {"a": ("int", "bigint"), "b": ("string", "int")}, ("a", (0, 1)), ("b", (0, 1)), ((0, 1),)
    ),
    "floats": Shape({"a": ("double", "int"), "b": ("double",)}, ("a", (1, 0)), ("b", (0,)), ((1, 0),)),
    "texts": Shape({"a": ("int", "string"), "b": ("string", "int")}, ("a", (1, 1)), ("b", (0, 1)), ((0, 0),)),
    "several": Shape(
        {"a": ("int", "string", "double"), "b": ("double", "bigint", "int", "string")},
        ("a", (0, 1, 2)),
        ("b", (3, 2, 0)),
        ((1, 0), (2, 2), (0, 1)),
    ),
    "whole rows": Shape(
        {"a": ("string", "int"), "b": ("int", "string")}, ("a", (0, 1)), ("b", (0, 1)), ((0, 1), (1, 0))
    ),
    "with itself": Shape({"a": ("int", "double")}, ("a", (0, 1)), ("a", (1, 0)), ((0, 1),)),
    "by another": Shape({"a": ("int", "int", "string")}, ("a", (0, 2)), ("a", (1, 2)), ((0, 0),), shared=1),
    "few columns": Shape(
        {"a": ("int", "double"), "b": ("int", "string")}, ("a", (0,)), ("b", (0,)), ((0, 0),)
    ),
}


def joins_of(chain: Chain) -> list[PlacedOperator]:
    return [placed for placed in chain.operators if isinstance(placed.operator, StatefulJoin)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, list[tuple[int, dict[str, list[tuple[Any, int]]]]]]:
    """Draw a shape and steps: the number of ranges, and the rows of each table with their weights."""
    name = draw(st.sampled_from(sorted(SHAPES)))
    changes = {
        table: st.lists(
            st.tuples(st.tuples(*(st.sampled_from(VALUES[kind]) for kind in types)), st.integers(-2, 2)),
            max_size=7,
        )
        for table, types in SHAPES[name].tables.items()
    }
    steps = st.lists(
        st.tuples(st.sampled_from([1, 2, 7]), st.fixed_dictionaries(changes)), min_size=2, max_size=4
    )
    return name, draw(steps)


def bits(row: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the value of a row as a source with deletes stores it: -0.0 is 0.0, and NaN equals NaN."""
    return tuple(repr(value + 0.0 if isinstance(value, float) else value) for value in row)


def canonical(key: float | None) -> str:
    """Return the key as Spark groups it: -0.0 is 0.0."""
    return repr(key if key is None else key + 0.0)


def are_equal(left: Any, right: Any) -> bool:
    """Return whether `=` is true, as in Spark."""
    if left is None or right is None:
        return False
    return bool(left == right) or (left != left and right != right)


def joined(shape: Shape, net: dict[str, dict[tuple[str, ...], tuple[Any, int]]]) -> Counter[tuple[str, ...]]:
    """Join the current rows with plain Python."""
    sides = [
        [(tuple(row[place] for place in places), weight) for row, weight in net[table].values() if weight > 0]
        for table, places in (shape.left, shape.right)
    ]
    result: Counter[tuple[str, ...]] = Counter()
    for left, times in sides[0]:
        for right, right_times in sides[1]:
            if all(are_equal(left[left_key], right[right_key]) for left_key, right_key in shape.keys):
                result[bits(left + right)] += times * right_times
    return result


def counted(tables: list[Any]) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for row, weight in rows_of(tables):
        counts[bits(row)] += weight
    return counts


def nonzero(counts: Counter[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    return {row: weight for row, weight in counts.items() if weight}


@pytest.mark.slow
@pytest.mark.rule("DBSP-21")
@pytest.mark.parametrize(
    "mask",
    [None, pytest.param(WEAK, marks=pytest.mark.crash), LOWER],
    ids=["hashes", "weak hashes", "half hashes"],
)
@settings(max_examples=25)
@given(history=histories())
def test_a_join_that_reads_sources_joins_the_current_rows(
    mask: int | None, history: tuple[str, list[tuple[int, dict[str, list[tuple[Any, int]]]]]]
) -> None:
    name, steps = history
    shape = SHAPES[name]
    chain = built({"v": shape.operator}, {})
    (placed,) = joins_of(chain)
    assert isinstance(placed.operator, StatefulJoin)
    assert sum(source is not None for source in placed.operator.shared) == shape.shared
    chains = MemoryChain(chain), MemoryChain(without_sharing(chain))
    outputs: tuple[Counter[tuple[str, ...]], ...] = (Counter(), Counter())
    net: dict[str, dict[tuple[str, ...], tuple[Any, int]]] = {table: {} for table in shape.tables}
    with nullcontext() if mask is None else masked_hashes(mask):
        for count, changes in steps:
            for table, rows in changes.items():
                for row, weight in rows:
                    net[table][bits(row)] = row, net[table].get(bits(row), (row, 0))[1] + weight
            expected = nonzero(joined(shape, net))
            for memory_chain, output in zip(chains, outputs, strict=True):
                output.update(counted(memory_chain.step(changes, count)[placed.number]))
                assert nonzero(output) == expected
        assert len(chains[0].rows("aside")) == sum(
            weight < 0 for rows in net.values() for _, weight in rows.values()
        )
        current = {table: [*rows.values()] for table, rows in net.items()}
        assert nonzero(counted(chains[0].load(current, 2)[placed.number])) == expected


@pytest.mark.parametrize("mask", [WEAK, LOWER], ids=["weak hashes", "half hashes"])
def test_a_source_and_a_join_may_have_rows_in_different_orders(mask: int) -> None:
    """If keys share half of a hash, a source orders rows by the rest of the row, a trace by the key."""
    shape, rng = SHAPES["by another"], random.Random(4)
    chain = built({"v": shape.operator}, {})
    (placed,) = joins_of(chain)
    net: dict[str, dict[tuple[str, ...], tuple[Any, int]]] = {"a": {}}
    output: Counter[tuple[str, ...]] = Counter()
    with masked_hashes(mask):
        memory_chain = MemoryChain(chain)
        for count in (1, 2, 1):
            numbers = ((rng.randrange(40), rng.randrange(40)) for _ in range(60))
            rows = [((*each, rng.choice("ab")), 1) for each in numbers]
            for row, weight in rows:
                net["a"][bits(row)] = row, net["a"].get(bits(row), (row, 0))[1] + weight
            output.update(counted(memory_chain.step({"a": rows}, count)[placed.number]))
            assert nonzero(output) == nonzero(joined(shape, net))


@pytest.mark.rule("DBSP-21")
@pytest.mark.parametrize("shape", ["numbers", "whole rows"])
@pytest.mark.parametrize("count", [2, 7])
def test_a_row_set_aside_in_one_range_is_netted_by_an_insertion_in_several(shape: str, count: int) -> None:
    chain = built({"v": SHAPES[shape].operator}, {})
    for memory_chain in (MemoryChain(chain), MemoryChain(without_sharing(chain))):
        row, partner = ((1, 0), ("a", 1)) if shape == "numbers" else (("a", 1), (1, "a"))
        memory_chain.step({"a": [(row, -1)], "b": [(partner, 1)]}, 1)
        assert [aside["_w"] for aside in memory_chain.rows("aside")] == [-1]
        outputs = memory_chain.step({"a": [(row, 1)]}, count)
        assert not any(rows_of(tables) for tables in outputs.values()), "no operator outputs it"
        assert memory_chain.rows("aside") == []

        # another insertion is an ordinary one
        for number, tables in memory_chain.step({"a": [(row, 1)]}, count).items():
            is_join = isinstance(chain.operators[number].operator, StatefulJoin)
            output = rows_of(tables)
            if is_join:
                assert output == [(row + partner, 1)]
            elif output:
                assert output == [(row, 1)]


@pytest.mark.rule("DBSP-21")
@pytest.mark.parametrize("mask", [None, WEAK], ids=["hashes", "weak hashes"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_no_join_outputs_a_quarantined_row_not_even_to_retract_it(count: int, mask: int | None) -> None:
    """An expression after the join could raise on it, such as a division."""
    chain = built({"v": SHAPES["floats"].operator}, {})
    (placed,) = joins_of(chain)
    with nullcontext() if mask is None else masked_hashes(mask):
        memory_chain = MemoryChain(chain)
        memory_chain.step({"a": [((0.0, 1), -2), ((-0.0, 1), 1), ((0.0, 2), 1), ((-0.0, 3), 1)], "b": []}, 2)
        output = memory_chain.step({"b": [((0.0,), 1)]}, count)[placed.number]
        assert sorted(rows_of(output), key=repr) == [((2, 0.0, 0.0), 1), ((3, 0.0, 0.0), 1)]
        memory_chain.step({"a": [((-0.0, 1), 1)]}, count)
        output = memory_chain.step({"b": [((0.0,), 1)]}, count)[placed.number]
        assert sorted(rows_of(output), key=repr) == [((2, 0.0, 0.0), 1), ((3, 0.0, 0.0), 1)]
        memory_chain.step({"a": [((0.0, 1), 2)]}, count)
        output = memory_chain.step({"b": [((0.0,), 1)]}, count)[placed.number]
        assert len(nonzero(counted(output))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None, WEAK], ids=["hashes", "weak hashes"])
@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 7]),
            st.lists(
                st.tuples(st.sampled_from(VALUES["double"]), st.booleans(), st.integers(0, 2)), max_size=5
            ),
            st.lists(st.tuples(st.sampled_from(VALUES["double"]), st.integers(-2, 2)), max_size=5),
        ),
        min_size=2,
        max_size=4,
    )
)
def test_a_join_by_the_key_of_a_dataset_reads_the_last_writes(
    mask: int | None, steps: list[tuple[int, list[tuple[Any, bool, int]], list[tuple[Any, int]]]]
) -> None:
    chain = built(
        {"v": join(source("a", "double", "string"), source("k", "bigint", "double", key=(1,)), (0, 1))},
        {"k": "keyed"},
    )
    (placed,) = joins_of(chain)
    assert {name for name, _, _ in placed.borrowed} == {"left.main", "left.aside", "right.main"}
    memory_chain = MemoryChain(chain)
    last: dict[str, tuple[Any, Any]] = {}
    net: Counter[str] = Counter()
    output: Counter[tuple[str, ...]] = Counter()
    with nullcontext() if mask is None else masked_hashes(mask):
        for position, (count, writes, changes) in enumerate(steps):
            upserts = [
                ((value, key, deletes, position, ordinal), 1)
                for ordinal, (key, deletes, value) in enumerate(writes)
            ]
            for key, deletes, value in writes:
                last[canonical(key)] = (key, None) if deletes else (key, value)
            for key, weight in changes:
                net[canonical(key)] += weight
            outputs = memory_chain.step(
                {"a": [((key, "t"), weight) for key, weight in changes], "k": upserts}, count
            )
            output.update(counted(outputs[placed.number]))
            expected = {
                bits((left_key, "t", value, key)): net[canonical(left_key)]
                for key, value in last.values()
                for left_key in VALUES["double"]
                if value is not None and are_equal(left_key, key) and net[canonical(left_key)] > 0
            }
            assert nonzero(output) == expected


def test_a_source_has_a_fine_trace_only_if_the_key_is_not_the_whole_row() -> None:
    layouts = {}
    for name in ("numbers", "whole rows", "floats"):
        for placed in built({"v": SHAPES[name].operator}, {}).operators:
            if isinstance(placed.operator, ChangesSource):
                layouts[name, placed.operator.types] = placed.operator.layouts["main"]
    fine = {name: layout.fine for (name, _), layout in layouts.items()}
    assert fine == {"numbers": True, "whole rows": False, "floats": True}
