"""Read the tables of a pipeline as Arrow tables, without Spark where that is certain to give the same rows.

Like a DataFrame (`reader`), an Arrow table shows a table as of one position.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.errors import BadSchema, FileMismatch, TypeRefused
from tidemill.pipeline.reader import TableReader
from tidemill.spark import schema as schemas
from tidemill.views.spark.arrow_contents import dataset_table, view_table

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


def arrow_table(pipeline: "Pipeline", name: str) -> pa.Table:
    """Return a table as it is now. Spark reads it if Arrow might read other rows."""
    table = arrow_tables(pipeline, [name]).get(name)
    if table is not None:
        return table
    with pipeline.context.spark() as spark:
        return TableReader(pipeline, spark).table(name).toArrow()


def arrow_tables(pipeline: "Pipeline", names: Iterable[str]) -> dict[str, pa.Table]:
    """Return these tables as of the same moment, except those that only Spark can read.

    Raise `NothingYet` if one of them does not exist yet.
    """
    with pipeline.context.spark() as spark:
        reader = TableReader(pipeline, spark)
        moment = reader.moment(names)
        tables: dict[str, pa.Table | None] = {
            name: view_table(reader.tables, manifest) for name, manifest in moment.manifests.items()
        }
        for name, (row, head) in moment.datasets.items():
            slices = reader.inputs.at(row.id, head, complete=False)
            try:
                rows = dataset_table(spark, pipeline.context.storage, row, slices)
                declared = schemas.to_arrow(schemas.parse(row.schema).stored())
                tables[name] = None if rows is None else rows.cast(declared)
            except (BadSchema, FileMismatch, TypeRefused, pa.ArrowInvalid, pa.ArrowNotImplementedError):
                tables[name] = None
    return {name: table for name, table in tables.items() if table is not None}
