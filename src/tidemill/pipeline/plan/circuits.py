"""A view's circuit at plan: the query resolved against the tables that are known, and errors that point.

Spark analyses the query on empty tables; names and syntax are complained about by our own front, which knows
the place in the query. Where the query's text stands in the user's file, that place is a line of the file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tidemill.errors import NotIncremental, QueryError, QueryRefused
from tidemill.pipeline.source_line import Line, within
from tidemill.spark import queries
from tidemill.spark.sessions import PINNED
from tidemill.views.circuit.circuit import Circuit
from tidemill.views.circuit.explain import Explained, explain
from tidemill.views.circuit.ids import Pins
from tidemill.views.circuit.operators import Column, Output
from tidemill.views.circuit.rewrite import rewrite
from tidemill.views.circuit.rungs import rungs
from tidemill.views.sql.catalog import Analyse, Table
from tidemill.views.sql.compile import compile_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = TypeVar("Kind", bound=QueryError)
_PLACE = re.compile(r"line (\d+),? pos (\d+)")


@dataclass(frozen=True)
class Made:
    """A view's circuit as it would be run, what there is to say about it, and the circuit before rewrites."""

    output: Output
    notes: tuple[str, ...]
    written: Output


def table_of(name: str, frame: "DataFrame", *, key: Sequence[str] = (), append_only: bool) -> Table:
    """A table as queries are resolved against it, from an empty frame of it."""
    return Table(name, _columns(frame.schema), tuple(key), append_only)


def _columns(struct: object) -> tuple[Column, ...]:
    return tuple(
        Column(field.name, field.dataType.simpleString())
        for field in struct.fields  # type: ignore[attr-defined]
    )


def make(
    spark: "SparkSession", sql: str, tables: Mapping[str, Table], frames: "Mapping[str, DataFrame]", tag: str
) -> Made:
    """The circuit of a query, rewritten as it would be run; a `QueryError` that points says what is wrong.

    Args:
        spark: asked for types, and for what it refuses.
        sql: the query.
        tables: what it may read.
        frames: an empty frame of each.
        tag: unique among the queries of this moment.
    """
    compiled = compile_query(sql, tables, _analysis(spark, frames, tag))
    return Made(rewrite(compiled.output), compiled.notes, compiled.output)


def _analysis(spark: "SparkSession", frames: "Mapping[str, DataFrame]", tag: str) -> Analyse:
    from pyspark.errors import PySparkException

    def analyse(sql: str, _: Mapping[str, Table]) -> Sequence[Column]:
        try:
            with queries.over(spark, sql, frames, tag) as frame:
                return _columns(frame.schema)
        except QueryError as error:
            raise QueryRefused(error.message, hint=error.hint) from None
        except PySparkException as error:
            raise _refusal(str(error), sql) from None

    return analyse


def _refusal(said: str, sql: str) -> QueryRefused:
    """What Spark says, without its plans; where it names a place, the place in the text it was given."""
    place = _PLACE.search(said)
    for end in ("\n\nJVM stacktrace", "== SQL ==", ";\n'"):
        said = said.partition(end)[0]
    text = " ".join(said.split())
    error = QueryRefused(_PLACE.sub("", text).strip(" ;,")[:600])
    if place and int(place[1]) <= sql.count("\n") + 1:
        # Names of tables were longer in the text that Spark was given: the line is sure, the column is not.
        error.line = int(place[1])
    return error


@contextmanager
def pointing(line: Line, sql: str) -> Iterator[None]:
    """What is wrong with a query is told with its place in the user's file, as far as that can be found."""
    try:
        yield
    except QueryError as error:
        raise _pointed(error, line, sql) from error


def _pointed(error: Kind, line: Line, sql: str) -> Kind:
    where = within(line, sql, error.line, error.column) if error.line else str(line)
    told = type(error)(f"{where}: {error.message}", hint=error.hint)
    for name, value in vars(error).items():
        if name not in vars(told):
            setattr(told, name, value)
    return told


def explained(made: Mapping[str, Made], view: str) -> Explained:
    """What there is to say about a view, down to the datasets: `made` are the circuits of all views."""
    whole = Circuit({name: one.output for name, one in made.items()}).linked()
    notes = {view: made[view].notes}
    return explain(Circuit({view: whole.outputs[view]}, notes), Pins(settings=PINNED))


def refuse_incremental(output: Output | None, line: Line, why: str) -> None:
    """`NotIncremental`, with every reason, for a view that would be recomputed.

    Args:
        output: its circuit, if it has one.
        line: where it is declared.
        why: what keeps kernels from computing it; empty if nothing does.
    """
    reasons = [
        f"{op.kind}: {'not the same twice: ' if not placed.steady else ''}{placed.reason}"
        for op, placed in (rungs(output) if output is not None else {}).items()
        if not placed.incremental
    ]
    if reasons or why:
        raise NotIncremental(
            f"{line}: the view would be recomputed in every step: {'; '.join(dict.fromkeys(reasons)) or why}",
            hint="refresh='auto' keeps it as well as can be; explain() says what each operator could be",
        )
