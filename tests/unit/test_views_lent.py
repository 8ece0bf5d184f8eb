"""Joins that read what sources remember: the same as plain Python, and as joins that remember it themselves."""

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.unit.chain_stage import Machine, apart, built, hashes_of, join, project, rows_of, source
from tidemill.views.chain.stations import JoinStation
from tidemill.views.circuit.operators import Operator

WEAK = 0xC100_0000_0000_0001
"""Few bits: three that tell ranges apart, and one that keys have alone in a trace that is fine."""

VALUES: dict[str, tuple[Any, ...]] = {
    "int": (None, 0, 1, 2, -7),
    "bigint": (None, 0, 1),
    "double": (None, 0.0, -0.0, math.nan, 1.5, -1.5),
    "string": (None, "", "a", "b"),
}


@dataclass(frozen=True)
class Shape:
    """A join of columns of two tables, or of one with itself, and how often it reads what a source has.

    Args:
        tables: the types of each table's columns.
        left: the table of the left side, and which of its columns.
        right: the same of the right side.
        keys: pairs of columns of the sides.
        lent: how many sides are read at sources.
    """

    tables: dict[str, tuple[str, ...]]
    left: tuple[str, tuple[int, ...]]
    right: tuple[str, tuple[int, ...]]
    keys: tuple[tuple[int, int], ...]
    lent: int = 2

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
    "by another": Shape({"a": ("int", "int", "string")}, ("a", (0, 2)), ("a", (1, 2)), ((0, 0),), lent=1),
    "few columns": Shape(
        {"a": ("int", "double"), "b": ("int", "string")}, ("a", (0,)), ("b", (0,)), ((0, 0),)
    ),
}


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, list[tuple[int, dict[str, list[tuple[Any, int]]]]]]:
    """A shape, and steps: in how many ranges, and the rows of each table with their weights."""
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
    """What tells rows apart: -0.0 is not 0.0, and NaN is NaN."""
    return tuple(map(repr, row))


def are_equal(one: Any, other: Any) -> bool:
    """Whether `=` is true, as in Spark."""
    if one is None or other is None:
        return False
    return bool(one == other) or (one != one and other != other)


def joined(shape: Shape, net: dict[str, dict[tuple[str, ...], tuple[Any, int]]]) -> Counter[tuple[str, ...]]:
    """The join of what is there, by plain Python."""
    sides = [
        [(tuple(row[place] for place in places), weight) for row, weight in net[table].values() if weight > 0]
        for table, places in (shape.left, shape.right)
    ]
    found: Counter[tuple[str, ...]] = Counter()
    for left, times in sides[0]:
        for right, again in sides[1]:
            if all(are_equal(left[one], right[other]) for one, other in shape.keys):
                found[bits(left + right)] += times * again
    return found


def counted(given: list[Any]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for row, weight in rows_of(given):
        found[bits(row)] += weight
    return found


def there(found: Counter[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    return {row: weight for row, weight in found.items() if weight}


@pytest.mark.rule("DBSP-12", "DBSP-21")
@pytest.mark.parametrize("mask", [None, WEAK], ids=["hashes", "weak hashes"])
@settings(max_examples=40)
@given(history=histories())
def test_a_join_that_reads_sources_is_the_join_of_what_is_there(
    mask: int | None, history: tuple[str, list[tuple[int, dict[str, list[tuple[Any, int]]]]]]
) -> None:
    name, steps = history
    shape = SHAPES[name]
    chain = built({"v": shape.operator}, {})
    (placed,) = [one for one in chain.stations if isinstance(one.station, JoinStation)]
    assert isinstance(placed.station, JoinStation)
    assert sum(one is not None for one in placed.station.lent) == shape.lent
    machines = Machine(chain), Machine(apart(chain))
    outs: tuple[Counter[tuple[str, ...]], ...] = (Counter(), Counter())
    net: dict[str, dict[tuple[str, ...], tuple[Any, int]]] = {table: {} for table in shape.tables}
    with nullcontext() if mask is None else hashes_of(mask):
        for count, changes in steps:
            for table, rows in changes.items():
                for row, weight in rows:
                    net[table][bits(row)] = row, net[table].get(bits(row), (row, 0))[1] + weight
            wanted = there(joined(shape, net))
            for machine, out in zip(machines, outs, strict=True):
                out.update(counted(machine.step(changes, count)[placed.number]))
                assert there(out) == wanted
        assert len(machines[0].rows("aside")) == sum(
            weight < 0 for rows in net.values() for _, weight in rows.values()
        )
        held = {table: [*rows.values()] for table, rows in net.items()}
        assert there(counted(machines[0].load(held, 2)[placed.number])) == wanted
