"""The kinds of operator: frozen values that say what to compute, not how or where.

    InputTable, LiteralRows             rows of a table, rows written in the query
    Filter, TemporalFilter, Project     row by row (TemporalFilter also reads the clock)
    Generate, UnionAll                  explode and similar functions; UNION ALL
    Join                                inner, cross, left, right, full, semi, anti, null-aware anti
    Distinct, SetOp                     DISTINCT; INTERSECT and EXCEPT, with and without ALL
    Aggregate, Window, TopK             GROUP BY, window functions, ORDER BY with LIMIT
    Sessions                            the start of each row's session; only the preparation of a chain
                                        makes it, so it is not in `KINDS`
    Scalar                              the single value of a subquery, added to every row
    Opaque                              a query that stays SQL text and is recomputed
    ViewOutput                          the columns of a view with their names

Columns have positions instead of names, so that two views share an operator even if they name its columns
differently. An operator with two inputs numbers the columns of the left input first. Operators compare by
fingerprint (`tidemill.views.circuit.ids`), so equal subtrees are the same operator.

Class names may change. `kind` and the names of fields must not change: they are part of the normal form that
is hashed into operator ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar, Literal

from tidemill.views.circuit.expr import Expr

JoinKind = Literal["inner", "cross", "left", "right", "full", "semi", "anti", "null-aware anti"]


class Operator:
    """The base class of all operators: inputs, a width, and equality by fingerprint."""

    kind: ClassVar[str]

    @property
    def inputs(self) -> tuple["Operator", ...]:
        """The operators that this one reads, in the order in which their columns are numbered."""
        operators: list[Operator] = []
        for field in fields(self):  # type: ignore[arg-type]  # every kind below is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Operator):
                operators.append(value)
            elif isinstance(value, tuple):
                operators += [item for item in value if isinstance(item, Operator)]
        return tuple(operators)

    @property
    def width(self) -> int:
        """The number of columns of the result."""
        raise AssertionError(f"{type(self).__name__} must define its width")

    def with_inputs(self, inputs: Sequence["Operator"]) -> "Operator":
        """Return the same operator with other inputs."""
        remaining = list(inputs)
        changed: dict[str, object] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Operator):
                changed[field.name] = remaining.pop(0)
            elif isinstance(value, tuple) and value and isinstance(value[0], Operator):
                changed[field.name] = tuple(remaining.pop(0) for _ in value)
        assert not remaining, "the number of inputs must stay the same"
        return replace(self, **changed) if changed else self  # type: ignore[type-var]

    @cached_property
    def fingerprint(self) -> str:
        from tidemill.views.circuit.ids import fingerprint

        return fingerprint(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operator) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


@dataclass(frozen=True)
class SparkColumn:
    """A column of a table: its name, and its type as Spark writes it."""

    name: str
    type: str


@dataclass(frozen=True)
class JoinKey:
    """One equality of a join; `null_safe` for `<=>`. Each side uses the positions of its own input."""

    left: Expr
    right: Expr
    null_safe: bool = False


@dataclass(frozen=True)
class SortKey:
    """One sort key. By default NULLs come first in ascending order, as in Spark."""

    value: Expr
    descending: bool = False
    nulls_first: bool = True

    @property
    def suffix(self) -> str:
        """The text after the expression in an ORDER BY."""
        return f"{'DESC' if self.descending else 'ASC'} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate. `value` is its complete text; kernels use the other fields.

    `plain` means that name, distinct, arguments and filter describe the call completely: it has no ORDER BY
    within the group and no IGNORE NULLS. A kernel may use the fields only if the call is plain.
    """

    value: Expr
    name: str
    arguments: tuple[Expr, ...]
    distinct: bool = False
    filter: Expr | None = None
    plain: bool = True


@dataclass(frozen=True)
class WindowCall:
    """One window function: the text of the call, and the text of its frame if it has one."""

    value: Expr
    name: str
    arguments: tuple[Expr, ...]
    frame: str = ""


