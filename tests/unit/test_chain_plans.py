"""Row expressions, prepared circuits, and the plans of steps and the reports of their tasks."""

import pyarrow as pa
import pytest

from tests.unit.views_stage import output
from tidemill.errors import StepLost
from tidemill.views.chain.chain import Chain, PlacedOperator
from tidemill.views.chain.layer_task import StepPlan, TaskReport, complete_changes, packets_by_range
from tidemill.views.chain.native_operators import StatefulSet
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.chain.preparation import prepared
from tidemill.views.chain.row_expressions import ExplodeStep, FilterStep, RowExpressions, SelectStep
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import call, column, text
from tidemill.views.circuit.operators import Aggregate, Filter, Join, Operator, Window
from tidemill.views.trace.batches import BATCH_ROWS
from tidemill.views.trace.hash_space import ranges

# --- row expressions


def test_selecting_among_selected_columns_stays_one_step() -> None:
    first = RowExpressions().select([call("upper", column(1)), column(0), column(2)])
    second = first.select([column(2), column(0), column(0)])
    assert second.steps == (SelectStep((column(2), call("upper", column(1)), call("upper", column(1)))),)
    assert len(first.select([call("lower", column(0)), column(0)]).steps) == 2, "upper(c1) is computed once"
    assert RowExpressions().where([]) == RowExpressions()


def test_row_expressions_are_plain_if_they_only_select_columns() -> None:
    assert RowExpressions().plain(3) == (0, 1, 2)
    selected = RowExpressions().select([column(2), column(0)])
    assert selected.plain(3) == (2, 0)
    again = RowExpressions((*selected.steps, SelectStep((column(1), column(1)))))
    assert again.plain(3) == (0, 0)
    assert selected.select([call("abs", column(0))]).plain(3) is None
    assert selected.where([text("true")]).plain(3) is None
    exploded = selected.explode(ExplodeStep(text("explode(x)"), 2, 1, False))
    assert exploded.plain(3) is None
    assert exploded.explodes
    assert not selected.explodes


def test_only_columns_of_another_type_are_cast() -> None:
    assert RowExpressions().cast(["int", "string"], ["int", "string"]) == RowExpressions()
    (step,) = RowExpressions().cast(["int", "string"], ["bigint", "string"]).steps
    assert isinstance(step, SelectStep)
    assert [expr.sql() for expr in step.expressions] == ["CAST(c0 AS bigint)", "c1"]
    where = RowExpressions().where([text("true")])
    assert isinstance(where.steps[0], FilterStep)


# --- preparation


def of(kind: type[Operator], root: Operator) -> list[Operator]:
    return [op for op in walk(root) if isinstance(op, kind)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT o.day FROM orders o JOIN customers c ON o.cust + 1 = c.id AND o.amount < length(c.region)",
        """SELECT upper(kind) AS k, sum(id) FILTER (WHERE at IS NULL) AS s, count(id, at) AS n,
                  count_if(id = 1) AS i, count(1) AS every, mean(id) AS m FROM events GROUP BY upper(kind)""",
        "SELECT o.id FROM orders o LEFT JOIN customers c ON o.cust + 1 = c.id AND o.id < c.id + 7",
        "SELECT id, rank() OVER (PARTITION BY cust % 2 ORDER BY id) AS r FROM orders",
        "SELECT id + 1 AS k, collect_list(kind) AS l FROM events GROUP BY id + 1",
        "SELECT DISTINCT kind FROM events",
    ],
)
def test_stateful_operators_read_plain_columns_and_keep_their_width(sql: str) -> None:
    before = output(sql)
    after = prepared(before)
    assert after.width == before.width
    assert after.names == before.names
    for op in walk(after):
        keys: list[object] = []
        if isinstance(op, Join):
            keys = [part.column for key in op.keys for part in (key.left, key.right)]
            assert op.join != "inner" or not op.residual, "other conditions of a join are a filter above it"
        elif isinstance(op, Aggregate):
            keys = [group.column for group in op.groups]
        elif isinstance(op, Window):
            keys = [part.column for part in op.partition]
        assert None not in keys


