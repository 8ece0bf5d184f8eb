"""Operators that are recomputed inside a chain: what they store, when they run, and when a chain has none."""

from collections import Counter

import pyarrow as pa
import pytest

from tests.unit.memory_chain import built, join, project, source
from tests.unit.single_operator import SingleOperator, table
from tidemill.errors import WeightNegative
from tidemill.views.chain.chain import Chain
from tidemill.views.chain.layer_task import StepPlan
from tidemill.views.chain.preparation import NoKernel
from tidemill.views.chain.recomputed_operators import StoredInput, StoredResult
from tidemill.views.circuit.expr import Expr, text
from tidemill.views.circuit.functions import CLOCK
from tidemill.views.circuit.operators import (
    Filter,
    Join,
    LiteralRows,
    Opaque,
    Operator,
    Window,
    WindowCall,
)
from tidemill.views.trace.hash_space import ranges
from tidemill.views.trace.trace import Trace

INT, TEXT, REAL = pa.int32(), pa.string(), pa.float64()
NAN = float("nan")
A = source("a", "int", "string", "bigint")
B = source("b", "int", "string", "bigint")
JOINED = join(A, B, (0, 0))
RANK = WindowCall(text("rank()", "rank"), "rank", ())


def ranked(op: Operator) -> Window:
    """Return a window without PARTITION BY."""
    return Window(op, (), (), (RANK,))


def names(chain: Chain, kind: type) -> list[str]:
    """Return the operators of a kind by the end of their ids."""
    return [placed.id.partition(".")[2] for placed in chain.operators if isinstance(placed.operator, kind)]


@pytest.mark.rule("DBSP-17")
def test_an_operator_without_a_key_divides_the_chain() -> None:
    chain = built({"v": join(project(ranked(JOINED), 0, 6), A, (0, 0))}, {})
    (query,) = chain.queries
    assert query.recomputed
    assert names(chain, StoredInput) == ["input0"]
    assert names(chain, StoredResult) == ["result"]
    assert [placed.id.partition(".")[2] for placed in chain.stored_inputs] == ["input0"]
    assert chain.jobs == 2
    (stored,) = chain.stored_inputs
    (result,) = [placed for placed in chain.operators if isinstance(placed.operator, StoredResult)]
    assert (stored.job, result.job) == (0, 1)
    assert result.number in chain.above({stored.number})


@pytest.mark.rule("DBSP-17")
def test_each_input_is_read_again_if_another_one_changes() -> None:
    chain = built({"v": Join("semi", JOINED, ranked(JOINED), (), (Expr((0, " < ", 12)),))}, {})
    inputs = {placed.number: placed for placed in chain.stored_inputs if placed.job == 1}
    assert len(inputs) == 2, "the value is computed in an earlier job"
    for number in inputs:
        assert {edge.side for edge in chain.edges if edge.target == number} == {0, 1}


@pytest.mark.rule("DBSP-17")
def test_filters_above_a_recomputed_operator_are_part_of_its_query() -> None:
    best = Filter(ranked(JOINED), (Expr((6, " < 3")),))
    chain = built({"v": best}, {})
    assert chain.queries[0].expressions.steps
    assert len(names(chain, StoredResult)[0].split(".")) == 2, "its state depends on the filter"


@pytest.mark.rule("DBSP-17", "DBSP-22")
def test_a_view_has_no_chain_if_an_operator_cannot_be_recomputed_alone() -> None:
    product = Join("left", JOINED, A)
    constant = Opaque((), (), "SELECT 1", 1, "a reason")
    for op, why in ((product, "many more rows"), (constant, "reads no table|a reason")):
        with pytest.raises(NoKernel, match=why):
            built({"v": op}, {})
    opaque = Opaque((A,), (), "SELECT now()", 3, "a reason", tuple(CLOCK))
    with pytest.raises(NoKernel, match="a reason"):
        built({"v": opaque}, {})


@pytest.mark.rule("DBSP-11", "DBSP-17")
def test_a_join_without_an_equality_is_recomputed_if_its_result_is_small() -> None:
    for op in (Join("semi", JOINED, A), Join("cross", JOINED, LiteralRows(((text("1"),),)))):
        assert names(built({"v": op}, {}), StoredInput) == ["input0", "input1"]


# --- recomputed operators


def current(types: tuple[pa.DataType, ...], count: int) -> SingleOperator:
    return SingleOperator(StoredInput(types), (types, ()), count)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.rule("DBSP-17")
def test_a_change_of_any_input_returns_all_stored_rows(count: int) -> None:
    operator = current((REAL, TEXT), count)
    rows = [((n / 4, "a"), 1 + n % 2) for n in range(20)]
    assert operator.step({0: rows}, first=True) == Counter({repr(row): weight for row, weight in rows})
    operator.step({0: [((0.25, "a"), -1), ((-0.0, "a"), 1), ((NAN, None), 2), ((0.5, "a"), -1)]})
    after = {repr(row): weight for row, weight in rows} | {repr((-0.0, "a")): 1, repr((NAN, None)): 2}
    after = Counter(after) - Counter([repr((0.25, "a")), repr((0.5, "a"))])
    assert operator.step({1: [((), 1)]}) == after
    assert operator.step({}) == Counter(), "nothing changed"
    assert operator.step({0: [((1.0, "z"), 1), ((1.0, "z"), -1)]}) == after, "a change that cancels out"


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.rule("DBSP-17")
def test_every_range_reports_a_change_even_if_no_row_is_left(count: int) -> None:
    operator = StoredInput((INT, TEXT))
    plan = StepPlan(current((INT, TEXT), count).chain, frozenset({0}), ranges(count))
    for side, rows in ((0, [((1, "a"), -1)]), (1, [((), 1)])):
        change = table(operator.takes(side), rows)
        assert {packet.range for packet in plan.deliver(0, side, change)} == set(range(count))
    stored = current((INT, TEXT), count)
    out = stored.operator.step({}, {"main": _empty(stored)}, first=True).out
    assert [repr(tuple(row.values())) for part in out for row in part.to_pylist()] == [repr((None, None, 0))]


def _empty(operator: SingleOperator) -> Trace:
    return Trace("main", operator.operator.layouts["main"], (), operator.cache)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.rule("DBSP-17", "DBSP-20")
def test_the_stored_result_is_replaced_as_a_whole(count: int) -> None:
    operator = SingleOperator(StoredResult((REAL, TEXT)), ((REAL, TEXT),), count)
    marker = ((None, None), 0)
    rows = [((n / 4, "a"), 1 + n % 2) for n in range(20)]
    assert operator.step({0: [*rows, marker]}, first=True) == Counter({repr(row): n for row, n in rows})
    changed = operator.step({0: [*rows[:19], ((-0.0, "a"), 1), marker]})
    assert changed == Counter({repr((4.75, "a")): -2, repr((-0.0, "a")): 1})
    assert operator.step({0: [*rows[:19], ((-0.0, "a"), 1), marker]}) == Counter()
    operator.step({0: [marker]})
    assert operator.output == Counter()
    assert not any(operator.state().values())


@pytest.mark.rule("DBSP-17")
def test_a_row_with_a_negative_weight_is_not_read_by_a_query() -> None:
    operator = current((INT, TEXT), 1)
    operator.step({0: [((1, "a"), 1)]}, first=True)
    with pytest.raises(WeightNegative):
        operator.step({0: [((2, "a"), -1)]})
