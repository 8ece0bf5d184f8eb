"""The content of a dataset as a DataFrame (LOT-40, LOT-41).

Views, users and the checks of arcs all see the same content. It depends on the kind of the dataset:

rows      the rows of all its objects
changes   each row, repeated as many times as the sum of its weights says
keyed     the last write of each key: by the dataset's `order_by` columns if it has any, then by position, by
          append (the lot for an interval can contain several appends), and by the place within the append
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.spark.lot_reader import POSITION, read_objects, read_positioned
from tidemill.spark.operations import OP, ORDINAL, WEIGHT, RowOperation, stored_schema
from tidemill.spark.queries import quoted
from tidemill.spark.storage import Storage
from tidemill.views.spark import weighted_rows
from tidemill.views.steps.inputs import LotSlice, appends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def dataset_frame(
    spark: "SparkSession", storage: Storage, dataset: DatasetRow, slices: Sequence[LotSlice]
) -> "DataFrame":
    """Return the current rows with the declared columns.

    Args:
        spark: the session.
        storage: the object storage.
        dataset: the dataset to read.
        slices: all lots in the dataset up to a position, from `InputReader.at`.
    """
    schema = stored_schema(dataset.schema, dataset.kind)
    objects = [item for lot in slices for item in lot.objects]
    if dataset.kind is Kind.ROWS:
        return read_objects(spark, storage, schema, objects)
    if dataset.kind is Kind.CHANGES:
        return _summed(read_objects(spark, storage, schema, objects))
    writes = read_positioned(spark, storage, schema, list(enumerate(appends(slices))))
    return _last_writes(writes, dataset)


def _declared(df: "DataFrame", *internal: str) -> "StructType":
    from pyspark.sql import types as st

    return st.StructType([field for field in df.schema.fields if field.name not in internal])


def negative_rows(
    spark: "SparkSession", storage: Storage, dataset: DatasetRow, slices: Sequence[LotSlice]
) -> "tuple[DataFrame, StructType]":
    """Return the rows with a negative count in a dataset of changes, and the dataset's columns (DBSP-21).

    No reader sees such rows. They disappear from the result when their insertions arrive.
    """
    from pyspark.sql import functions as sf

    objects = [item for lot in slices for item in lot.objects]
    df = read_objects(spark, storage, stored_schema(dataset.schema, dataset.kind), objects)
    schema = _declared(df, WEIGHT)
    netted = weighted_rows.netted(weighted_rows.identified(df, schema), schema)
    return netted.where(sf.col(WEIGHT) < 0), schema


def _summed(df: "DataFrame") -> "DataFrame":
    schema = _declared(df, WEIGHT)
    return weighted_rows.repeated(weighted_rows.netted(weighted_rows.identified(df, schema), schema), schema)


def base_frame(
    spark: "SparkSession", storage: Storage, dataset: DatasetRow, slices: Sequence[LotSlice]
) -> "DataFrame":
    """Return the rows of a base lot, with the columns of the dataset's files (LOT-39).

    It has the last write of each key, and the sum of the weights of each row. A keyed dataset with `order_by`
    also keeps deletions, because an older write may arrive after a deletion.

    Args:
        spark: the session.
        storage: the object storage.
        dataset: the dataset to read.
        slices: the last base lot, and the lots after it.
    """
    from pyspark.sql import functions as sf

    schema = stored_schema(dataset.schema, dataset.kind)
    if dataset.kind is Kind.KEYED:
        writes = read_positioned(spark, storage, schema, list(enumerate(appends(slices))))
        last = _last_write_of_each_key(writes, dataset)
        if not dataset.order_by:
            last = last.where(sf.col(OP) != RowOperation.DELETE.value)
        return last
    rows = read_objects(spark, storage, schema, [item for lot in slices for item in lot.objects])
    if dataset.kind is Kind.ROWS:
        return rows
    declared = _declared(rows, WEIGHT)
    netted = weighted_rows.netted(weighted_rows.identified(rows, declared), declared)
    return netted.where(sf.col(WEIGHT) != 0).select(*[sf.col(quoted(name)) for name in rows.columns])


def _last_writes(df: "DataFrame", dataset: DatasetRow) -> "DataFrame":
    """Return the current rows of a keyed dataset."""
    from pyspark.sql import functions as sf

    last = _last_write_of_each_key(df, dataset).where(sf.col(OP) != RowOperation.DELETE.value)
    return last.drop(OP, ORDINAL)


def _last_write_of_each_key(df: "DataFrame", dataset: DatasetRow) -> "DataFrame":
    from pyspark.sql import functions as sf

    schema = _declared(df, OP, ORDINAL, POSITION)
    write = sf.struct(*weighted_rows.columns_of(schema), sf.col(OP), sf.col(ORDINAL))
    declared_order = [sf.col(quoted(name)).alias(f"_o{n}") for n, name in enumerate(dataset.order_by)]
    order = sf.struct(*declared_order, sf.col(POSITION), sf.col(ORDINAL))
    last = df.groupBy(*[sf.col(quoted(name)).alias(f"_k{n}") for n, name in enumerate(dataset.key)]).agg(
        sf.max_by(write, order).alias("_last")
    )
    names = [*(field.name for field in schema.fields), OP, ORDINAL]
    return last.select(*[sf.col("_last").getField(name).alias(name) for name in names])
