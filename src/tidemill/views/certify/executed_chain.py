"""Execute the chain of several views on generated steps, as the steps of a group do (DBSP-17, DBSP-19).

The chain, its kernels, row expressions, lots, traces and run files come from the functions that execute real
steps. Only the tables of views are replaced, by their contents in memory.

The first step loads the views. A step without changes loads them again, which must give the same rows. One
step also runs as a Spark job, and both places must give the same rows.

A step fails as a whole if one of its views raises an error. Then each view is executed alone to find the
ones that raise it. Like in a pipeline, such a view has lost its state: later steps load it.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.clock import SYSTEM
from tidemill.objects import place_of
from tidemill.objects.local import LocalObjects
from tidemill.spark.lot_reader import no_rows
from tidemill.spark.sessions import frame_of
from tidemill.spark.storage import Storage
from tidemill.views.certify.bounds import MOST_ROWS, BoundExceeded, Bounds, ends_spark
from tidemill.views.certify.equality import Row
from tidemill.views.certify.generated_lots import GeneratedLots
from tidemill.views.certify.query_results import NUMBER, collect_numbered
from tidemill.views.certify.table_contents import Step
from tidemill.views.certify.table_facts import TableFacts
from tidemill.views.chain.chain import Chain
from tidemill.views.chain.layer_task import StepPlan, TaskReport
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.circuit.operators import Operator, ViewOutput
from tidemill.views.circuit.render import Renderer
from tidemill.views.kernels.zsets import net_rows
from tidemill.views.spark.arrow_types import struct_of
from tidemill.views.spark.executor import ChainExecutor
from tidemill.views.spark.group_chain import group_chain, input_kind
from tidemill.views.spark.in_process_executor import InProcessExecutor, TooLargeInProcess
from tidemill.views.spark.spark_executor import SparkExecutor
from tidemill.views.spark.step_inputs import FrameInput, LotInput, StepInput
from tidemill.views.spark.tasks import TaskPaths, forget_objects
from tidemill.views.trace.hash_space import ranges
from tidemill.views.trace.version import TraceChanges, TraceVersion
from tidemill.views.trace.version_file import write_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

RANGES: Final = 2
_WEIGHT: Final = "_w"
_numbers = count()


class WrongRows(Exception):
    """The executed chain has rows that no view can have, or the same step has several results."""


@dataclass
class _Executed:
    """What a step of a chain has computed.

    - contents: the rows of each view after the step, with their counts.
    - version: the traces after the step.
    - wrong: the views for which the step has several results.
    """

    contents: dict[str, pa.Table]
    version: TraceVersion
    wrong: dict[str, Exception] = field(default_factory=dict)


class ExecutedViews:
    """The contents of views that one chain maintains, step by step.

    Args:
        spark: the session, for types and row expressions.
        folder: an empty folder for lots, run files and the changes of views.
        ddl: the columns of each table.
        facts: how each table changes.
        outputs: the circuits of the views.
        bounds: limits on the number of rows and on the time.
    """

    def __init__(
        self,
        spark: "SparkSession",
        folder: Path,
        ddl: Mapping[str, str],
        facts: Mapping[str, TableFacts],
        outputs: Mapping[str, ViewOutput],
        bounds: Bounds | None = None,
    ) -> None:
        self._spark = spark
        self._bounds = bounds
        self._objects = LocalObjects(folder, SYSTEM, random.Random())
        self._lots = GeneratedLots(spark, self._objects, ddl, facts)
        datasets = self._lots.datasets
        self._group = group_chain(
            spark,
            outputs,
            {name: no_rows(spark, dataset.schema) for name, dataset in datasets.items()},
            {name: input_kind(dataset) for name, dataset in datasets.items()},
            f"certify{next(_numbers)}",
        )
        self._version, self._key, self._attempts = TraceVersion(), "", 0
        self._contents: dict[str, pa.Table] = {}
        self._lost: set[str] = set()
        self._errors: dict[str, Exception] = {}
        self._after: list[dict[str, pa.Table | Exception]] = []  # the contents after each step

    @property
    def views(self) -> frozenset[str]:
        """The views that a chain computes."""
        return self._group.views

    @property
    def reasons(self) -> Mapping[str, str]:
        """For each other view, why each step runs its original query."""
        return self._group.reasons

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        forget_objects(str(place_of(self._objects)))

    # --- results

    def contents(self) -> dict[str, list[pa.Table | Exception]]:
        """Return the rows of each view after each step, with their counts, or the error of the step."""
        return {view: [after[view] for after in self._after] for view in self.views}

    def results(self) -> dict[str, list[list[Row] | Exception]]:
        """Return the rows of each view after each step, or the error that the step raised.

        One Spark job reads the rows of all views and steps, so that they have the same form as the rows of
        queries.
        """
        contents = {id(rows): (view, rows) for after in self._after for view, rows in after.items()}
        by_type: dict[tuple[str, ...], list[int]] = {}
        for key, (view, rows) in contents.items():
            if isinstance(rows, pa.Table):
                by_type.setdefault(tuple(self._group.types[view]), []).append(key)
        frames: dict[range, DataFrame] = {}
        numbers: dict[int, int] = {}
        for types, keys in by_type.items():
            first = len(numbers)
            numbers |= {key: first + place for place, key in enumerate(keys)}
            tables = [_numbered(self._repeated(contents[key][1]), numbers[key]) for key in keys]
            columns = struct_of([*(f"c{i}" for i in range(len(types))), NUMBER], [*types, "int"])
            rows = pa.concat_tables(tables)
            empty = not rows.num_rows
            frames[range(first, len(numbers))] = (
                no_rows(self._spark, columns) if empty else frame_of(self._spark, rows, columns)
            )
        collected = collect_numbered(self._spark, frames, bounds=self._bounds)
        return {
            view: [
                rows if isinstance(rows, Exception) else collected[numbers[id(rows)]]
                for rows in (after[view] for after in self._after)
            ]
            for view in sorted(self.views)
        }

    def _repeated(self, content: pa.Table) -> pa.Table:
        """Return the rows of a view without counts: each row as many times as its count says."""
        counts = content[_WEIGHT].to_numpy()
        self._check(int(counts.sum()))
        return content.drop_columns([_WEIGHT]).take(pa.array(np.repeat(np.arange(len(counts)), counts)))

    # --- steps

    def run(self, step: Step, *, raising: Collection[str] = (), as_job: bool = False) -> None:
        """Execute a step for all views.

        Args:
            step: the step; its rows are written to lots.
            raising: the views that are expected to raise an error.
            as_job: whether to execute the step as a Spark job too.
        """
        self._run(step, frozenset(raising) & self.views, as_job=as_job)
        self._after.append({view: self._errors.get(view) or self._content(view) for view in self.views})

    def _content(self, view: str) -> pa.Table | WrongRows:
        content = self._contents[view]
        if (content[_WEIGHT].to_numpy() < 0).any():
            return WrongRows("it has rows with a negative count")
        return content

    def _run(self, step: Step, raising: frozenset[str], *, as_job: bool) -> None:
        changes = self._lots.add(step)
        self._errors = {}
        for view in sorted(self._lost):
            self._execute_alone(view, self._loaded)
        for view in sorted(raising - self._lost):
            self._execute_alone(view, lambda views: self._executed(views, changes))
        self._lost |= raising
        views = self.views - self._lost
        if not views:
            return

        def execute(views: frozenset[str]) -> _Executed:
            return self._executed(views, changes, as_job=as_job)

        executed = self._tried(views, execute)
        if isinstance(executed, Exception):
            failed = {view: error for view in views if (error := self._error(view, execute)) is not None}
            self._errors |= failed or dict.fromkeys(views, executed)  # perhaps it fails only with others
            self._lost |= self._errors.keys()
            views -= self._lost
            executed = self._tried(views, execute)
            if isinstance(executed, Exception):
                self._errors |= dict.fromkeys(views, executed)
                self._lost |= views
                return
        self._errors |= executed.wrong
        self._keep(executed.contents)
        self._version, self._key = executed.version, f"versions/{self._attempts:06}"
        write_version(self._objects, self._key, executed.version)

    def _execute_alone(self, view: str, execute: Callable[[frozenset[str]], _Executed]) -> None:
        """Execute a step for one view; keep its rows or its error, but no state."""
        executed = self._tried(frozenset({view}), execute)
        if isinstance(executed, Exception):
            self._errors[view] = executed
        else:
            self._keep(executed.contents)

    def _keep(self, contents: Mapping[str, pa.Table]) -> None:
        for view, rows in contents.items():
            if view not in self._contents or not rows.equals(self._contents[view]):
                self._contents[view] = rows

    def _error(self, view: str, execute: Callable[[frozenset[str]], _Executed]) -> Exception | None:
        executed = self._tried(frozenset({view}), execute)
        return executed if isinstance(executed, Exception) else None

    def _tried(
        self, views: frozenset[str], execute: Callable[[frozenset[str]], _Executed]
    ) -> _Executed | Exception:
        """Execute a step for these views; return the error if a view raises one."""
        self._check()
        try:
            return execute(views)
        except TooLargeInProcess as error:
            raise BoundExceeded("on generated test data, its steps need too much memory") from error
        except (BoundExceeded, OSError):
            raise
        except Exception as error:
            self._check()
            if ends_spark(error):
                raise
            return error

    def _check(self, rows: int = 0) -> None:
        if self._bounds is not None:
            self._bounds.check()
        most = MOST_ROWS if self._bounds is None else self._bounds.rows
        if rows > most:
            raise BoundExceeded(f"on generated test data, its queries return more than {most:,} rows")

    def _executed(
        self, views: frozenset[str], changes: Mapping[str, LotInput], *, as_job: bool = False
    ) -> _Executed:
        """Execute a step for these views."""
        if not self._key:
            return self._loaded(views)
        if not changes:
            loaded = self._loaded(views)
            loaded.wrong = _differing(self._contents, loaded.contents, "a reload gives other rows")
            return loaded
        chain = self._chain
        plan = StepPlan(chain, self._below(views), ranges(RANGES))
        inputs = {name: rows for name, rows in changes.items() if name in chain.inputs}
        executor = self._place(InProcessExecutor, plan, inputs)
        lost = chain.above({int(number) for report in executor.reports for number in report.exhausted})
        stepped = {view for view in views if chain.outputs[view].number not in lost}
        written = {view: self._written(view, executor.reports) for view in stepped}
        wrong: dict[str, Exception] = {}
        if as_job:
            reports = self._place(SparkExecutor, plan, inputs).reports
            of_job = {view: self._written(view, reports) for view in stepped}
            wrong = _differing(written, of_job, "as a Spark job the step gives other changes")
        contents = {
            view: net_rows(pa.concat_tables([self._contents[view], rows])) for view, rows in written.items()
        }
        if not lost:
            version = self._version.apply(
                self._version.step + 1, executor.changes.added, executor.changes.merged
            ).version
            return _Executed(contents, version, wrong)
        loaded = self._loaded(views - stepped, missing=lost & plan.active, stepped=executor.changes)
        return _Executed(contents | loaded.contents, loaded.version, wrong)

    def _loaded(
        self,
        views: frozenset[str],
        *,
        missing: frozenset[int] | None = None,
        stepped: TraceChanges | None = None,
    ) -> _Executed:
        """Load views from all lots.

        Args:
            views: the views.
            missing: the operators whose traces are built; by default all that the views need.
            stepped: the changes of the other traces in the same step.
        """
        chain = self._chain
        base = TraceVersion() if missing is None else self._version
        missing = self._below(views) if missing is None else missing
        plan = StepPlan(chain, chain.below(missing), ranges(RANGES + 1), first=True, stored=missing)
        inputs: dict[str, StepInput] = {
            name: rows for name, rows in self._lots.all().items() if name in chain.inputs
        }
        inputs |= {name: FrameInput(self._constant(op)) for name, op in chain.constants}
        executor = self._place(InProcessExecutor, plan, inputs)
        rebuilt = {trace for number in missing for trace in chain.operators[number].traces.values()}
        changes = executor.changes
        if stepped is not None:
            kept = TraceChanges(
                tuple(run for run in stepped.added if run.trace not in rebuilt),
                tuple(runs for runs in stepped.merged if runs.trace not in rebuilt),
            )
            changes = TraceChanges.combine([kept, changes])
        step = self._version.step + 1
        version = base.apply(step, changes.added, changes.merged, rebuilt=rebuilt).version
        return _Executed({view: self._written(view, executor.reports) for view in views}, version)

    # --- one execution of the chain

    @property
    def _chain(self) -> Chain:
        assert self._group.chain is not None
        return self._group.chain

    def _below(self, views: Iterable[str]) -> frozenset[int]:
        """Return the operators that these views need."""
        return self._chain.below({self._chain.outputs[view].number for view in views})

    def _place(
        self, place: type[ChainExecutor], plan: StepPlan, inputs: Mapping[str, StepInput]
    ) -> ChainExecutor:
        """Execute a step in this process or as a Spark job."""
        self._attempts += 1
        prefix = f"attempts/{self._attempts:06}/"
        folders = tuple((view, f"{prefix}view-{view}/") for view in sorted(self._chain.outputs))
        version = "" if plan.first else self._key
        paths = TaskPaths(place_of(self._objects), version, prefix, folders, "off")
        return place(self._spark, Storage(self._objects), plan, paths, self._types_of).run(inputs)

    def _constant(self, operator: Operator) -> "DataFrame":
        columns = [*(f"c{i}" for i in range(operator.width)), f"1L AS {_WEIGHT}"]
        inner = Renderer().sql(operator, [])
        return self._spark.sql(f"SELECT {', '.join(columns)} FROM ({inner})")  # noqa: S608 - the view's query

    # --- rows

    def _sink(self, view: str) -> OutputSink:
        sink = self._chain.outputs[view].operator
        assert isinstance(sink, OutputSink)
        return sink

    def _types_of(self, number: int) -> "list[DataType]":
        sink = self._chain.operators[number].operator
        assert isinstance(sink, OutputSink)
        fields = struct_of(sink.names, self._group.types[sink.view]).fields
        return [each.dataType for each in fields]

    def _written(self, view: str, reports: Iterable[TaskReport]) -> pa.Table:
        """Return the changes that tasks have written for a view: c0, c1, … and the weight."""
        types = [*self._sink(view).types, pa.int64()]
        names = [*(f"c{i}" for i in range(len(types) - 1)), _WEIGHT]
        columns = pa.schema(list(zip(names, types, strict=True)))
        parts = [columns.empty_table()]
        for written, key, *_ in (file for report in reports for file in report.files):
            if written == view:
                body = pq.read_table(pa.BufferReader(self._objects.get(key)[0]))
                stored = [name for name in body.column_names if name not in {"_h1", "_h2"}]
                parts.append(body.select(stored).rename_columns(names).cast(columns))
        return net_rows(pa.concat_tables(parts))


def differing_contents(
    expected: Mapping[str, Sequence[pa.Table | Exception]],
    actual: Mapping[str, Sequence[pa.Table | Exception]],
) -> list[str]:
    """Return the views that have other rows after a step, or raise an error in other steps."""
    return [
        view
        for view, steps in actual.items()
        if view not in expected
        or any(_differ(view, *pair) for pair in zip(expected[view], steps, strict=True))
    ]


def _differ(view: str, expected: pa.Table | Exception, actual: pa.Table | Exception) -> bool:
    if isinstance(expected, Exception) or isinstance(actual, Exception):
        return not (isinstance(expected, Exception) and isinstance(actual, Exception))
    return bool(_differing({view: expected}, {view: actual}, ""))


def _differing(
    expected: Mapping[str, pa.Table], actual: Mapping[str, pa.Table], why: str
) -> dict[str, Exception]:
    """Return an error for each view whose rows differ."""
    errors: dict[str, Exception] = {}
    for view, rows in actual.items():
        place = rows.num_columns - 1
        negated = rows.set_column(place, _WEIGHT, pa.array(-rows[_WEIGHT].to_numpy()))
        rest = net_rows(pa.concat_tables([expected[view], negated]))
        if rest.num_rows:
            errors[view] = WrongRows(f"{why}: {rest.slice(0, 3).to_pylist()}")
    return errors


def _numbered(rows: pa.Table, number: int) -> pa.Table:
    """Append a column with the number of a result."""
    return rows.append_column(NUMBER, pa.array([number] * rows.num_rows, pa.int32()))
