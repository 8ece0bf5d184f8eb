"""Write generated rows to lots, as appends of a dataset do. A chain reads them like all other lots."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.lots.manifest import StoredObject
from tidemill.objects.local import LocalObjects
from tidemill.schemas.type_table import why_not_native
from tidemill.spark import schema
from tidemill.spark.operations import stored_schema
from tidemill.spark.storage import Storage
from tidemill.views.certify.table_contents import Row, Step, TableContents
from tidemill.views.certify.table_facts import TableFacts
from tidemill.views.spark.step_inputs import LotInput
from tidemill.views.steps.inputs import LotSlice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class GeneratedLots:
    """The lots of several tables, in a folder.

    Args:
        spark: writes and reads the types that Arrow does not have.
        objects: the folder.
        ddl: the columns of each table.
        facts: how each table changes; a table without facts can have any change.
    """

    def __init__(
        self,
        spark: "SparkSession",
        objects: LocalObjects,
        ddl: Mapping[str, str],
        facts: Mapping[str, TableFacts],
    ) -> None:
        self._spark = spark
        self._objects = objects
        self._storage = Storage(objects)
        self._facts = {name: facts.get(name, TableFacts()) for name in ddl}
        self.datasets = {name: self._facts[name].dataset(name, columns) for name, columns in ddl.items()}
        self._lots: dict[str, list[LotSlice]] = {name: [] for name in ddl}
        self._positions = count(1)

    def add(self, step: Step) -> dict[str, LotInput]:
        """Write the changes of a step; return the new lots by table."""
        position = next(self._positions)
        added: dict[str, LotInput] = {}
        for name, lots in self._lots.items():
            rows = self._facts[name].stored(step, name)
            if rows:
                objects = (self._write(name, rows, position),)
                lot = LotSlice(position=position, lot=str(position), generation=1, objects=objects)
                lots.append(lot)
                added[name] = self._input(name, [lot])
        return added

    def all(self) -> dict[str, LotInput]:
        """Return all lots of each table."""
        return {name: self._input(name, lots) for name, lots in self._lots.items()}

    def _input(self, table: str, lots: Sequence[LotSlice]) -> LotInput:
        return LotInput(self._spark, self._storage, self.datasets[table], tuple(lots))

    def _write(self, table: str, rows: Sequence[Row], position: int) -> StoredObject:
        dataset = self.datasets[table]
        columns = schema.parse(stored_schema(dataset.schema, dataset.kind))
        key = f"lots/{position}/{list(self._lots).index(table)}.parquet"
        path = self._objects.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        if any(why_not_native(column.type) for column in columns.columns):
            contents = TableContents({table: str(columns)})
            contents.apply(Step(inserts={table: rows}))
            folder = path.with_suffix("")
            contents.frame(self._spark, table).write.parquet(folder.as_uri())
            (written,) = folder.glob("part-*.parquet")
            written.rename(path)
        else:
            pq.write_table(pa.Table.from_pylist(list(rows), schema.to_arrow(columns)), path)
        return StoredObject(uri=key, rows=len(rows), size=path.stat().st_size)
