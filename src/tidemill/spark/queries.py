"""Run SQL queries over frames. A table name in a query always refers to one of the given frames.

Each table name in the text is replaced by the name of a new temporary view. So a table name cannot refer to a
table of the user's catalog, or to a temporary view of another thread's query. Spark gets the rest of the text
as written. Names that a CTE of the query defines are not replaced.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple, cast

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError

from tidemill.errors import QueryError
from tidemill.schemas.sql_tokens import sql_tokens

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count()


class TableName(NamedTuple):
    """A table name in the text of a query.

    - start, end: the name is `text[start:end]`.
    - aliased: whether the query gives the table an alias.
    - alias_at: where to insert an alias.
    """

    name: str
    start: int
    end: int
    aliased: bool
    alias_at: int


@functools.lru_cache(maxsize=1024)
def table_names(sql: str) -> tuple[TableName, ...]:
    """Return the table names in a query, in order. Raise `QueryError` if the text is not a single query."""
    try:
        parsed = Spark().parser().parse(sql_tokens(sql), sql)
    except (ParseError, TokenError) as error:
        raise QueryError(f"this is not a query: {_first(error)}") from None
    if len(parsed) != 1 or not isinstance(parsed[0], exp.Query):
        raise QueryError(
            "this is not a single SELECT query",
            hint="write a single SELECT (CTEs are allowed), without semicolons or DDL",
        )
    names = []
    for table in parsed[0].find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or _is_cte(table):
            continue
        if table.args.get("db") is not None:
            raise QueryError(
                f"the table {table.sql(dialect='spark')} belongs to a catalog or schema",
                hint="use the names of the pipeline's tables, without a prefix",
            )
        meta = table.this.meta
        end = meta["end"] + 1
        names.append(TableName(table.name, meta["start"], end, bool(table.alias), _after_sample(sql, end)))
    return tuple(sorted(names, key=lambda name: name.start))


def _after_sample(sql: str, end: int) -> int:
    """Return where to insert an alias for the table name that ends at `end`: after any TABLESAMPLE."""
    if "tablesample" not in sql.lower():
        return end
    tokens = [token for token in sql_tokens(sql) if token.start >= end]
    index = 0
    while index < len(tokens) and tokens[index].text.upper() in ("TABLESAMPLE", "REPEATABLE"):
        depth = 0
        for index in range(index + 1, len(tokens)):  # noqa: B020 - up to the closing parenthesis
            depth += {"(": 1, ")": -1}.get(tokens[index].text, 0)
            if depth == 0:
                break
        end, index = tokens[index].end + 1, index + 1
    return end


@contextlib.contextmanager
def over(
    spark: "SparkSession", sql: str, frames: Mapping[str, "DataFrame"], tag: str
) -> "Iterator[DataFrame]":
    """Run a query over these frames. Consume the result inside the `with`.

    - frames: the frames by table name. If two names differ only in case, the query must use the exact case.
    - tag: becomes part of the names of temporary views, so that people recognize them. Queries with the same
      tag can run at the same time.
    """
    number = next(_numbers)
    views: dict[str, str] = {}

    def view_of(name: str) -> str:
        return views.setdefault(match(name, frames), f"tidemill_{tag}_{number}_{len(views)}")

    text = renamed(sql, view_of)
    try:
        for name, view in views.items():
            frames[name].createOrReplaceTempView(view)
        yield spark.sql(text)
    finally:
        for view in views.values():
            spark.catalog.dropTempView(view)


def renamed(sql: str, view_of: Callable[[str], str]) -> str:
    """Rename the tables in a query. Qualified columns such as `orders.amount` still work."""
    text, last = [], 0
    for table in table_names(sql):
        view = view_of(table.name)
        text += [sql[last : table.start], view]
        if not table.aliased:
            text += [sql[table.end : table.alias_at], f" AS {quoted(table.name)}"]
        last = table.end if table.aliased else table.alias_at
    return "".join(text) + sql[last:]


def match(name: str, tables: Mapping[str, object]) -> str:
    """Return the table that a name refers to. Like Spark, ignore case, unless one name matches exactly."""
    if name in tables:
        return name
    same = [other for other in tables if other.lower() == name.lower()]
    if len(same) == 1:
        return same[0]
    near = get_close_matches(name, tables, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the tables are {', '.join(sorted(tables)) or 'none'}"
    raise QueryError(f"the table {name} does not exist", hint=hint)


def quoted(name: str) -> str:
    """Return a name in back quotes, for Spark SQL."""
    return f"`{name.replace('`', '``')}`"


def _is_cte(table: exp.Table) -> bool:
    """Return whether a name refers to a CTE that is in scope."""
    name = table.name.lower()
    below, node = cast(exp.Expr, table), table.parent
    while node is not None:
        clause = node.args.get("with_") or node.args.get("with")
        if isinstance(clause, exp.With) and clause is not below and _defines(clause, name):
            return True
        if isinstance(node, exp.With):  # a CTE can use CTEs before it, and itself if it is recursive
            for cte in node.expressions:
                if cte is below:
                    if node.args.get("recursive") and cte.alias.lower() == name:
                        return True
                    break
                if cte.alias.lower() == name:
                    return True
        below, node = node, node.parent
    return False


def _defines(clause: exp.With, name: str) -> bool:
    return any(cte.alias.lower() == name for cte in clause.expressions)


def _first(error: Exception) -> str:
    if isinstance(error, ParseError) and error.errors:
        first = error.errors[0]
        return f"{first['description']} at line {first['line']}, column {first['col']}"
    return str(error).splitlines()[0]
