"""From the text of a view to its output operator: the front door of the front.

Spark has the last word twice. What it refuses is refused, with its own words. And what the normaliser made of
the query must have, in Spark's analysis, exactly the columns and types of the query itself: if not, or if
our own resolver stumbles over a query that Spark accepts, the query is kept whole and recomputed, and the
notes say so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.errors import NameAmbiguous, NameUnknown, QueryError, QueryRefused, QuerySyntax
from tidemill.views.circuit.functions import UserFunction, ViewFunctions
from tidemill.views.circuit.interpreter import column_types, interpret
from tidemill.views.circuit.operators import InputTable, Opaque, SparkColumn, ViewOutput
from tidemill.views.circuit.ties import break_ties, depends_on_ties
from tidemill.views.sql.catalog import Analyse, KeptWhole, QueryTable
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.name_scope import Relation
from tidemill.views.sql.parser import ParsedQuery
from tidemill.views.sql.queries import QueryBuilder, opaque

MISTAKES = (AssertionError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class CompiledQuery:
    """A view's query as a circuit, and what the user should be told about it."""

    output: ViewOutput
    notes: tuple[str, ...] = ()


def compile_query(
    sql: str,
    tables: Mapping[str, QueryTable],
    analyse: Analyse | None = None,
    functions: Iterable[UserFunction] = (),
    *,
    case_sensitive: bool = False,
) -> CompiledQuery:
    """Resolve and normalise one query.

    sql: the query, in Spark SQL.
    tables: what it may read, by name.
    analyse: Spark's analysis of a query over these tables. Without it nothing can be kept whole, columns
    without
        a name get one of ours, and nobody checks types: good for drawing, not for running.
    functions: the user's own functions, declared.
    """
    shown: Sequence[SparkColumn] | None = None
    refusal: QueryRefused | None = None
    if analyse is not None:
        try:
            shown = analyse(sql, tables)
        except QueryRefused as error:
            refusal = error
    known = ViewFunctions(functions)
    try:
        query = ParsedQuery(sql)
    except QuerySyntax as error:
        if shown is None or analyse is None:
            raise
        return _unread(sql, tables, known, shown, error)
    front = QueryContext(query, tables, known, analyse, case_sensitive)
    try:
        relation = QueryBuilder(front).query(query.tree)
    except (QueryError, KeptWhole) as error:
        if refusal is not None and not isinstance(error, NameUnknown | NameAmbiguous):
            raise refusal from None
        if shown is None:
            raise _said(error) from None
        reason = error.reason if isinstance(error, KeptWhole) else error.message.splitlines()[0]
        relation = _kept(front, shown, reason)
    except MISTAKES as error:
        # A bug of ours must not keep anybody from having a view of a query that Spark understands.
        if shown is None:
            raise
        said = f"a mistake in Tidemill, please report it ({type(error).__name__}: {error})"
        relation = _kept(front, shown, said)
    if refusal is not None:
        raise refusal
    return _checked(front, relation, shown)


def _checked(front: QueryContext, relation: Relation, shown: Sequence[SparkColumn] | None) -> CompiledQuery:
    if shown is None:
        names = tuple(name or f"col{i + 1}" for i, name in enumerate(relation.names))
        return _finished(front, ViewOutput(relation.operator, names))
    output = ViewOutput(relation.operator, *_typed(shown))
    if not isinstance(output.input, Opaque):
        wrong = _difference(front, output, shown)
        if wrong:
            output = ViewOutput(_kept(front, shown, wrong).operator, *_typed(shown))
        else:
            output = _with_ties_broken(front, output, shown)
    return _finished(front, output)


def _with_ties_broken(front: QueryContext, output: ViewOutput, shown: Sequence[SparkColumn]) -> ViewOutput:
    """With the hash of the row as the last key of every order; types are asked for where there is one."""
    if not depends_on_ties(output):
        return output
    assert front.analyse is not None
    analyse = front.analyse
    try:
        made = break_ties(output, column_types(output, lambda sql: analyse(sql, front.tables)))
        wrong = _difference(front, made, shown)
    except QueryRefused as error:
        wrong = error.message.splitlines()[0]
    if wrong:
        front.note(f"ties are broken by Spark alone, another way each time: {wrong}")
        return output
    return made


def _difference(front: QueryContext, output: ViewOutput, shown: Sequence[SparkColumn]) -> str | None:
    """How Spark's idea of the circuit differs from its idea of the query; None if it does not."""
    if output.width != len(shown):
        return f"the circuit has {output.width} columns and the query {len(shown)}"
    assert front.analyse is not None
    try:
        made = front.analyse(interpret(output), front.tables)
    except QueryRefused as error:
        return f"Spark refuses the circuit: {error.message.splitlines()[0]}"
    for ours, theirs in zip(made, shown, strict=True):
        if ours.type != theirs.type:
            return f"{theirs.name} is {theirs.type} in the query and {ours.type} in the circuit"
    return None


def _finished(front: QueryContext, output: ViewOutput) -> CompiledQuery:
    seen: set[str] = set()
    for name in output.names:
        if name.lower() in seen:
            raise front.refused(
                f"two columns of the view are called {name}",
                front.query.tree,
                "give every column a name of its own: … AS other_name",
            )
        seen.add(name.lower())
    if isinstance(output.input, Opaque):
        front.note(f"kept whole and recomputed: {output.input.reason}")
    return CompiledQuery(output, tuple(front.notes))


def _typed(shown: Sequence[SparkColumn]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(column.name for column in shown), tuple(column.type for column in shown)


def _kept(front: QueryContext, shown: Sequence[SparkColumn], reason: str) -> Relation:
    operator = opaque(front, front.query.sql.strip().rstrip(";"), front.query.tree, len(shown), reason)
    return Relation(operator, tuple(column.name for column in shown))


def _unread(
    sql: str,
    tables: Mapping[str, QueryTable],
    functions: ViewFunctions,
    shown: Sequence[SparkColumn],
    error: QuerySyntax,
) -> CompiledQuery:
    """A query that Spark understands and the parser does not: kept whole over every table it may mean."""
    front = QueryContext(ParsedQuery("SELECT 1"), tables, functions)
    reason = error.message.splitlines()[0]
    operator = opaque(front, sql.strip().rstrip(";"), None, len(shown), reason)
    assert all(isinstance(one, InputTable) for one in operator.inputs)
    return CompiledQuery(ViewOutput(operator, *_typed(shown)), (f"kept whole and recomputed: {reason}",))


def _said(error: QueryError | KeptWhole) -> QueryError:
    if isinstance(error, QueryError):
        return error
    return QueryRefused(
        f"{error.reason}, and there is no Spark to ask", hint="give the analysis of a Spark session"
    )
