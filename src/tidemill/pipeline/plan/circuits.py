"""Compile a view's query to a circuit during planning, and report errors with their position.

Spark analyses the query on empty tables. Tidemill's parser reports wrong names and syntax errors, because it
knows their position in the query. If the query's text is found in the user's file, the error names the line
of that file.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tidemill.errors import NotIncremental, QueryError, QueryRefused
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.source_line import SourceLine, position_in
from tidemill.runner.program import ViewProgram
from tidemill.spark import queries
from tidemill.spark.sessions import PINNED
from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.explanation import CircuitExplanation, explain
from tidemill.views.circuit.functions import UserFunction, ViewFunctions
from tidemill.views.circuit.ids import Pins
from tidemill.views.circuit.operators import InputTable, Operator, SparkColumn, ViewOutput
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.circuit.rungs import rungs
from tidemill.views.spark.group_chain import GroupChain, input_kind, remembered_chain
from tidemill.views.sql.catalog import Analyse, QueryTable
from tidemill.views.sql.compiler import compile_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Kind = TypeVar("Kind", bound=QueryError)
_POSITION = re.compile(r"line (\d+),? pos (\d+)")


@dataclass(frozen=True)
class ViewCircuit:
    """The circuit of a view.

    - output: the circuit as it runs, after rewrites.
    - notes: remarks for `explain`.
    - written: the circuit before rewrites.
    - functions: the digests of the declared functions that the query may call.
    """

    output: ViewOutput
    notes: tuple[str, ...]
    written: ViewOutput
    functions: Mapping[str, str] = field(default_factory=dict)


def table_of(name: str, frame: "DataFrame", *, key: Sequence[str] = (), append_only: bool) -> QueryTable:
    """Return a table for name resolution, from an empty DataFrame with its columns."""
    return QueryTable(name, _columns(frame.schema), tuple(key), append_only)


def _columns(struct: object) -> tuple[SparkColumn, ...]:
    return tuple(
        SparkColumn(field.name, field.dataType.simpleString())
        for field in struct.fields  # type: ignore[attr-defined]
    )


def make(
    spark: "SparkSession",
    sql: str,
    tables: Mapping[str, QueryTable],
    frames: "Mapping[str, DataFrame]",
    tag: str,
    analysed: "Callable[[StructType], object]" = lambda _: None,
    functions: Sequence[UserFunction] = (),
) -> ViewCircuit:
    """Compile a query to a circuit and rewrite the circuit. A `QueryError` names its position in the query.

    Args:
        spark: the session, for types and for Spark's own checks.
        sql: the query.
        tables: the tables that the query may read.
        frames: an empty DataFrame for each table.
        tag: a text that is different for every query that is being analysed.
        analysed: receives the columns of every query that Spark analyses, first those of `sql`.
        functions: the declared functions that the query may call; the session knows them.
    """
    compiled = compile_query(sql, tables, _analysis(spark, frames, tag, analysed), functions)
    output = rewrite(compiled.output, ViewFunctions(functions))
    return ViewCircuit(output, compiled.notes, compiled.output)


def _analysis(
    spark: "SparkSession",
    frames: "Mapping[str, DataFrame]",
    tag: str,
    analysed: "Callable[[StructType], object]",
) -> Analyse:
    from pyspark.errors import PySparkException

    def analyse(sql: str, _: Mapping[str, QueryTable]) -> Sequence[SparkColumn]:
        try:
            with queries.over(spark, sql, frames, tag) as frame:
                analysed(frame.schema)
                return _columns(frame.schema)
        except QueryError as error:
            raise QueryRefused(error.message, hint=error.hint) from None
        except PySparkException as error:
            raise _refusal(str(error), sql) from None

    return analyse


def _refusal(message: str, sql: str) -> QueryRefused:
    """Convert an error message of Spark to an error that names the same line but has no query plan."""
    position = _POSITION.search(message)
    for end in ("\n\nJVM stacktrace", "== SQL ==", ";\n'"):
        message = message.partition(end)[0]
    text = " ".join(message.split())
    error = QueryRefused(_POSITION.sub("", text).strip(" ;,")[:600])
    if position and int(position[1]) <= sql.count("\n") + 1:
        # In the text that Spark analyses, table names are longer: the line is right, the column may be wrong.
        error.line = int(position[1])
    return error


@contextmanager
def query_errors_at(line: SourceLine, sql: str) -> Iterator[None]:
    """Prefix errors of a query with their position in the user's file, if the position is known."""
    try:
        yield
    except QueryError as error:
        raise _located(error, line, sql) from error


def _located(error: Kind, line: SourceLine, sql: str) -> Kind:
    where = position_in(line, sql, error.line, error.column) if error.line else str(line)
    located = type(error)(f"{where}: {error.message}", hint=error.hint)
    for name, value in vars(error).items():
        if name not in vars(located):
            setattr(located, name, value)
    return located


def explained(
    circuits: Mapping[str, ViewCircuit], view: str, recomputed: Mapping[str, str]
) -> CircuitExplanation:
    """Explain a view, down to the datasets it reads.

    Args:
        circuits: the circuits of all views.
        view: the name of the view.
        recomputed: the views that each step recomputes, and why.
    """
    views = [view, *_views_read(circuits, view)]
    linked = Circuit({name: circuits[name].output for name in views}).linked().outputs
    unused: dict[Operator, str] = {}
    if view in recomputed:
        read = [linked[name] for name in views if name not in recomputed]
        chained = set(walk(*read))
        why = f"each step recomputes {view}: {recomputed[view]}"
        unused = {op: why for op in walk(linked[view]) if op not in chained}
    circuit = Circuit({view: linked[view]}, {view: circuits[view].notes})
    functions = {name: digest for each in circuits.values() for name, digest in each.functions.items()}
    return explain(circuit, Pins(settings=PINNED, functions=functions), recomputed=unused)


def _views_read(circuits: Mapping[str, ViewCircuit], view: str) -> set[str]:
    """Return the views that a view reads, directly or through other views."""
    tables = {op.table for op in walk(circuits[view].output) if isinstance(op, InputTable)}
    direct = tables & circuits.keys()
    return direct.union(*(_views_read(circuits, name) for name in direct))


def refuse_incremental(output: ViewOutput | None, line: SourceLine, why: str) -> None:
    """Raise `NotIncremental`, with every reason, if a view would be recomputed in each step.

    Args:
        output: the circuit of the view; None if it has no circuit.
        line: where the view is declared.
        why: why the kernels cannot compute the view; empty if they can.
    """
    reasons = [
        f"{op.kind}: {placed.reason}"
        for op, placed in (rungs(output) if output is not None else {}).items()
        if not placed.incremental
    ]
    if reasons or why:
        raise NotIncremental(
            f"{line}: the view would be recomputed in every step: {'; '.join(dict.fromkeys(reasons)) or why}",
            hint="use refresh='auto'; explain() shows how each operator can be computed",
        )


def chain_of(
    spark: "SparkSession", views: Sequence[ViewProgram], datasets: Mapping[DatasetId, DatasetRow]
) -> GroupChain:
    """Return the chain of a group's views as a runner builds it (DBSP-17).

    The chain also says which views are recomputed, and why.
    """
    inputs = {name: datasets[id_] for view in views for name, id_ in view.datasets.items()}
    return remembered_chain(
        spark,
        {view.name: None if view.refresh == "full" else view.circuit for view in views},
        {name: dataset.schema for name, dataset in inputs.items()},
        {name: input_kind(dataset) for name, dataset in inputs.items()},
    )
