"""The key of a source's trace, and the joins that read it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.unit.memory_chain import built, join, project, source, types_of
from tidemill.views.chain.chain import Chain, PlacedOperator
from tidemill.views.chain.join_operators import StatefulJoin
from tidemill.views.chain.source_operators import ChangesSource
from tidemill.views.chain.source_sharing import side_key, source_keys
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import call, column
from tidemill.views.circuit.operators import (
    Filter,
    JoinKey,
    JoinKind,
    Operator,
    Project,
    UnionAll,
    Window,
    WindowCall,
)

A = source("a", "int", "string", "bigint")
B = source("b", "int", "string", "bigint")
C = source("c", "bigint", "string", key=(0,))


def chosen(*roots: Operator) -> dict[str, tuple[int, ...]]:
    """Return the key of each table's source."""
    return {table.table: key for table, key in source_keys(walk(*roots), types_of(*roots)).items()}


def shared(*roots: Operator, kinds: Mapping[str, str] | None = None) -> tuple[Chain, list[tuple[bool, bool]]]:
    """Return the chain of some joins, and for each which sides read a source's trace."""
    chain = built({f"v{n}": root for n, root in enumerate(roots)}, {"c": "keyed"} | dict(kinds or {}))
    joins = [placed.operator for placed in chain.operators if isinstance(placed.operator, StatefulJoin)]
    return chain, [(join.shared[0] is not None, join.shared[1] is not None) for join in joins]


def joins_of(chain: Chain) -> list[PlacedOperator]:
    return [placed for placed in chain.operators if isinstance(placed.operator, StatefulJoin)]


def keys(chain: Chain) -> dict[str, tuple[int, ...]]:
    """Return the keys of sources, by the end of their names."""
    return {
        placed.id.partition(".")[2]: placed.operator.key
        for placed in chain.operators
        if isinstance(placed.operator, ChangesSource)
    }


# --- the choice of a key


def test_a_source_has_the_key_of_most_joins() -> None:
    by_text = [join(A, B, (1, 1)), join(A, C, (1, 1))]
    assert chosen(join(A, B, (0, 0)), *by_text) == {"a": (1,), "b": (0,), "c": (1,)}
    chain, sides = shared(join(A, B, (0, 0)), *by_text)
    assert sides == [(False, True), (True, False), (True, False)]
    assert sorted(keys(chain)) == ["by0", "by1"]


def test_of_keys_with_equally_many_joins_the_first_columns_win_in_any_order_of_views() -> None:
    joins = [join(A, B, (2, 2)), join(A, B, (0, 0)), join(A, B, (0, 0), (1, 1))]
    for order in (joins, joins[::-1], [joins[1], joins[2], joins[0]]):
        assert chosen(*order) == {"a": (0,), "b": (0,)}


def test_a_join_that_several_views_share_counts_once() -> None:
    shared = join(A, B, (1, 1))
    views = [project(shared, 0), project(shared, 1), join(A, B, (0, 0)), join(A, C, (2, 0), (1, 1))]
    assert chosen(*views)["a"] == (0,)


def test_a_key_is_columns_in_the_order_of_the_join() -> None:
    swapped, ordered = join(A, B, (1, 1), (0, 0)), join(A, B, (0, 0), (1, 1))
    assert chosen(swapped) == {"a": (1, 0), "b": (1, 0)}
    chain, sides = shared(swapped, ordered)
    assert sides == [(False, False), (True, True)]
    assert keys(chain) == {"by0-1": (0, 1)}


def test_columns_are_traced_through_projections_to_the_source() -> None:
    projected = project(project(A, 2, 0, 1), 1, 1, 2)
    key = side_key(join(projected, B, (1, 0)), 0, types_of(join(projected, B, (1, 0))))
    assert key == (A, (0, 0, 1), (0,))
    assert shared(join(projected, B, (1, 0)))[1] == [(True, True)]


def test_a_table_joined_with_itself_by_one_key_is_stored_once() -> None:
    chain, sides = shared(join(A, A, (0, 0)))
    assert sides == [(True, True)]
    (placed,) = joins_of(chain)
    (origin,) = [each for each in chain.operators if isinstance(each.operator, ChangesSource)]
    assert not placed.traces
    assert placed.reads == frozenset(origin.traces.values())
    assert [name for name, _, _ in placed.borrowed] == [
        "left.main",
        "left.aside",
        "right.main",
        "right.aside",
    ]


