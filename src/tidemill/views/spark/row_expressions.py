"""Legs of a chain on frames: Spark evaluates the conditions and expressions between operators.

The first layer works on plain frames. Behind a kernel, rows of several operators come in one frame, each a
struct in a column of its own and NULL in the others: a condition makes the struct NULL, an expression a new
struct, and both are evaluated only where there is one. So a frame is never consumed twice (DBSP-46), and what
can raise does so on the rows it is meant for.
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
"""The Spark types of a view's columns, by the number of its operator."""


def apply_expressions(spark: "SparkSession", df: "DataFrame", expressions: RowExpressions) -> "DataFrame":
    """A frame of c0, c1, … and `_w` at the end of a expressions."""
    for step in expressions.steps:
        if isinstance(step, FilterStep):
            df = df.where(_all(step.conditions, "c{}".format))
        elif isinstance(step, SelectStep):
            df = df.selectExpr(*[f"{one.sql()} AS c{i}" for i, one in enumerate(step.expressions)], WEIGHT)
        else:
            df = _exploded(spark, df, step)
    return df


def _exploded(spark: "SparkSession", df: "DataFrame", step: ExplodeStep) -> "DataFrame":
    made = [f"g{i}" for i in range(step.produces)]
    kept = [f"c{i}" for i in range(step.width)]
    named = [f"{name} AS c{step.width + i}" for i, name in enumerate(made)]
    call = step.call.sql().replace("{", "{{").replace("}", "}}")
    view = f"LATERAL VIEW {'OUTER ' if step.outer else ''}{call} g AS {', '.join(made)}"
    text = f"SELECT {', '.join([*kept, *named, WEIGHT])} FROM {{rows}} {view}"  # noqa: S608  # the view's own query
    return spark.sql(text, rows=df)


def with_identity(df: "DataFrame", width: int, kinds: "Sequence[DataType]") -> "DataFrame":
    """The rows of a view with both halves of their identity behind their columns."""
    from pyspark.sql import functions as sf

    columns = [sf.col(f"c{i}") for i in range(width)]
    high, low = weighted_rows.identity(columns, kinds)
    return df.select(*columns, high.alias(f"c{width}"), low.alias(f"c{width + 1}"), sf.col(WEIGHT))


def after_layer(df: "DataFrame", plan: StepPlan, layer: int, types_of: TypesOf) -> "DataFrame":
    """The rows of a layer at the ends of its edges: a struct column `e7` for edge 7."""
    from pyspark.sql import functions as sf

    edges = [edge for edges in plan.spark_edges(layer).values() for edge in edges]
    wire = [sf.col(name) for name in WIRE.names]
    df = df.select(*wire, *(sf.col(f"n{edge.origin}").alias(f"e{edge.number}") for edge in edges))
    return _moved(df, wire, edges, plan, types_of)


def at_ends(df: "DataFrame", edges: Sequence[Edge], plan: StepPlan, types_of: TypesOf) -> "DataFrame":
    """The rows of a table, c0, c1, … and `_w`, at the ends of edges that explode nothing: a struct column
    `e7` for edge 7, which is NULL for a row that does not arrive there.
    """
    from pyspark.sql import functions as sf

    row = sf.struct(*df.columns)
    return _moved(df.select(*(row.alias(f"e{edge.number}") for edge in edges)), [], edges, plan, types_of)


def _moved(
    df: "DataFrame", kept: "Sequence[Column]", edges: Sequence[Edge], plan: StepPlan, types_of: TypesOf
) -> "DataFrame":
    from pyspark.sql import functions as sf

    for place in range(max((len(edge.expressions.steps) for edge in edges), default=0)):
        df = df.select(*kept, *(_step(edge, place).alias(f"e{edge.number}") for edge in edges))
    views = {edge.number for edge in edges if _is_of_view(plan, edge)}
    if not views:
        return df
    return df.select(
        *kept,
        *(
            (_identity(edge, plan, types_of) if edge.number in views else sf.col(f"e{edge.number}")).alias(
                f"e{edge.number}"
            )
            for edge in edges
        ),
    )


def _is_of_view(plan: StepPlan, edge: Edge) -> bool:
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
    assert isinstance(step, SelectStep), "nothing is exploded behind a kernel"
    fields = [f"'c{i}', {one.sql(inside)}" for i, one in enumerate(step.expressions)]
    struct = ", ".join([*fields, f"'{WEIGHT}', {name}.{WEIGHT}"])
    return sf.expr(f"CASE WHEN {name} IS NOT NULL THEN named_struct({struct}) END")


def _identity(edge: Edge, plan: StepPlan, types_of: TypesOf) -> "Column":
    from pyspark.sql import functions as sf

    operator = plan.chain.operators[edge.target].operator
    assert isinstance(operator, OutputSink)
    width, name = len(operator.types), f"e{edge.number}"
    columns = [sf.col(f"{name}.c{i}") for i in range(width)]
    high, low = weighted_rows.identity(columns, types_of(edge.target))
    made = [column.alias(f"c{i}") for i, column in enumerate([*columns, high, low])]
    return sf.when(sf.col(name).isNotNull(), sf.struct(*made, sf.col(f"{name}.{WEIGHT}").alias(WEIGHT)))


def _all(conditions: Sequence[Expr], column: Callable[[int], str]) -> str:
    return " AND ".join(one.enclosed().sql(column) for one in conditions)
