"""What a dataset holds, as a frame: the same for views, for arcs' checks and for users (LOT-40, LOT-41).

rows      the rows of all its objects
changes   each row as often as the sum of its weights says
keyed     of each key the newest write: by the columns that order its writes, if there are such; then by
          position, by append (a lot of an interval gathers several), and by the place in its append
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.manifest import StoredObject
from tidemill.publish.manifests import attempt_in
from tidemill.spark.lot_reader import POSITION, read_objects, read_positioned
from tidemill.spark.operations import OP, ORDINAL, WEIGHT, RowOperation, stored_schema
from tidemill.spark.queries import quoted
from tidemill.spark.storage import Storage
from tidemill.views.spark import weighted_rows
from tidemill.views.steps.inputs import LotSlice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def dataset_frame(
    spark: "SparkSession", storage: Storage, dataset: DatasetRow, slices: Sequence[LotSlice]
) -> "DataFrame":
    """The rows that are there, with the declared columns.

    - slices: all of the dataset at a position, as `Inputs.at` finds them.
    """
    schema = stored_schema(dataset.schema, dataset.kind)
    objects = [item for one in slices for item in one.objects]
    if dataset.kind is Kind.ROWS:
        return read_objects(spark, storage, schema, objects)
    if dataset.kind is Kind.CHANGES:
        return _summed(read_objects(spark, storage, schema, objects))
    placed = read_positioned(spark, storage, schema, list(enumerate(_appends(slices))))
    return _last_writes(placed, dataset)


def _declared(df: "DataFrame", *ours: str) -> "StructType":
    from pyspark.sql import types as st

    return st.StructType([field for field in df.schema.fields if field.name not in ours])


def negative_rows(
    spark: "SparkSession", storage: Storage, dataset: DatasetRow, slices: Sequence[LotSlice]
) -> "tuple[DataFrame, StructType]":
    """Rows of a dataset of changes that were deleted more often than they came, and its columns (DBSP-21).

    No reader sees them; the same sum has them no more when their insertion arrives.
    """
    from pyspark.sql import functions as sf

    objects = [item for one in slices for item in one.objects]
    df = read_objects(spark, storage, stored_schema(dataset.schema, dataset.kind), objects)
    schema = _declared(df, WEIGHT)
    return weighted_rows.netted(weighted_rows.identified(df, schema), schema).where(
        sf.col(WEIGHT) < 0
    ), schema


def _summed(df: "DataFrame") -> "DataFrame":
    schema = _declared(df, WEIGHT)
    return weighted_rows.repeated(weighted_rows.netted(weighted_rows.identified(df, schema), schema), schema)


def _appends(slices: Sequence[LotSlice]) -> list[list[StoredObject]]:
    """The objects of a keyed dataset, append by append, in the order in which they came. Each append was
    written under an attempt of its own, which its objects' names carry; manifests list them in order.
    """
    found: list[list[StoredObject]] = []
    for one in sorted(slices, key=lambda one: one.position):
        for _, objects in groupby(one.objects, key=lambda item: attempt_in(item.uri)):
            found.append(list(objects))
    return found


def _last_writes(df: "DataFrame", dataset: DatasetRow) -> "DataFrame":
    from pyspark.sql import functions as sf

    schema = _declared(df, OP, ORDINAL, POSITION)
    whole = sf.struct(*weighted_rows.columns_of(schema), sf.col(OP))
    newest = [sf.col(quoted(name)).alias(f"_o{n}") for n, name in enumerate(dataset.order_by)]
    order = sf.struct(*newest, sf.col(POSITION), sf.col(ORDINAL))
    last = df.groupBy(*[sf.col(quoted(name)).alias(f"_k{n}") for n, name in enumerate(dataset.key)]).agg(
        sf.max_by(whole, order).alias("_last")
    )
    there = last.where(sf.col("_last")[OP] != RowOperation.DELETE.value)
    return there.select(*[sf.col("_last").getField(field.name).alias(field.name) for field in schema.fields])