@dataclass(frozen=True)
class NamedInput:
    """The name of an input in the text of an opaque query, and the names of its columns."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class InputTable(Operator):
    """The rows of a table. `key` lists the primary key columns, if rows are upserts."""

    kind = "source"
    table: str
    columns: tuple[SparkColumn, ...]
    key: tuple[int, ...] = ()
    append_only: bool = False

    @property
    def width(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, eq=False)
class LiteralRows(Operator):
    """Rows written in the query. A query without FROM has one row without columns."""

    kind = "values"
    rows: tuple[tuple[Expr, ...], ...]

    @property
    def width(self) -> int:
        return len(self.rows[0])


@dataclass(frozen=True, eq=False)
class Filter(Operator):
    """Keeps the rows for which every condition is true."""

    kind = "filter"
    input: Operator
    conditions: tuple[Expr, ...]

    @property
    def width(self) -> int:
        return self.input.width


@dataclass(frozen=True, eq=False)
class TemporalFilter(Operator):
    """Keeps the rows for which `value comparison bound` is true. The bound depends only on the clock."""

    kind = "temporal filter"
    input: Operator
    value: Expr
    comparison: Literal["<", "<=", ">", ">="]
    bound: Expr

    @property
    def width(self) -> int:
        return self.input.width


@dataclass(frozen=True, eq=False)
class Project(Operator):
    """Computes expressions for each row."""

    kind = "project"
    input: Operator
    expressions: tuple[Expr, ...]

    @property
    def width(self) -> int:
        return len(self.expressions)


@dataclass(frozen=True, eq=False)
class Generate(Operator):
    """Calls a generator (such as explode) for each row, and returns the row once with every result.

    `outer` also keeps the rows for which the generator returns nothing. The time window `window(…)` is a
    generator too: it returns every window that contains the time of a row, and none for NULL.
    """

    kind = "generate"
    input: Operator
    call: Expr
    produces: int
    outer: bool = False

    @property
    def width(self) -> int:
        return self.input.width + self.produces


@dataclass(frozen=True, eq=False)
class UnionAll(Operator):
    """UNION ALL. Spark widens the types of each pair of columns."""

    kind = "union all"
    parts: tuple[Operator, ...]

    @property
    def width(self) -> int:
        return self.parts[0].width


@dataclass(frozen=True, eq=False)
class Join(Operator):
    """Joins two inputs by equal keys and a residual condition over the columns of both.

    A null-aware anti join (NOT IN) keeps a left row if no right row matches it. A right row matches if its
    keys are equal, the residual is true, and the comparison of all `null_aware` keys is true or NULL.
    """

    kind = "join"
    join: JoinKind
    left: Operator
    right: Operator
    keys: tuple[JoinKey, ...] = ()
    residual: tuple[Expr, ...] = ()
    null_aware: tuple[JoinKey, ...] = ()

    @property
    def left_only(self) -> bool:
        """Whether the result has only the columns of the left input."""
        return self.join in {"semi", "anti", "null-aware anti"}

    @property
    def width(self) -> int:
        return self.left.width if self.left_only else self.left.width + self.right.width


@dataclass(frozen=True, eq=False)
class Distinct(Operator):
    """Removes duplicate rows."""

    kind = "distinct"
    input: Operator

    @property
    def width(self) -> int:
        return self.input.width


@dataclass(frozen=True, eq=False)
class SetOp(Operator):
    """INTERSECT and EXCEPT; `keep_all` for the variants with ALL, which count duplicates."""

    kind = "set operation"
    operation: Literal["intersect", "except"]
    left: Operator
    right: Operator
    keep_all: bool = False

    @property
    def width(self) -> int:
        return self.left.width


@dataclass(frozen=True, eq=False)
class Aggregate(Operator):
    """GROUP BY. Returns the keys, then the aggregates, then Spark's grouping id if there are grouping sets.

    `sets` lists the grouping sets as positions in `groups`. Without groups the result is one row, even if the
    input is empty.
    """

    kind = "aggregate"
    input: Operator
    groups: tuple[Expr, ...]
    calls: tuple[AggregateCall, ...]
    sets: tuple[tuple[int, ...], ...] | None = None

    @property
    def width(self) -> int:
        return len(self.groups) + len(self.calls) + (self.sets is not None)


@dataclass(frozen=True, eq=False)
class Window(Operator):
    """Adds window functions with the same PARTITION BY and ORDER BY to the columns of the input.

    `ties` are further sort keys, only for calls whose result depends on the order of rows with equal sort
    keys (`tidemill.views.circuit.ties`).
    """

    kind = "window"
    input: Operator
    partition: tuple[Expr, ...]
    order: tuple[SortKey, ...]
    calls: tuple[WindowCall, ...]
    ties: tuple[SortKey, ...] = ()

    @property
    def width(self) -> int:
        return self.input.width + len(self.calls)


@dataclass(frozen=True, eq=False)
class Sessions(Operator):
    """Adds to every row the time at which its session begins.

    A session is a longest sequence of rows of a partition in which no row comes more than `gap_us`
    microseconds after the row before it. `time` is never NULL.
    """

    kind = "sessions"
    input: Operator
    partition: tuple[Expr, ...]
    time: Expr
    gap_us: int

    @property
    def width(self) -> int:
        return self.input.width + 1


@dataclass(frozen=True, eq=False)
class TopK(Operator):
    """ORDER BY with LIMIT and OFFSET; a `limit` of None keeps all rows after the offset.

    Without an order, the operator may keep any rows.
    """

    kind = "top-k"
    input: Operator
    order: tuple[SortKey, ...]
    limit: int | None
    offset: int = 0

    @property
    def width(self) -> int:
        return self.input.width


@dataclass(frozen=True, eq=False)
class Scalar(Operator):
    """Adds the single value of a subquery to every row.

    The value is NULL if the subquery returns no row. More than one row is an error.
    """

    kind = "scalar"
    input: Operator
    value: Operator

    @property
    def width(self) -> int:
        return self.input.width + 1


@dataclass(frozen=True, eq=False)
class Opaque(Operator):
    """A query that stays SQL text over named inputs; `reason` says why it is not split into operators.

    `calls` lists the functions in the text. They show whether the query reads the clock or is not
    deterministic.
    """

    kind = "opaque"
    sources: tuple[Operator, ...]
    names: tuple[NamedInput, ...]
    sql: str
    columns: int
    reason: str
    calls: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return self.columns


@dataclass(frozen=True, eq=False)
class ViewOutput(Operator):
    """The result of a view: its columns with their names.

    `types` are the types that Spark reported, or empty if the view was compiled without Spark.
    """

    kind = "output"
    input: Operator
    names: tuple[str, ...]
    types: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return self.input.width


KINDS: tuple[type[Operator], ...] = (
    InputTable,
    LiteralRows,
    Filter,
    TemporalFilter,
    Project,
    Generate,
    UnionAll,
    Join,
    Distinct,
    SetOp,
    Aggregate,
    Window,
    TopK,
    Scalar,
    Opaque,
    ViewOutput,
)
