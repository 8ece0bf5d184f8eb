"""Collect the tables that planning knows so far, and the stages that declare them."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tidemill.errors import DatasetChanged, DatasetUnknown, DeclarationError
from tidemill.lots import datasets
from tidemill.lots.checks import QUARANTINE_SCHEMA, Check, quarantine_of
from tidemill.lots.datasets import DatasetRow, Kind
from tidemill.lots.ids import Unit
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.plan.stages import DeclareDataset, PlanStage
from tidemill.pipeline.source_line import SourceLine
from tidemill.spark import schema
from tidemill.spark.analyses import Answer
from tidemill.spark.drift import effective, evolved
from tidemill.spark.frame_checks import verify
from tidemill.spark.operations import stored_schema
from tidemill.spark.planning_memo import PlanningMemo, SparkEngine, analyses_of, engine_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidemill.pipeline.pipeline import Pipeline

_checked: PlanningMemo[str] = PlanningMemo()
Value = TypeVar("Value")


@dataclass(frozen=True)
class KnownTable:
    """A table that planning knows; `dataset` is None for a view."""

    dataset: DatasetRow | None
    ddl: str
    retracts: bool


class LazyTables(Mapping[str, Value]):
    """A value for each table, made when it is first read: a pipeline can have hundreds of tables.

    Args:
        names: the names of the tables.
        make: makes the value of a table.
    """

    def __init__(self, names: Collection[str], make: Callable[[str], Value]) -> None:
        self._names = names
        self._make = make
        self._values: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._values:
            self._values[name] = self._make(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Catalog:
    """The tables and stages of a plan so far, shared by all planners."""

    def __init__(self, pipeline: "Pipeline", spark: "SparkSession") -> None:
        self.pipeline = pipeline
        self.spark = spark
        self.tables: dict[str, KnownTable] = {}
        self.stages: list[PlanStage] = []
        self.datasets: dict[DatasetId, DatasetRow] = {}
        self._frames: dict[str, DataFrame] = {}

    def add(self, dataset: DatasetRow, line: SourceLine, *, made_by: str = "") -> DatasetRow:
        """Add a table. If it evolves, it may have more columns in the store than are declared (LOT-34)."""
        stored = self._stored(dataset.id)
        if stored is not None:
            with suppress(DatasetChanged):  # the stage of the table reports the refusal
                columns = datasets.combine(stored, dataset, evolved)
                dataset = msgspec.structs.replace(
                    dataset, schema=columns.schema, fingerprint=columns.fingerprint
                )
        self.datasets[dataset.id] = dataset
        self.tables[dataset.name] = KnownTable(dataset, dataset.schema, dataset.kind is not Kind.ROWS)
        self.stages.append(DeclareDataset(dataset=dataset, where=str(line), made_by=made_by))
        return dataset

    def adopt(self, dataset: DatasetRow) -> None:
        """Add a table that another pipeline declares."""
        self.datasets[dataset.id] = dataset
        self.tables[dataset.name] = KnownTable(dataset, dataset.schema, dataset.kind is not Kind.ROWS)

    def _stored(self, dataset_id: DatasetId) -> DatasetRow | None:
        context = self.pipeline.context
        try:
            return context.store.run(lambda tx: datasets.read(tx, context.keys.lots, dataset_id))
        except DatasetUnknown:
            return None

    @cached_property
    def engine(self) -> SparkEngine:
        """The version and settings of Spark: part of the key under which planning caches a result."""
        return engine_of(self.spark)

    # --- checks

    def once(self, subject: Hashable, check: Callable[[], None]) -> None:
        """Run a check on Spark, unless it has already run with the same version and settings."""

        def passes() -> str:
            check()
            return ""

        _checked.get((self.engine, subject), partial(self.ask, ("check", subject), passes, str))

    def ask(self, question: object, ask: Callable[[], Answer], kind: type[Answer]) -> Answer:
        """Return the answer of Spark's analysis to a question; ask Spark only if it is new."""
        engine = (self.engine.version, sorted(self.engine.settings))
        return analyses_of(self.spark).get((engine, question), ask, kind)

    def expected(self, dataset: DatasetRow, checks: Sequence[Check]) -> None:
        """Let Spark verify that the checks fit the columns of the dataset."""
        if checks:
            subject = (dataset.schema, tuple(checks))
            self.once(subject, lambda: verify(schema.empty_frame(self.spark, dataset.schema), checks))

    @staticmethod
    def refuse_intervals(dataset: DatasetRow, checks: Sequence[Check]) -> None:
        """Refuse checks that need a whole lot, if the dataset's lots are intervals that collect appends."""
        of_lots = [check.name for check in checks if check.needs_whole_lot]
        if of_lots and dataset.unit is not None:
            raise DeclarationError(
                f"{dataset.name}: the check {of_lots[0]} needs all rows of a lot, but each lot of this"
                " dataset collects several appends",
                hint="declare the check on an arc that reads the dataset",
            )

    def quarantine(
        self, dataset_id: DatasetId, unit: Unit | None, line: SourceLine, made_by: str
    ) -> DatasetId:
        """Add the quarantine table of a dataset."""
        quarantine = quarantine_of(dataset_id)
        if quarantine.name in self.pipeline.names:
            raise DeclarationError(
                f"the name {quarantine.name} is reserved for the quarantine table of {dataset_id.name}",
                hint=f"rename the table {quarantine.name}",
            )
        dataset = DatasetRow(
            name=quarantine.name, version=quarantine.version, unit=unit, schema=QUARANTINE_SCHEMA
        )
        self.add(effective(dataset), line, made_by=made_by)
        return quarantine

    def near(self, name: str) -> str:
        """Return a hint for a table that does not exist."""
        near = get_close_matches(name, self.pipeline.names, n=1)
        return f"did you mean {near[0]}?" if near else "declare it, or correct the name"

    # --- empty frames, for Spark to analyse

    def empty(self, table: KnownTable) -> "DataFrame":
        kind = Kind.ROWS if table.dataset is None else table.dataset.kind
        return schema.empty_frame(self.spark, stored_schema(table.ddl, kind))

    def frame(self, name: str) -> "DataFrame":
        """Return an empty DataFrame with the columns of a table, cached to save calls to Spark."""
        if name not in self._frames:
            self._frames[name] = schema.empty_frame(self.spark, self.tables[name].ddl)
        return self._frames[name]


def ddl_of(columns: "StructType") -> str:
    """Return the columns of a DataFrame with the types that they have in files.

    In files, all columns are nullable, and texts have no maximum length.
    """
    return str(schema.of_spark(columns).stored())
