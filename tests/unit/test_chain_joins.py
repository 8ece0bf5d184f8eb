"""Joins with conditions: which operators compute them, and where their conditions are checked."""

from dataclasses import replace

import pytest

from tests.unit.memory_chain import built, join, source, types_of
from tidemill.views.chain.chain import Chain
from tidemill.views.chain.join_operators import StatefulJoin, StatefulMatches
from tidemill.views.chain.keyed_operators import GatherRows
from tidemill.views.chain.preparation import prepared
from tidemill.views.circuit.expr import Expr, binary, column, text
from tidemill.views.circuit.operators import Filter, Join, JoinKey, JoinKind, Operator, ViewOutput

A, B = source("a", "int", "int"), source("b", "int", "int")
LEFT = binary(column(1), ">", text("1"))
RIGHT = binary(column(3), ">", text("2"))
BOTH = binary(column(1), "<", column(3))
RIGHT_BELOW = binary(column(1), ">", text("2"))


def conditional(kind: JoinKind, *conditions: Expr) -> Join:
    return replace(join(A, B, (0, 0)), join=kind, residual=conditions)


def after(op: Operator) -> Operator:
    width = len(types_of(op)[op])
    return prepared(ViewOutput(op, tuple(f"y{n}" for n in range(width)))).input


def filters(op: Operator) -> tuple[Expr, ...]:
    return op.conditions if isinstance(op, Filter) else ()


@pytest.mark.parametrize(
    ("kind", "left", "right", "staying"),
    [
        ("left", (), (RIGHT_BELOW,), (LEFT, BOTH)),
        ("right", (LEFT,), (), (RIGHT, BOTH)),
        ("full", (), (), (LEFT, RIGHT, BOTH)),
        ("semi", (LEFT,), (RIGHT_BELOW,), (BOTH,)),
        ("anti", (), (RIGHT_BELOW,), (LEFT, BOTH)),
    ],
)
def test_conditions_move_below_a_join_only_where_rows_without_a_match_are_not_returned(
    kind: JoinKind, left: tuple[Expr, ...], right: tuple[Expr, ...], staying: tuple[Expr, ...]
) -> None:
    op = after(conditional(kind, LEFT, RIGHT, BOTH))
    assert isinstance(op, Join)
    assert (filters(op.left), filters(op.right), op.residual) == (left, right, staying)


def test_not_in_with_a_key_is_an_anti_join_with_a_condition() -> None:
    op = replace(conditional("null-aware anti", BOTH), null_aware=(JoinKey(column(1), column(1)),))
    anti = after(op)
    assert isinstance(anti, Join)
    assert (anti.join, anti.null_aware) == ("anti", ())
    assert [condition.sql() for condition in anti.residual] == ["c1 < c3", "coalesce(c1 = c3, true)"]


def operators(op: Operator) -> Chain:
    return built({"v": op}, {})


@pytest.mark.parametrize(
    ("kind", "returned"),
    [
        ("left", [(False, 0, 2)]),
        ("right", [(False, 2, 0)]),
        ("full", [(False, 0, 2), (False, 2, 0)]),
        ("semi", [(True, 0, 0)]),
        ("anti", [(False, 0, 0)]),
    ],
)
def test_a_join_with_a_condition_pairs_rows_and_counts_the_pairs_of_the_rows_it_returns(
    kind: JoinKind, returned: list[tuple[bool, int, int]]
) -> None:
    chain = operators(conditional(kind, BOTH))
    placed = [each.operator for each in chain.operators]
    (pairs,) = (operator for operator in placed if isinstance(operator, StatefulJoin))
    assert pairs.kind == "inner"
    assert pairs.shared[0] is not None
    assert pairs.shared[1] is not None
    rows = [operator for operator in placed if isinstance(operator, StatefulMatches)]
    assert [(each.matched, len(each.before), len(each.after)) for each in rows] == returned
    assert chain.jobs == 1
    assert not any(isinstance(operator, GatherRows) for operator in placed)


@pytest.mark.parametrize("kind", ["left", "right", "full", "semi", "anti"])
def test_a_join_without_a_condition_is_one_operator(kind: JoinKind) -> None:
    chain = operators(conditional(kind))
    (op,) = (each.operator for each in chain.operators if isinstance(each.operator, StatefulJoin))
    assert op.kind == kind
    assert not any(isinstance(each.operator, StatefulMatches) for each in chain.operators)
