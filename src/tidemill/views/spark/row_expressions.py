"""Evaluate row expressions with Spark: the conditions and expressions between stateful operators.

Rows of tables are plain frames. After a layer, one frame holds the rows of several operators. Each operator
has a struct column, which is NULL in the rows of other operators. One projection evaluates all edges that do
not explode rows, so no frame is consumed twice (DBSP-46).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.views.chain.chain import ChainInput, Edge
from tidemill.views.chain.layer_task import StepPlan
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.chain.row_expressions import ExplodeStep, FilterStep, RowExpressions, SelectStep
from tidemill.views.circuit.expr import Expr
from tidemill.views.spark import weighted_rows
from tidemill.views.spark.shared_projection import WEIGHT, SharedProjection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

TypesOf = Callable[[int], "Sequence[DataType]"]
"""Returns the Spark types of a view's columns, by the number of its sink."""


def apply_expressions(spark: "SparkSession", df: "DataFrame", expressions: RowExpressions) -> "DataFrame":
    """Apply row expressions to a frame of c0, c1, … and `_w`."""
    for step in expressions.steps:
        if isinstance(step, FilterStep):
            df = df.where(_all(step.conditions, "c{}".format))
        elif isinstance(step, SelectStep):
            df = df.selectExpr(*[f"{expr.sql()} AS c{i}" for i, expr in enumerate(step.expressions)], WEIGHT)
        else:
            df = _exploded(spark, df, step)
    return df


def _exploded(spark: "SparkSession", df: "DataFrame", step: ExplodeStep) -> "DataFrame":
    if step.call.is_time_window:
        passed = [f"c{i}" for i in range(step.width)]
        return df.selectExpr(*passed, f"{step.call.sql()} AS c{step.width}", WEIGHT)
    generated = [f"g{i}" for i in range(step.produces)]
    columns = [f"c{i}" for i in range(step.width)]
    columns += [f"{name} AS c{step.width + i}" for i, name in enumerate(generated)]
    call = step.call.sql().replace("{", "{{").replace("}", "}}")
    view = f"LATERAL VIEW {'OUTER ' if step.outer else ''}{call} g AS {', '.join(generated)}"
    text = f"SELECT {', '.join([*columns, WEIGHT])} FROM {{rows}} {view}"  # noqa: S608  # the view's own query
    return spark.sql(text, rows=df)


def with_identity(df: "DataFrame", width: int, kinds: "Sequence[DataType]") -> "DataFrame":
    """Add both halves of the identity of a view's rows after their columns."""
    from pyspark.sql import functions as sf

    columns = [sf.col(f"c{i}") for i in range(width)]
    high, low = weighted_rows.identity(columns, kinds)
    return df.select(*columns, high.alias(f"c{width}"), low.alias(f"c{width + 1}"), sf.col(WEIGHT))


def after_layer(plan: StepPlan, layer: int, types_of: TypesOf) -> SharedProjection:
    """Return the projection that applies the row expressions of the edges after a layer."""
    return along_edges([edge for edges in plan.spark_edges(layer).values() for edge in edges], plan, types_of)


def along_edges(edges: Sequence[Edge], plan: StepPlan, types_of: TypesOf) -> SharedProjection:
    """Return the projection that applies the row expressions of several edges. No edge may explode rows.

    The rows of a table are a frame of c0, c1, … and `_w`. The rows of operator 5 are the structs in column
    `n5` of a frame that also has rows of other operators.
    """
    projection = SharedProjection()
    for edge in edges:
        target = plan.chain.operators[edge.target].operator
        kinds = types_of(edge.target) if isinstance(target, OutputSink) and target.needs_spark else None
        if isinstance(edge.origin, ChainInput):
            projection.add(edge, edge.origin.width, "", kinds)
        else:
            width = len(plan.chain.operators[edge.origin].operator.out) - 1
            projection.add(edge, width, f"n{edge.origin}", kinds)
    return projection


def _all(conditions: Sequence[Expr], column: Callable[[int], str]) -> str:
    return " AND ".join(condition.parenthesized().sql(column) for condition in conditions)
