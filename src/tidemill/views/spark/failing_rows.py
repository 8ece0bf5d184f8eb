"""Find the lot and the row on which a view fails (DBSP-40).

The view's query runs on less and less of its input: first on the lots that arrived in the step, then on the
rows of one lot. Its other tables are complete. A search of this kind finds a row that raises the error alone,
such as a division by zero. If only several rows together raise it, such as a sum that overflows, the result
names the lots.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from tidemill.errors import ViewError
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot
from tidemill.spark.lot_reader import read_errors
from tidemill.views.spark.dataset_contents import dataset_frame
from tidemill.views.spark.execution import size_of
from tidemill.views.spark.failures import failing_view
from tidemill.views.spark.recompute import query_result, with_copied
from tidemill.views.spark.view_sources import ViewCode, ViewSources
from tidemill.views.steps.commits import StepBatch
from tidemill.views.steps.failed_views import FailedInput
from tidemill.views.steps.inputs import LotSlice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_LOTS = 5
"""How many lots to name."""

MOST_ROWS = 100_000
"""The largest lot that is searched, and the most rows that the view's other tables may have."""

MOST_CHARS = 500

T = TypeVar("T")


def failed_input(sources: ViewSources, batch: StepBatch, view: str, tag: str) -> FailedInput:
    """Return the lots of a step on which a view fails, and the row if there is only one.

    Args:
        sources: what views are computed from.
        batch: the step.
        view: the view, which failed in this step.
        tag: a name that no concurrent query uses.
    """
    from pyspark.errors import PySparkException

    code = sources.code(view)
    arrived = {
        name: lots
        for name, dataset in code.datasets.items()
        if (lots := _lots(sources, batch, view, dataset))
    }
    all_lots = FailedInput(
        lots=tuple(_named(code.datasets[name], lot) for name, lots in arrived.items() for lot in lots)[
            :MOST_LOTS
        ]
    )
    if any(name not in batch.tables for name in code.views):
        return all_lots  # a view that it reads has no table yet
    for name, lots in arrived.items():
        search = _Search(sources, batch, code, name, tag)
        try:
            if not search.is_small() or not search.fails_on_lots(lots):
                continue
            failing = _smallest(lots, search.fails_on_lots)
            row = search.row_of(failing) if len(failing) == 1 else ""
        except (PySparkException, ViewError):
            continue  # the search is optional
        return FailedInput(
            lots=tuple(_named(code.datasets[name], lot) for lot in failing[:MOST_LOTS]), row=row
        )
    return all_lots


def _lots(sources: ViewSources, batch: StepBatch, view: str, dataset: DatasetId) -> Sequence[LotSlice]:
    """Return the lots of a dataset that arrived in the step; all of its lots if the step loads the view."""
    if dataset not in sources.datasets:
        return ()  # an alarm
    if view in batch.stale or view not in batch.tables:
        lots = sources.inputs.at(dataset, batch.positions[dataset])
        return sources.inputs.passing_over(dataset, lots, batch.passed.get(view, ()))
    if dataset not in batch.moved:
        return ()
    return sources.inputs.between(dataset, batch.before[dataset], batch.positions[dataset]).plus


def _named(dataset: DatasetId, lot: LotSlice) -> InputLot:
    return InputLot(dataset=dataset.name, version=dataset.version, lot=lot.lot, generation=lot.generation)


def _smallest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Halve a list that fails, as long as one of its halves fails alone."""
    while len(items) > 1:
        middle = len(items) // 2
        halves = (items[:middle], items[middle:])
        half = next((half for half in halves if fails(half)), None)
        if half is None:
            break
        items = half
    return items


class _Search:
    """Runs a view's query on parts of one of its datasets.

    - name: the dataset in the query.
    """

    def __init__(self, sources: ViewSources, batch: StepBatch, code: ViewCode, name: str, tag: str) -> None:
        self._sources = sources
        self._batch = batch
        self._code = code
        self._name = name
        self._tag = tag
        self._spark = sources.session()

    def is_small(self) -> bool:
        """Return whether the view's other datasets are small enough to be read in each trial."""
        others = {dataset for name, dataset in self._code.datasets.items() if name != self._name}
        sizes = [
            size_of(self._sources.inputs.at(dataset, self._batch.positions[dataset])).rows
            for dataset in others & self._sources.datasets.keys()
        ]
        return sum(sizes) <= MOST_ROWS

    def fails_on_lots(self, lots: Sequence[LotSlice]) -> bool:
        """Return whether the query fails on the rows of these lots."""
        return self._fails(self._frame(lots))

    def _frame(self, lots: Sequence[LotSlice]) -> "DataFrame":
        dataset = self._sources.datasets[self._code.datasets[self._name]]
        return dataset_frame(self._spark, self._sources.tables.storage, dataset, lots)

    def row_of(self, lots: Sequence[LotSlice]) -> str:
        """Return the row of these lots that fails, as JSON; empty if no single row fails alone."""
        if size_of(lots).rows > MOST_ROWS:
            return ""
        frame = self._frame(lots)
        rows = frame.toArrow()

        def part(numbers: Sequence[int]) -> "DataFrame":
            return self._spark.createDataFrame(rows.slice(numbers[0], len(numbers)), frame.schema)

        failing = _smallest(
            range(rows.num_rows), lambda numbers: bool(numbers) and self._fails(part(numbers))
        )
        if len(failing) != 1:
            return ""
        (row,) = rows.slice(failing[0], 1).to_pylist()
        return _text(row)

    def _fails(self, rows: "DataFrame") -> bool:
        batch, code, sources = self._batch, self._code, self._sources
        frames = {
            name: rows if name == self._name else sources.dataset(batch, dataset, code.name)
            for name, dataset in code.datasets.items()
        } | {name: sources.tables.content(self._spark, batch.tables[name]) for name in code.views}
        try:
            with (
                failing_view(code),
                with_copied(sources, code, frames, batch.now, self._tag) as inputs,
                query_result(self._spark, code, inputs, batch.now, self._tag) as result,
                read_errors(sources.tables.storage),
            ):
                result.write.format("noop").mode("overwrite").save()
        except ViewError as error:
            if error.view is None:
                raise
            return True
        return False


def _text(row: Mapping[str, object]) -> str:
    return json.dumps(row, ensure_ascii=False, default=str)[:MOST_CHARS]
