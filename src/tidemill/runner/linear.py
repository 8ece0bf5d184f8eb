"""A linear arc over a table whose rows come and go: the weight is carried around its function (LOT-41).

The function sees rows, never a weight: it is called once with the rows that come and once with those that go,
each as often as it does, and what it makes of the latter goes. That is right for a function that maps rows
one by one, and the plan tries that out (`pipeline.certifying`).
"""

from typing import TYPE_CHECKING

from tidemill.runner.program import ArcProgram
from tidemill.spark.operations import WEIGHT
from tidemill.views.spark import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def halves(frame: "DataFrame") -> "tuple[DataFrame, DataFrame]":
    """The rows of a change that come, and those that go, each as often as it does, without the weight."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    schema = st.StructType([field for field in frame.schema.fields if field.name != WEIGHT])
    turned = frame.withColumn(WEIGHT, -sf.col(WEIGHT))
    return rows.repeated(frame, schema), rows.repeated(turned, schema)


def joined(come: "DataFrame", go: "DataFrame") -> "DataFrame":
    """What the function made of both, as one change."""
    from pyspark.sql import functions as sf

    plus, minus = sf.lit(1).cast("bigint"), sf.lit(-1).cast("bigint")
    return come.withColumn(WEIGHT, plus).unionByName(go.withColumn(WEIGHT, minus))


def is_linear(arc: ArcProgram, frame: "DataFrame") -> bool:
    """Is the weight of this frame carried around the function of this arc?"""
    return arc.spec.changes == "linear" and WEIGHT in frame.columns
