"""Read the rows that a step put into quarantine: deletions of rows that do not exist (DBSP-21).

Each source operator adds these rows to its trace `aside`. The runs that the step added to this trace contain
them, so the cost depends on how many rows the step put into quarantine, not on the size of the dataset.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.lots.datasets import DatasetRow
from tidemill.lots.manifest import StoredObject
from tidemill.spark.operations import WEIGHT as STORED
from tidemill.spark.schema import parse, to_spark
from tidemill.spark.storage import Storage
from tidemill.views.chain.chain import PlacedOperator
from tidemill.views.chain.outputs import SpillSink
from tidemill.views.chain.source_operators import ASIDE, ChangesSource
from tidemill.views.spark import weighted_rows
from tidemill.views.spark.row_sink import write_now, write_rows
from tidemill.views.spark.step_inputs import SpilledInput
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.run_table import AddedRun
from tidemill.views.trace.trace import Trace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def rows_set_aside(
    spark: "SparkSession",
    storage: Storage,
    dataset: DatasetRow,
    placed: PlacedOperator,
    added: Iterable[AddedRun],
    folder: str,
) -> "tuple[DataFrame, StructType] | None":
    """Return the rows that a step put into quarantine, and the dataset's columns; None if there are none.

    Args:
        spark: the session.
        storage: the object storage.
        dataset: the dataset.
        placed: a source operator of the dataset.
        added: the runs that the step added to traces.
        folder: where to write the rows for Spark; it belongs to the attempt.
    """
    from pyspark.sql import functions as sf

    source = placed.operator
    assert isinstance(source, ChangesSource)
    entries = [run.entry for run in added if run.trace == placed.traces[ASIDE]]
    trace = Trace(placed.traces[ASIDE], source.layouts[ASIDE], entries, Cache(storage.objects, None))
    sink = SpillSink("", (), source.types)
    objects = []
    for number, table in enumerate(trace.scan()):
        rows = source.set_aside(table)
        file = write_rows(storage.objects, sink, folder, rows, number, write_now) if rows.num_rows else None
        if file is not None:
            _, key, count, size, _ = file
            objects.append(StoredObject(uri=key, rows=count, size=size))
    if not objects:
        return None
    schema = to_spark(parse(dataset.schema).unlimited())
    frame = SpilledInput(spark, storage, source.out, objects).frame()
    columns = [sf.col(f"c{i}").cast(each.dataType).alias(each.name) for i, each in enumerate(schema.fields)]
    weighted = frame.select(*columns, sf.col("_w").alias(STORED))
    return weighted_rows.identified(weighted, schema), schema
