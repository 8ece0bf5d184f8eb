"""Answer a simple query without Spark: `SELECT columns FROM table WHERE … ORDER BY … LIMIT …`.

Such a query is what people type to look at a table, and starting Spark for it takes seconds. The table is
read by Arrow (`arrow_reader`), and its expressions are compiled like those of views
(`views.spark.arrow_compiler`), so the values are those of Spark. Any other query returns None: Spark answers
it, and reports its errors.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidemill.pipeline.arrow_reader import arrow_tables
from tidemill.views.circuit.expr import Expr, Part, merge_parts
from tidemill.views.kernels.scalars import ArrowFilter, ArrowRows, ArrowSelect, NotComputed, Scalar
from tidemill.views.spark.arrow_compiler import NotCompiled, compile_scalar
from tidemill.views.trace.layout import WEIGHT

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

_CLAUSES = frozenset({"expressions", "from_", "where", "order", "limit", "kind"})


class _OtherQuery(Exception):
    """Spark must answer the query."""


def first_rows(pipeline: "Pipeline", sql: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]]] | None:
    """Return the names of a query's columns, and its first rows; None if Spark must answer the query."""
    try:
        select = sqlglot.parse_one(sql, read="spark")
        if not isinstance(select, exp.Select):
            return None
        return _Query(select).rows(pipeline, limit)
    except (SqlglotError, _OtherQuery, NotCompiled, NotComputed, RecursionError, OverflowError, ValueError):
        return None


def _require(*facts: object) -> None:
    if not all(facts):
        raise _OtherQuery


class _Query:
    """A query over one table."""

    def __init__(self, select: exp.Select) -> None:
        self._select = select
        given = {name for name, value in select.args.items() if value not in (None, [], False)}
        _require(given <= _CLAUSES)
        source = select.args.get("from_")
        table = None if source is None else source.this
        _require(isinstance(table, exp.Table), not set(_given(table)) - {"this"})
        self.table = str(table.name) if table is not None else ""

    def rows(self, pipeline: "Pipeline", limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the names of the columns, and the first rows."""
        _require(self.table in pipeline.names)
        table = arrow_tables(pipeline, [self.table]).get(self.table)
        _require(table is not None, *map(_is_shown, [] if table is None else table.schema.types))
        assert table is not None
        names, columns = table.column_names, list(table.schema.types)
        numbered = pa.table(
            [*table.columns, pa.repeat(1, table.num_rows)], names=[*_numbered(columns), WEIGHT]
        )
        selected = self._selected(names, columns)
        filters = self._filters(names, columns)
        kept = ArrowRows(filters).apply(numbered)
        if self._select.args.get("order"):
            kept = kept.take(self._order(names, columns, dict(selected), kept))
        shown = kept.slice(0, min(limit, self._limit(limit)))
        result = ArrowRows((ArrowSelect(tuple(value for _, value in selected)),)).apply(shown)
        values = [_python_values(result.column(place)) for place in range(len(selected))]
        return [name for name, _ in selected], list(zip(*values, strict=True))

    def _selected(self, names: Sequence[str], types: Sequence[pa.DataType]) -> list[tuple[str, Scalar]]:
        selected: list[tuple[str, Scalar]] = []
        for item in self._select.expressions:
            if isinstance(item, exp.Star) and not _given(item):
                selected += [
                    (name, compile_scalar(Expr((place,)), types)) for place, name in enumerate(names)
                ]
            else:
                _require(isinstance(item, exp.Column | exp.Alias))
                inner = item.this if isinstance(item, exp.Alias) else item
                selected.append((item.alias_or_name, self._compiled(inner, names, types)))
        _require(selected)
        return selected

    def _filters(self, names: Sequence[str], types: Sequence[pa.DataType]) -> tuple[ArrowFilter, ...]:
        where = self._select.args.get("where")
        if where is None:
            return ()
        condition = self._compiled(where.this, names, types)
        _require(condition.type == pa.bool_())
        return (ArrowFilter((condition,)),)

    def _order(
        self,
        names: Sequence[str],
        types: Sequence[pa.DataType],
        selected: Mapping[str, Scalar],
        rows: pa.Table,
    ) -> pa.Array:
        """Return the order of rows. A name means a selected column before a column of the table."""
        keys = []
        for place, ordered in enumerate(self._select.args["order"].expressions):
            _require(isinstance(ordered.this, exp.Column))  # a number means a place in the select list
            _require(set(_given(ordered)) <= {"this", "desc", "nulls_first"})
            column = selected.get(ordered.this.name) or self._compiled(ordered.this, names, types)
            _require(not pat.is_floating(column.type))
            descending = bool(ordered.args.get("desc"))
            # Spark puts NULLs first in an ascending order, and last in a descending one.
            _require(bool(ordered.args.get("nulls_first")) is not descending)
            values = ArrowRows((ArrowSelect((column,)),)).apply(rows).column(0)
            keys += [(f"n{place}", pc.is_valid(values), descending), (f"k{place}", values, descending)]
        table = pa.table([values for _, values, _ in keys], names=[name for name, _, _ in keys])
        orders = [(name, "descending" if descending else "ascending") for name, _, descending in keys]
        return pc.sort_indices(table, sort_keys=orders)

    def _limit(self, default: int) -> int:
        limit = self._select.args.get("limit")
        if limit is None:
            return default
        number = limit.expression
        _require(isinstance(number, exp.Literal), not number.is_string, number.name.isdecimal())
        return int(number.name)

    @staticmethod
    def _compiled(node: exp.Expr, names: Sequence[str], types: Sequence[pa.DataType]) -> Scalar:
        """Compile an expression over the columns of the table."""
        place = {name: number for number, name in enumerate(names)}
        marked = node.copy()
        for column in list(marked.find_all(exp.Column)):
            _require(set(_given(column)) == {"this"}, column.name in place)
            column.set("this", exp.to_identifier(f"tidemill_p{place[column.name]}_"))
        parts: list[Part] = []
        for number, piece in enumerate(marked.sql(dialect="spark").split("tidemill_p")):
            if number == 0:
                parts.append(piece)
            else:
                digits, _, rest = piece.partition("_")
                parts += [int(digits), rest]
        return compile_scalar(Expr(merge_parts(parts)), types)


def _given(node: exp.Expr | None) -> list[str]:
    arguments = {} if node is None else node.args
    return [name for name, value in arguments.items() if value not in (None, [], False)]


def _numbered(columns: Sequence[object]) -> list[str]:
    return [f"c{place}" for place in range(len(columns))]


def _is_shown(kind: pa.DataType) -> bool:
    """Return whether Python has the values of a type as Spark collects them."""
    simple = (pat.is_integer, pat.is_decimal, pat.is_string, pat.is_boolean, pat.is_date, pat.is_timestamp)
    return bool(kind == pa.float64() or any(is_kind(kind) for is_kind in simple))


def _python_values(column: Any) -> list[Any]:
    """Return the values as Spark collects them: a timestamp is in the time zone of this process."""
    values = column.to_pylist()
    if pat.is_timestamp(column.type) and column.type.tz:
        return [_local(value) for value in values]
    return list(values)


def _local(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone().replace(tzinfo=None)
