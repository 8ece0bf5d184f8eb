"""One projection evaluates the expressions of many edges: it computes equal ones once."""

import pyarrow as pa
import pytest

from tests.unit.memory_chain import built, source
from tidemill.views.chain.layer_task import StepPlan
from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.operators import Filter, Operator, Project
from tidemill.views.spark import execution
from tidemill.views.spark.execution import MOST_VALUES, TASK_ROWS, InputSize, choose
from tidemill.views.spark.row_expressions import after_layer, along_edges
from tidemill.views.spark.row_sink import HELD_BYTES, LEAST_HELD_BYTES
from tidemill.views.spark.shared_projection import EdgeColumns, SharedProjection
from tidemill.views.spark.tasks import held_bytes_of
from tidemill.views.trace.hash_space import ranges

ORDERS = source("orders", "int", "int", "bigint")


def plus(place: int, number: int) -> Expr:
    return Expr((place, f" + {number}"))


def view(number: int) -> Operator:
    """A view with the filter that all have, an expression of its own, and two equal columns."""
    kept = Filter(ORDERS, (Expr((1, " > 5")),))
    return Project(kept, (plus(0, number), column(2), plus(1, 1)))


def plan_of(views: int, kind: str) -> StepPlan:
    chain = built({f"v{number}": view(number) for number in range(views)}, {"orders": kind})
    return StepPlan(chain, frozenset(range(len(chain.operators))), ranges(1), first=True)


def projection_of(plan: StepPlan, kind: str) -> SharedProjection:
    if kind == "changes":
        return after_layer(plan, 1, lambda _: ())
    return along_edges(plan.leaving("orders"), plan, lambda _: ())


@pytest.mark.rule("DBSP-46")
@pytest.mark.parametrize("kind", ["rows", "changes"])
def test_a_projection_grows_with_the_distinct_expressions(kind: str) -> None:
    widths = [projection_of(plan_of(views, kind), kind).width for views in (1, 40)]
    assert widths[1] - widths[0] == 39, "one more column for each view"
    assert widths[0] == 5, "the condition, three columns and the weight"
    edges = projection_of(plan_of(40, kind), kind).edges
    assert len(edges) == 40
    assert len({edge.passes for edge in edges.values()}) == 1, "all views have the same condition"
    assert len({edge.columns[0] for edge in edges.values()}) == 40
    assert len({edge.columns[1:] for edge in edges.values()}) == 1


def test_an_edge_has_the_rows_that_pass_its_condition() -> None:
    projected = pa.table({"o0": [1, 2, 3], "o1": [True, None, False], "o2": [7, 8, 9]})
    assert EdgeColumns("o1", ("o0", "o2")).rows(projected).to_pylist() == [{"c0": 1, "_w": 7}]
    assert EdgeColumns("", ("o0", "o2")).rows(projected).num_rows == 3


@pytest.mark.rule("DBSP-41")
def test_a_step_with_many_computed_values_is_a_spark_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(execution.SETTING, raising=False)
    few, many = plan_of(1, "rows"), plan_of(100, "rows")
    rows = MOST_VALUES // 100
    assert choose(few, ["orders"], InputSize(rows, 1), 2).place == "runner"
    assert choose(many, ["orders"], InputSize(rows, 1), 2).place == "spark"
    assert choose(many, ["orders"], InputSize(rows // 2, 1), 2).place == "runner"


def test_the_number_of_tasks_follows_the_edges_that_lead_to_a_layer() -> None:
    size = InputSize(TASK_ROWS, 0)
    assert execution._copies(plan_of(1, "changes")) == 1
    assert size.times(execution._copies(plan_of(40, "changes"))).rows == 40 * TASK_ROWS


def test_all_views_of_a_task_share_the_memory_for_their_rows() -> None:
    assert held_bytes_of(plan_of(1, "rows")) == HELD_BYTES
    assert held_bytes_of(plan_of(8, "changes")) == HELD_BYTES // 8
    assert held_bytes_of(plan_of(200, "changes")) == LEAST_HELD_BYTES