@pytest.mark.parametrize("kind", ["left", "right", "full"])
def test_an_outer_join_reads_the_traces_of_both_sources(kind: JoinKind) -> None:
    assert shared(replace(join(A, B, (0, 0)), join=kind))[1] == [(True, True)]


@pytest.mark.parametrize("kind", ["semi", "anti"])
def test_a_semi_join_reads_rows_of_the_left_source_alone(kind: JoinKind) -> None:
    op = replace(join(A, B, (0, 0)), join=kind)
    assert chosen(op) == {"a": (0,)}
    chain, sides = shared(op)
    assert sides == [(True, False)]
    assert [sorted(placed.traces) for placed in joins_of(chain)] == [["right_keys"]]


# --- joins that share no source

SAFE = replace(
    join(A, B, (0, 0), (1, 1)), keys=(JoinKey(column(0), column(0)), JoinKey(column(1), column(1), True))
)
OTHER_TYPES = join(A, B, (0, 2))
FILTERED = join(
    Filter(A, (call("isnotnull", column(0)),)), Filter(B, (call("isnotnull", column(0)),)), (0, 0)
)
COMPUTED = join(Project(A, (call("abs", column(0)),)), Project(B, (call("abs", column(0)),)), (0, 0))
UNITED = join(UnionAll((A, A)), UnionAll((B, B)), (0, 0))
CROSS = replace(join(A, B, (0, 0)), keys=())


@pytest.mark.parametrize("op", [SAFE, OTHER_TYPES, CROSS], ids=lambda op: op.join)
def test_a_join_that_does_not_compare_stored_values_by_equality_shares_no_source(op: Operator) -> None:
    assert chosen(op) == {}


@pytest.mark.parametrize("op", [FILTERED, COMPUTED, UNITED], ids=["filter", "expression", "union"])
def test_a_join_of_a_part_of_a_source_shares_no_source(op: Operator) -> None:
    assert source_keys(walk(op), types_of(op)) == {}


def test_one_column_compared_with_two_is_not_a_key_but_the_two_are() -> None:
    assert chosen(join(A, B, (0, 0), (0, 0))) == {}
    three = source("d", "int", "int")
    assert chosen(join(A, three, (0, 0), (0, 1))) == {"d": (0, 1)}


@pytest.mark.parametrize("op", [SAFE, OTHER_TYPES, UNITED], ids=["null-safe", "types", "union"])
def test_joins_without_a_shared_source_store_both_sides(op: Operator) -> None:
    chain, sides = shared(op)
    assert sides == [(False, False)]
    assert set(keys(chain).values()) == {()}
    (placed,) = joins_of(chain)
    assert set(placed.traces) == {"left", "right"}
    assert placed.borrowed == ()


def test_an_append_only_dataset_has_no_trace_to_share() -> None:
    chain, sides = shared(join(A, B, (0, 0)), kinds={"a": "rows"})
    assert sides == [(False, True)]
    (placed,) = joins_of(chain)
    assert set(placed.traces) == {"left"}
    assert {trace.rpartition(".")[2] for trace in placed.reads} == {"left", "main", "aside"}


def test_a_keyed_dataset_is_shared_by_its_own_key_only() -> None:
    assert shared(join(A, C, (2, 0)))[1] == [(True, True)]
    assert shared(join(A, C, (1, 1)))[1] == [(True, False)]


# --- jobs


def test_a_join_in_a_later_job_than_its_source_stores_its_rows() -> None:
    window = Window(B, (column(0),), (), (WindowCall(call("stddev", column(1)), "stddev", (column(1),)),))
    late = join(A, window, (0, 0))
    chain = built({"late": late, "now": join(A, B, (0, 0))}, {})
    joins = {placed.job: placed for placed in joins_of(chain)}
    assert set(joins) == {0, 1}
    assert set(joins[0].traces) == set()
    assert set(joins[1].traces) == {"left", "right"}
    assert joins[1].borrowed == ()
    assert not any(joins[1].operator.is_local(side) for side in (0, 1))
