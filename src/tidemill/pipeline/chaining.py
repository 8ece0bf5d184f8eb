"""Whether the views of a group follow the change, or are recomputed, and why: known at plan (DBSP-17)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.lots.datasets import Dataset
from tidemill.lots.keys import DatasetId
from tidemill.runner.program import ViewProgram
from tidemill.spark.lot_reader import no_rows
from tidemill.views.spark.chains import Chained, chained, kind_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def chain_of(
    spark: "SparkSession", views: Sequence[ViewProgram], datasets: Mapping[DatasetId, Dataset]
) -> Chained:
    """The chain of a group's views, as a runner will make it."""
    read = {name: datasets[id_] for view in views for name, id_ in view.datasets.items()}
    return chained(
        spark,
        {view.name: None if view.refresh == "full" else view.circuit for view in views},
        {name: no_rows(spark, one.schema) for name, one in read.items()},
        {name: kind_of(one) for name, one in read.items()},
        "chain",
    )
