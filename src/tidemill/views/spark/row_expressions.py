"""Evaluate row expressions with Spark: the conditions and expressions between stateful operators.

Rows of tables are plain frames. After a layer, one frame holds the rows of several operators. Each operator
has a struct column, which is NULL in the rows of other operators. A condition that is false makes the struct
NULL; expressions compute a new struct. Conditions and expressions are evaluated only where the struct is not
NULL. So no frame is consumed twice (DBSP-46), and an expression can raise errors only on rows of its own
operator.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.views.chain.chain import Edge
from tidemill.views.chain.layer_task import StepPlan
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.chain.row_expressions import ExplodeStep, FilterStep, RowExpressions, SelectStep
from tidemill.views.circuit.expr import Expr
from tidemill.views.spark import weighted_rows
from tidemill.views.spark.wire_format import WIRE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

WEIGHT = "_w"

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


def after_layer(df: "DataFrame", plan: StepPlan, layer: int, types_of: TypesOf) -> "DataFrame":
    """Apply the row expressions of the edges after a layer: returns a struct column `e7` for edge 7."""
    from pyspark.sql import functions as sf

    edges = [edge for edges in plan.spark_edges(layer).values() for edge in edges]
    wire = [sf.col(name) for name in WIRE.names]
    df = df.select(*wire, *(sf.col(f"n{edge.origin}").alias(f"e{edge.number}") for edge in edges))
    return _applied(df, wire, edges, plan, types_of)


def along_edges(df: "DataFrame", edges: Sequence[Edge], plan: StepPlan, types_of: TypesOf) -> "DataFrame":
    """Apply the row expressions of several edges to a table of c0, c1, … and `_w`.

    Returns a struct column `e7` for edge 7, NULL where the row does not pass. No edge may explode rows.
    """
    from pyspark.sql import functions as sf

    row = sf.struct(*df.columns)
    return _applied(df.select(*(row.alias(f"e{edge.number}") for edge in edges)), [], edges, plan, types_of)


def _applied(
    df: "DataFrame", leading: "Sequence[Column]", edges: Sequence[Edge], plan: StepPlan, types_of: TypesOf
) -> "DataFrame":
    from pyspark.sql import functions as sf

    for place in range(max((len(edge.expressions.steps) for edge in edges), default=0)):
        df = df.select(*leading, *(_step(edge, place).alias(f"e{edge.number}") for edge in edges))
    identified = {edge.number for edge in edges if _needs_identity(plan, edge)}
    if not identified:
        return df
    return df.select(
        *leading,
        *(
            (
                _identity(edge, plan, types_of) if edge.number in identified else sf.col(f"e{edge.number}")
            ).alias(f"e{edge.number}")
            for edge in edges
        ),
    )


def _needs_identity(plan: StepPlan, edge: Edge) -> bool:
    operator = plan.chain.operators[edge.target].operator
    return isinstance(operator, OutputSink) and operator.needs_spark


def _step(edge: Edge, place: int) -> "Column":
    from pyspark.sql import functions as sf

    name = f"e{edge.number}"
    if place >= len(edge.expressions.steps):
        return sf.col(name)
    step = edge.expressions.steps[place]
    inside = f"{name}.c{{}}".format
    if isinstance(step, FilterStep):
        return sf.expr(f"CASE WHEN {name} IS NOT NULL AND {_all(step.conditions, inside)} THEN {name} END")
    assert isinstance(step, SelectStep), "rows of a kernel are not exploded in the same job"
    fields = [f"'c{i}', {expr.sql(inside)}" for i, expr in enumerate(step.expressions)]
    struct = ", ".join([*fields, f"'{WEIGHT}', {name}.{WEIGHT}"])
    return sf.expr(f"CASE WHEN {name} IS NOT NULL THEN named_struct({struct}) END")


def _identity(edge: Edge, plan: StepPlan, types_of: TypesOf) -> "Column":
    from pyspark.sql import functions as sf

    operator = plan.chain.operators[edge.target].operator
    assert isinstance(operator, OutputSink)
    width, name = len(operator.types), f"e{edge.number}"
    columns = [sf.col(f"{name}.c{i}") for i in range(width)]
    high, low = weighted_rows.identity(columns, types_of(edge.target))
    fields = [column.alias(f"c{i}") for i, column in enumerate([*columns, high, low])]
    return sf.when(sf.col(name).isNotNull(), sf.struct(*fields, sf.col(f"{name}.{WEIGHT}").alias(WEIGHT)))


def _all(conditions: Sequence[Expr], column: Callable[[int], str]) -> str:
    return " AND ".join(condition.parenthesized().sql(column) for condition in conditions)
