"""The entry point of the SQL compiler: turns the query of a view into its output operator.

Spark checks both the query and the compiled circuit. If Spark refuses the query, the compiler raises an error
with Spark's message. The circuit must have exactly the columns and types of the query in Spark's analysis. If
they differ, or if the compiler fails on a query that Spark accepts, the query becomes one opaque operator
that is recomputed, and the notes for the user say so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.errors import NameAmbiguous, NameUnknown, QueryError, QueryRefused, QuerySyntax
from tidemill.views.circuit.functions import UserFunction, ViewFunctions
from tidemill.views.circuit.interpreter import column_types, interpret
from tidemill.views.circuit.operators import InputTable, Opaque, SparkColumn, ViewOutput
from tidemill.views.circuit.rounding import rounding_notes
from tidemill.views.circuit.ties import break_ties, depends_on_ties
from tidemill.views.sql.catalog import Analyse, NotDecomposed, QueryTable
from tidemill.views.sql.context import QueryContext
from tidemill.views.sql.name_scope import Relation
from tidemill.views.sql.parser import TOO_DEEP, ParsedQuery
from tidemill.views.sql.queries import QueryBuilder, opaque

BUGS = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class CompiledQuery:
    """The query of a view as a circuit, with notes for the user."""

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
    """Compile one query to a circuit.

    sql: the query, in Spark SQL.
    tables: the tables that the query may read, by name.
    analyse: analyses a query over these tables with Spark. Without this function, the compiler checks no
        types, names unnamed columns itself, and refuses a query that it cannot split into operators. That is
        enough to draw a circuit, but not to run it.
    functions: the functions that the user declared.
    """
    spark_columns: Sequence[SparkColumn] | None = None
    refusal: QueryRefused | None = None
    if analyse is not None:
        try:
            spark_columns = analyse(sql, tables)
        except QueryRefused as error:
            refusal = error
    view_functions = ViewFunctions(functions)
    try:
        query = ParsedQuery(sql)
    except QuerySyntax as error:
        if spark_columns is None or analyse is None:
            raise
        return _compile_unparsed(sql, tables, view_functions, spark_columns, error)
    context = QueryContext(query, tables, view_functions, analyse, case_sensitive)
    try:
        relation = QueryBuilder(context).query(query.tree)
    except (QueryError, NotDecomposed, RecursionError) as error:
        if isinstance(error, RecursionError):
            error = NotDecomposed(TOO_DEEP)
        if refusal is not None and not isinstance(error, NameUnknown | NameAmbiguous):
            raise refusal from None
        if spark_columns is None:
            raise _as_query_error(error) from None
        reason = error.reason if isinstance(error, NotDecomposed) else error.message.splitlines()[0]
        relation = _opaque_relation(context, spark_columns, reason)
    except BUGS as error:
        # A bug in the compiler must not prevent a view whose query Spark accepts.
        if spark_columns is None:
            raise
        reason = f"a bug in Tidemill, please report it ({type(error).__name__}: {error})"
        relation = _opaque_relation(context, spark_columns, reason)
    if refusal is not None:
        raise refusal
    return _check_columns(context, relation, spark_columns)


def _check_columns(
    context: QueryContext, relation: Relation, spark_columns: Sequence[SparkColumn] | None
) -> CompiledQuery:
    if spark_columns is None:
        names = tuple(name or f"col{i + 1}" for i, name in enumerate(relation.names))
        return _finish(context, ViewOutput(relation.operator, names))
    output = ViewOutput(relation.operator, *_typed(spark_columns))
    if not isinstance(output.input, Opaque):
        mismatch = _difference(context, output, spark_columns)
        if mismatch:
            output = ViewOutput(
                _opaque_relation(context, spark_columns, mismatch).operator, *_typed(spark_columns)
            )
        else:
            output = _break_ties(context, output, spark_columns)
    return _finish(context, output)


def _break_ties(
    context: QueryContext, output: ViewOutput, spark_columns: Sequence[SparkColumn]
) -> ViewOutput:
    """Add the hash of the row as the last key of every sort order that may leave ties.

    The hash depends on the column types. If there is such a sort order, Spark provides the types.
    """
    if not depends_on_ties(output):
        return output
    assert context.analyse is not None
    analyse = context.analyse
    try:
        with_ties_broken = break_ties(output, column_types(output, lambda sql: analyse(sql, context.tables)))
        mismatch = _difference(context, with_ties_broken, spark_columns)
    except QueryRefused as error:
        mismatch = error.message.splitlines()[0]
    if mismatch:
        context.note(f"Spark breaks ties, and may do so differently each time: {mismatch}")
        return output
    return with_ties_broken


def _difference(
    context: QueryContext, output: ViewOutput, spark_columns: Sequence[SparkColumn]
) -> str | None:
    """Return how the columns of the circuit differ from those of the query; None if they are equal."""
    if output.width != len(spark_columns):
        return f"the circuit has {output.width} columns and the query has {len(spark_columns)}"
    assert context.analyse is not None
    try:
        circuit_columns = context.analyse(interpret(output), context.tables)
    except QueryRefused as error:
        return f"Spark refuses the circuit: {error.message.splitlines()[0]}"
    for circuit_column, query_column in zip(circuit_columns, spark_columns, strict=True):
        if circuit_column.type != query_column.type:
            types = f"{query_column.type} in the query and {circuit_column.type} in the circuit"
            return f"{query_column.name} is {types}"
    return None


def _finish(context: QueryContext, output: ViewOutput) -> CompiledQuery:
    names: set[str] = set()
    for name in output.names:
        if name.lower() in names:
            raise context.refused(
                f"two columns of the view have the name {name}",
                context.query.tree,
                "use a different name for every column: … AS other_name",
            )
        names.add(name.lower())
    if isinstance(output.input, Opaque):
        context.note(f"recomputed as a whole: {output.input.reason}")
    for note in rounding_notes(output):
        context.note(note)
    return CompiledQuery(output, tuple(context.notes))


def _typed(columns: Sequence[SparkColumn]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(column.name for column in columns), tuple(column.type for column in columns)


def _opaque_relation(context: QueryContext, spark_columns: Sequence[SparkColumn], reason: str) -> Relation:
    operator = opaque(
        context, context.query.sql.strip().rstrip(";"), context.query.tree, len(spark_columns), reason
    )
    return Relation(operator, tuple(column.name for column in spark_columns))


def _compile_unparsed(
    sql: str,
    tables: Mapping[str, QueryTable],
    functions: ViewFunctions,
    spark_columns: Sequence[SparkColumn],
    error: QuerySyntax,
) -> CompiledQuery:
    """Turn a query that Spark accepts, but the parser does not, into one opaque operator.

    Its inputs are all tables whose names are in the text.
    """
    context = QueryContext(ParsedQuery("SELECT 1"), tables, functions)
    reason = error.message.splitlines()[0]
    operator = opaque(context, sql.strip().rstrip(";"), None, len(spark_columns), reason)
    assert all(isinstance(table, InputTable) for table in operator.inputs)
    return CompiledQuery(ViewOutput(operator, *_typed(spark_columns)), (f"recomputed as a whole: {reason}",))


def _as_query_error(error: QueryError | NotDecomposed) -> QueryError:
    if isinstance(error, QueryError):
        return error
    return QueryRefused(
        f"{error.reason}: the compiler needs Spark for this query",
        hint="pass analyse=, a function that analyses the query with Spark",
    )
