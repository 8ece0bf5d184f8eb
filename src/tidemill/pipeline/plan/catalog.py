"""The catalog of a plan: the tables that are known so far, and the stages that declare them."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import msgspec

from tidemill.errors import DatasetUnknown, DeclarationError
from tidemill.lots import datasets
from tidemill.lots.checks import QUARANTINE_SCHEMA, Check, quarantine_of
from tidemill.lots.datasets import Dataset, Drift, Kind
from tidemill.lots.ids import Unit
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.plan.stages import DeclareDataset, Stage
from tidemill.pipeline.source_line import Line
from tidemill.pipeline.writes import spelled
from tidemill.spark import schema
from tidemill.spark.drift import evolved
from tidemill.spark.frame_checks import verify
from tidemill.spark.operations import stored_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class Known:
    """A table as far as planning has come."""

    dataset: Dataset | None  # None for a view
    ddl: str
    retracts: bool


class Catalog:
    """What planning has found so far, for all who plan."""

    def __init__(self, pipeline: "Pipeline", spark: "SparkSession") -> None:
        self.pipeline = pipeline
        self.spark = spark
        self.known: dict[str, Known] = {}
        self.stages: list[Stage] = []
        self.datasets: dict[DatasetId, Dataset] = {}
        self._frames: dict[str, DataFrame] = {}

    def add(self, dataset: Dataset, line: Line, *, made_by: str = "") -> Dataset:
        """A table, with the columns it has by now where they may be more than are declared (LOT-34)."""
        if dataset.drift is Drift.EVOLVE:
            dataset = self.evolved(dataset)
        self.datasets[dataset.id] = dataset
        self.known[dataset.name] = Known(dataset, dataset.schema, dataset.kind is not Kind.ROWS)
        self.stages.append(DeclareDataset(dataset=dataset, where=str(line), made_by=made_by))
        return dataset

    def adopt(self, dataset: Dataset) -> None:
        """A table that somebody else declared."""
        self.datasets[dataset.id] = dataset
        self.known[dataset.name] = Known(dataset, dataset.schema, dataset.kind is not Kind.ROWS)

    def evolved(self, dataset: Dataset) -> Dataset:
        site = self.pipeline.site
        try:
            known = site.store.run(lambda tx: datasets.read(tx, site.keys.lots, dataset.id))
        except DatasetUnknown:
            return dataset
        grown = evolved(known, dataset)
        return msgspec.structs.replace(dataset, schema=grown.schema, fingerprint=grown.fingerprint)

    # --- checks

    def expected(self, dataset: Dataset, checks: Sequence[Check]) -> None:
        """Are these checks of such rows? By Spark's own analysis."""
        if checks:
            verify(self.spark.createDataFrame([], dataset.schema), checks)

    @staticmethod
    def refuse_intervals(dataset: Dataset, checks: Sequence[Check]) -> None:
        of_lots = [one.name for one in checks if one.of_lots]
        if of_lots and dataset.unit is not None:
            raise DeclarationError(
                f"the check {of_lots[0]} is about a whole lot, and lots of {dataset.name} gather appends"
                " that are written one by one",
                hint="check it in an arc that reads it",
            )

    def quarantine(self, of: DatasetId, unit: Unit | None, line: Line, made_by: str) -> DatasetId:
        """A table for what does not fit another one."""
        found = quarantine_of(of)
        if found.name in self.pipeline.names:
            raise DeclarationError(
                f"what does not fit {of.name} goes to {found.name}, which is another table",
                hint="give that table another name",
            )
        dataset = Dataset(name=found.name, version=found.version, unit=unit, schema=QUARANTINE_SCHEMA)
        self.add(spelled(dataset), line, made_by=made_by)
        return found

    def near(self, name: str) -> str:
        near = get_close_matches(name, self.pipeline.names, n=1)
        return f"there is no such table; did you mean {near[0]}?" if near else "there is no such table"

    # --- empty frames, for Spark to analyse

    def empty(self, known: Known) -> "DataFrame":
        kind = Kind.ROWS if known.dataset is None else known.dataset.kind
        return self.spark.createDataFrame([], stored_schema(known.ddl, kind))

    def frame(self, name: str) -> "DataFrame":
        """An empty frame of a table; made once, since Spark is asked for it."""
        if name not in self._frames:
            self._frames[name] = self.spark.createDataFrame([], self.known[name].ddl)
        return self._frames[name]


def ddl_of(frame: "DataFrame") -> str:
    """The columns of a frame as files hold them."""
    return str(schema.of_spark(frame.schema).stored())


def short(error: Exception) -> str:
    """The first lines of what Spark says: the plan behind them helps nobody."""
    text = str(error).split("\n\nJVM stacktrace")[0].split(";\n'")[0]
    return " ".join(text.split())[:600]
