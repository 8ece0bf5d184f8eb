"""Expressions of Spark SQL over rows that are in this process: for checks of what is received (LOT-33)."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Evaluate = Callable[[pa.Table, Sequence[str]], list[pa.Array]]
"""Which rows of a table each expression is true for; NULL is not true."""

_ROW: Final = "_tidemill_row"


def evaluator(spark: "SparkSession") -> Evaluate:
    """What evaluates, on a session. One job for a batch, whatever the number of expressions."""

    def evaluate(table: pa.Table, expressions: Sequence[str]) -> list[pa.Array]:
        from pyspark.sql import functions as sf

        numbered = table.append_column(_ROW, pa.array(range(table.num_rows), pa.int64()))
        true = [
            sf.coalesce(sf.expr(one), sf.lit(False)).alias(f"c{number}")  # noqa: FBT003 - a literal
            for number, one in enumerate(expressions)
        ]
        found = spark.createDataFrame(numbered).select(_ROW, *true).toArrow().sort_by(_ROW)
        return [found.column(f"c{number}").combine_chunks() for number in range(len(expressions))]

    return evaluate
