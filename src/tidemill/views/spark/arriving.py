"""What a dataset's lots bring to a chain: frames of c0, c1, … and the weight `_w`.

rows      each row once; a lot that was replaced takes its old rows back (DBSP-8)
changes   each row with its weight
keyed     each write: the row, whether it deletes, and where it stands among all writes
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.lots.datasets import Dataset, Kind
from tidemill.spark.operations import OP, ORDINAL, Operation, stored_schema
from tidemill.spark.operations import WEIGHT as STORED
from tidemill.spark.queries import quoted
from tidemill.spark.reading import POSITION, read_objects, read_positioned
from tidemill.spark.storage import Storage
from tidemill.views.steps.inputs import Exchange, Slice

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OURS = frozenset({OP, ORDINAL, STORED, POSITION})


def changes(spark: "SparkSession", storage: Storage, dataset: Dataset, exchange: Exchange) -> "DataFrame":
    """What a range of positions brings and takes back. Of a keyed dataset nothing may be taken back."""
    whole = held(spark, storage, dataset, exchange.plus)
    if not exchange.minus:
        return whole
    assert dataset.kind is not Kind.KEYED, "what was written before is not known"
    gone = held(spark, storage, dataset, exchange.minus, sign=-1)
    return whole.unionAll(gone) if exchange.plus else gone


def held(
    spark: "SparkSession", storage: Storage, dataset: Dataset, slices: Sequence[Slice], sign: int = 1
) -> "DataFrame":
    """The rows of these lots, as they are stored."""
    from pyspark.sql import functions as sf

    schema = stored_schema(dataset.schema, dataset.kind)
    if dataset.kind is Kind.KEYED:
        df = read_positioned(spark, storage, schema, [(one.position, one.objects) for one in slices])
        gone = sf.col(OP) == Operation.DELETE.value
        order = [sf.col(name).cast("bigint") for name in (POSITION, ORDINAL)]
        return _numbered(df, [gone, *order], sf.lit(1))
    df = read_objects(spark, storage, schema, [item for one in slices for item in one.objects])
    weight = sf.col(STORED) * sign if dataset.kind is Kind.CHANGES else sf.lit(sign)
    return _numbered(df, [], weight)


def _numbered(df: "DataFrame", extra: "Sequence[Column]", weight: "Column") -> "DataFrame":
    from pyspark.sql import functions as sf

    columns = [*(sf.col(quoted(name)) for name in df.columns if name not in OURS), *extra]
    named = [column.alias(f"c{i}") for i, column in enumerate(columns)]
    return df.select(*named, weight.cast("bigint").alias("_w"))