def test_a_filter_of_an_aggregate_becomes_a_case_and_several_arguments_one() -> None:
    sql = "SELECT sum(id) FILTER (WHERE cust > 1) AS s, count(id, cust) AS n, count(*) AS e FROM orders"
    after = prepared(output(sql))
    (aggregate,) = of(Aggregate, after)
    assert isinstance(aggregate, Aggregate)
    assert [function.name for function in aggregate.calls] == ["sum", "count", "count"]
    assert all(function.filter is None and len(function.arguments) <= 1 for function in aggregate.calls)
    assert [len(function.arguments) for function in aggregate.calls] == [1, 1, 0]


def test_the_condition_of_an_inner_join_is_a_filter_over_it() -> None:
    after = prepared(
        output("SELECT o.id FROM orders o JOIN customers c ON o.cust = c.id AND o.id < c.id + 7")
    )
    (join,) = of(Join, after)
    above = [op for op in of(Filter, after) if join in op.inputs]
    assert len(above) == 1


# --- reports of tasks

INT = pa.int32()


def plan(count: int = 2) -> StepPlan:
    operators = (
        PlacedOperator(0, "a", StatefulSet("distinct", (INT,)), 0, 1),
        PlacedOperator(1, "b", StatefulSet("distinct", (INT,)), 0, 2),
        PlacedOperator(2, "view:v", OutputSink("v", ("x",), (INT,)), 0, 3),
        PlacedOperator(3, "c", StatefulSet("distinct", (INT,)), 1, 1),
    )
    return StepPlan(Chain(operators, ()), frozenset(range(4)), ranges(count))


def report(layer: int, range_number: int, *operators: int) -> TaskReport:
    return TaskReport(layer, range_number, list(operators))


COMPLETE = [report(1, 0, 0), report(1, 1, 0), report(2, 0, 1), report(2, 1, 1), report(4, 0)]


@pytest.mark.rule("DBSP-46")
def test_a_step_is_complete_when_each_operator_is_reported_once_for_each_range() -> None:
    assert complete_changes(plan(), COMPLETE).added == ()
    for place in range(4):
        with pytest.raises(StepLost, match="1 reported nothing"):
            complete_changes(plan(), [*COMPLETE[:place], *COMPLETE[place + 1 :]])
        with pytest.raises(StepLost, match="1 reported twice"):
            complete_changes(plan(), [*COMPLETE, COMPLETE[place]])
    for odd in (report(1, 2, 0), report(3, 0, 2), report(1, 0, 3), report(1, 0, 9)):
        with pytest.raises(StepLost):
            complete_changes(plan(), [*COMPLETE, odd])


def test_a_report_is_decoded_as_it_was() -> None:
    original = TaskReport(2, 1, [3, 4], seconds=0.5, rows=7, files=[("v", "k", 1, 2, "ff")], aside={"3": 1})
    decoded = TaskReport.decode(original.encode())
    assert decoded.encode() == original.encode()
    assert (decoded.operators, decoded.aside, decoded.changes) == ([3, 4], {"3": 1}, original.changes)


@pytest.mark.rule("DBSP-9")
def test_rows_go_to_the_range_of_their_hash_in_pieces_of_limited_size() -> None:
    count = BATCH_ROWS + 10
    rows = pa.table({"c0": pa.array(range(count), INT), "_w": pa.array([1] * count, pa.int64())})
    packets = list(plan(7).deliver(0, 0, rows))
    assert max(packet.table.num_rows for packet in packets) <= BATCH_ROWS
    assert sum(packet.table.num_rows for packet in packets) == count
    grouped = packets_by_range(packets)
    assert grouped.keys() == set(range(7))
    sizes = [sum(part.num_rows for part in tags[0]["left"]) for tags in grouped.values()]
    assert max(sizes) < 1.1 * count / 7, "spread evenly"
    single = list(plan(1).deliver(0, 0, rows))
    assert [packet.range for packet in single] == [0, 0]
