"""Joins that read what sources remember: the same as plain Python, and as joins with traces of their own."""

import math
import random
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.unit.lent_stage import Machine, apart, built, hashes_of, join, project, rows_of, source
from tidemill.views.chain.native_operators import StatefulJoin
from tidemill.views.chain.source_operators import ChangesSource
from tidemill.views.circuit.operators import Operator

WEAK = 0xC100_0000_0000_0001
"""Few bits: three that tell ranges apart, and one that keys have alone in a trace that is fine."""
LOWER = 0xFFFF_FFFF
"""All keys share the half that sources go by, and none the other."""

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


@pytest.mark.slow
@pytest.mark.rule("DBSP-21")
@pytest.mark.parametrize("mask", [None, WEAK, LOWER], ids=["hashes", "weak hashes", "half hashes"])
@settings(max_examples=25)
@given(history=histories())
def test_a_join_that_reads_sources_is_the_join_of_what_is_there(
    mask: int | None, history: tuple[str, list[tuple[int, dict[str, list[tuple[Any, int]]]]]]
) -> None:
    name, steps = history
    shape = SHAPES[name]
    chain = built({"v": shape.operator}, {})
    (placed,) = [one for one in chain.operators if isinstance(one.operator, StatefulJoin)]
    assert isinstance(placed.operator, StatefulJoin)
    assert sum(one is not None for one in placed.operator.lent) == shape.lent
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


@pytest.mark.parametrize("mask", [WEAK, LOWER], ids=["weak hashes", "half hashes"])
def test_a_source_and_a_join_may_have_rows_in_different_orders(mask: int) -> None:
    """Rows come from a source by the rest of the row where keys share half of a hash; a trace by the key."""
    shape, chance = SHAPES["by another"], random.Random(4)
    chain = built({"v": shape.operator}, {})
    (placed,) = [one for one in chain.operators if isinstance(one.operator, StatefulJoin)]
    net: dict[str, dict[tuple[str, ...], tuple[Any, int]]] = {"a": {}}
    out: Counter[tuple[str, ...]] = Counter()
    with hashes_of(mask):
        machine = Machine(chain)
        for count in (1, 2, 1):
            numbers = ((chance.randrange(40), chance.randrange(40)) for _ in range(60))
            rows = [((*each, chance.choice("ab")), 1) for each in numbers]
            for row, weight in rows:
                net["a"][bits(row)] = row, net["a"].get(bits(row), (row, 0))[1] + weight
            out.update(counted(machine.step({"a": rows}, count)[placed.number]))
            assert there(out) == there(joined(shape, net))


@pytest.mark.rule("DBSP-21")
@pytest.mark.parametrize("shape", ["numbers", "whole rows"])
@pytest.mark.parametrize("count", [2, 7])
def test_a_row_set_aside_in_one_range_is_netted_when_it_comes_in_several(shape: str, count: int) -> None:
    chain = built({"v": SHAPES[shape].operator}, {})
    for machine in (Machine(chain), Machine(apart(chain))):
        row, partner = ((1, 0), ("a", 1)) if shape == "numbers" else (("a", 1), (1, "a"))
        machine.step({"a": [(row, -1)], "b": [(partner, 1)]}, 1)
        assert [one["_w"] for one in machine.rows("aside")] == [-1]
        given = machine.step({"a": [(row, 1)]}, count)
        assert not any(rows_of(tables) for tables in given.values()), "nobody sees it"
        assert machine.rows("aside") == []

        # from now on it comes as any other
        for number, tables in machine.step({"a": [(row, 1)]}, count).items():
            reads = isinstance(chain.operators[number].operator, StatefulJoin)
            found = rows_of(tables)
            if reads:
                assert found == [(row + partner, 1)]
            elif found:
                assert found == [(row, 1)]


@pytest.mark.rule("DBSP-21")
@pytest.mark.parametrize("mask", [None, WEAK], ids=["hashes", "weak hashes"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_no_join_gives_a_row_in_quarantine_not_even_to_take_it_back(count: int, mask: int | None) -> None:
    """An expression above could raise: a division by what was never there."""
    chain = built({"v": SHAPES["floats"].operator}, {})
    (placed,) = [one for one in chain.operators if isinstance(one.operator, StatefulJoin)]
    with nullcontext() if mask is None else hashes_of(mask):
        machine = Machine(chain)
        machine.step({"a": [((0.0, 1), -2), ((-0.0, 1), 1), ((0.0, 2), 1)], "b": []}, 2)
        given = machine.step({"b": [((0.0,), 1)]}, count)[placed.number]
        assert sorted(rows_of(given), key=repr) == [((1, -0.0, 0.0), 1), ((2, 0.0, 0.0), 1)]
        machine.step({"a": [((0.0, 1), 1)]}, count)
        given = machine.step({"b": [((0.0,), 1)]}, count)[placed.number]
        assert sorted(rows_of(given), key=repr) == [((1, -0.0, 0.0), 1), ((2, 0.0, 0.0), 1)]
        machine.step({"a": [((0.0, 1), 2)]}, count)
        given = machine.step({"b": [((0.0,), 1)]}, count)[placed.number]
        assert len(there(counted(given))) == 3


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
def test_a_join_by_the_key_of_a_dataset_reads_what_was_written_last(
    mask: int | None, steps: list[tuple[int, list[tuple[Any, bool, int]], list[tuple[Any, int]]]]
) -> None:
    chain = built(
        {"v": join(source("a", "double", "string"), source("k", "bigint", "double", key=(1,)), (0, 1))},
        {"k": "keyed"},
    )
    (placed,) = [one for one in chain.operators if isinstance(one.operator, StatefulJoin)]
    assert {name for name, _, _ in placed.borrowed} == {"left.main", "left.aside", "right.main"}
    machine = Machine(chain)
    last: dict[str, tuple[Any, Any]] = {}
    net: Counter[str] = Counter()
    out: Counter[tuple[str, ...]] = Counter()
    with nullcontext() if mask is None else hashes_of(mask):
        for position, (count, writes, changes) in enumerate(steps):
            upserts = [
                ((value, key, gone, position, ordinal), 1)
                for ordinal, (key, gone, value) in enumerate(writes)
            ]
            for key, gone, value in writes:
                same = repr(key + 0.0 if key is not None else None)
                last[same] = (key, None) if gone else (key, value)
            for key, weight in changes:
                net[repr(key)] += weight
            given = machine.step(
                {"a": [((key, "t"), weight) for key, weight in changes], "k": upserts}, count
            )
            out.update(counted(given[placed.number]))
            wanted = {
                bits((one, "t", value, key)): net[repr(one)]
                for key, value in last.values()
                for one in VALUES["double"]
                if value is not None and are_equal(one, key) and net[repr(one)] > 0
            }
            assert there(out) == wanted


def test_a_source_remembers_by_the_key_and_by_the_rest_of_the_row_only_where_there_is_some() -> None:
    found = {}
    for name in ("numbers", "whole rows", "floats"):
        for one in built({"v": SHAPES[name].operator}, {}).operators:
            if isinstance(one.operator, ChangesSource):
                found[name, one.operator.types] = one.operator.layouts["main"]
    fine = {name: layout.fine for (name, _), layout in found.items()}
    assert fine == {"numbers": True, "whole rows": False, "floats": True}
