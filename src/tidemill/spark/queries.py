"""A query over frames: its table names stand for frames that are handed in, and for nothing else.

Each table name in the text is replaced by the name of a temporary view of its own, so that neither a table of
the user's catalogue nor a temporary view of another thread's query can be meant by it. The rest of the text
reaches Spark as it was written. Names that a CTE of the query defines are left alone.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple, cast

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError

from tidemill.errors import QueryError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count()


class TableName(NamedTuple):
    """A table's name where it stands in a query: `text[start:end]`, and where an alias of it would stand."""

    name: str
    start: int
    end: int
    aliased: bool
    behind: int


@functools.lru_cache(maxsize=1024)
def table_names(sql: str) -> tuple[TableName, ...]:
    """The tables a query reads, place by place in the order of the text; `QueryError` if it is no query."""
    try:
        parsed = sqlglot.parse(sql, dialect="spark")
    except (ParseError, TokenError) as error:
        raise QueryError(f"this is no query: {_first(error)}") from None
    if len(parsed) != 1 or not isinstance(parsed[0], exp.Query):
        raise QueryError("this is not one query", hint="one SELECT, with its CTEs; no semicolon, no DDL")
    found = []
    for table in parsed[0].find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or _is_cte(table):
            continue
        if table.args.get("db") is not None:
            raise QueryError(
                f"the table {table.sql(dialect='spark')} is of a catalogue",
                hint="a view reads tables of its pipeline, by their plain names",
            )
        where = table.this.meta
        end = where["end"] + 1
        found.append(TableName(table.name, where["start"], end, bool(table.alias), _behind_sample(sql, end)))
    return tuple(sorted(found, key=lambda one: one.start))


def _behind_sample(sql: str, end: int) -> int:
    """Where an alias of the table that ends here may stand: behind its TABLESAMPLE, if it has one."""
    if "tablesample" not in sql.lower():
        return end
    tokens = [token for token in Spark().tokenize(sql) if token.start >= end]
    at = 0
    while at < len(tokens) and tokens[at].text.upper() in ("TABLESAMPLE", "REPEATABLE"):
        depth = 0
        for at in range(at + 1, len(tokens)):  # noqa: B020 - up to the parenthesis that closes it
            depth += {"(": 1, ")": -1}.get(tokens[at].text, 0)
            if depth == 0:
                break
        end, at = tokens[at].end + 1, at + 1
    return end


@contextlib.contextmanager
def over(
    spark: "SparkSession", sql: str, frames: Mapping[str, "DataFrame"], tag: str
) -> "Iterator[DataFrame]":
    """The result of a query over these frames. It must be consumed inside of the `with`.

    - frames: by table name; which of two names that differ in case alone is meant is decided by case.
    - tag: names the temporary views, for people; two queries of one tag at a time do not meet.
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
    """The query with other names for its tables; what it calls their columns by stays as it was."""
    text, last = [], 0
    for table in table_names(sql):
        view = view_of(table.name)
        text += [sql[last : table.start], view]
        if not table.aliased:
            text += [sql[table.end : table.behind], f" AS {quoted(table.name)}"]
        last = table.end if table.aliased else table.behind
    return "".join(text) + sql[last:]


def match(name: str, known: Mapping[str, object]) -> str:
    """The table a name stands for, as Spark finds it: by its letters, in upper or lower case."""
    if name in known:
        return name
    same = [one for one in known if one.lower() == name.lower()]
    if len(same) == 1:
        return same[0]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known)) or 'no tables'}"
    raise QueryError(f"there is no table {name}", hint=hint)


def quoted(name: str) -> str:
    """A name as Spark SQL takes it, whatever it is."""
    return f"`{name.replace('`', '``')}`"


def _is_cte(table: exp.Table) -> bool:
    """Does this name stand for a CTE that is in scope here?"""
    wanted = table.name.lower()
    below, node = cast(exp.Expr, table), table.parent
    while node is not None:
        clause = node.args.get("with_") or node.args.get("with")
        if isinstance(clause, exp.With) and clause is not below and _defines(clause, wanted):
            return True
        if isinstance(node, exp.With):  # inside a CTE: those before it, and itself where it may recur
            for cte in node.expressions:
                if cte is below:
                    if node.args.get("recursive") and cte.alias.lower() == wanted:
                        return True
                    break
                if cte.alias.lower() == wanted:
                    return True
        below, node = node, node.parent
    return False


def _defines(clause: exp.With, name: str) -> bool:
    return any(cte.alias.lower() == name for cte in clause.expressions)


def _first(error: Exception) -> str:
    if isinstance(error, ParseError) and error.errors:
        one = error.errors[0]
        return f"{one['description']} at line {one['line']}, column {one['col']}"
    return str(error).splitlines()[0]
