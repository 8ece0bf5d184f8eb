"""The kinds of operator: frozen values that say what is computed, never how or where.

    InputTable, Values                      rows from a table, rows written in the query
    Filter, TemporalFilter, Project     row by row (the temporal one: row and clock)
    Generate, UnionAll                  explode and its kin; bags put together
    Join                                inner, cross, left, right, full, semi, anti, null-aware anti
    Distinct, SetOp                     sets; INTERSECT and EXCEPT, with and without ALL
    Aggregate, Window, TopK             groups, partitions, the first of an order
    Scalar                              the one value of a subquery beside every row
    Opaque                              a query kept whole as text: recomputed
    Output                              the columns of a view under their names

Columns have no names in here but positions: two views that compute the same thing under other names share it.
An operator with two inputs numbers the columns of the left one first. Operators are compared by their
fingerprint (`tidemill.views.circuit.ids`), so that equal subtrees are one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar, Literal

from tidemill.views.circuit.expr import Expr

JoinKind = Literal["inner", "cross", "left", "right", "full", "semi", "anti", "null-aware anti"]


class Operator:
    """What all kinds share: inputs, a width, and equality by fingerprint."""

    kind: ClassVar[str]

    @property
    def inputs(self) -> tuple["Operator", ...]:
        """The operators it reads, in the order in which columns are numbered."""
        found: list[Operator] = []
        for field in fields(self):  # type: ignore[arg-type]  # every kind below is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Operator):
                found.append(value)
            elif isinstance(value, tuple):
                found += [item for item in value if isinstance(item, Operator)]
        return tuple(found)

    @property
    def width(self) -> int:
        """How many columns it gives."""
        raise AssertionError(f"{type(self).__name__} says how many columns it gives")

    def with_inputs(self, inputs: Sequence["Operator"]) -> "Operator":
        """The same operator over other inputs."""
        left = list(inputs)
        changed: dict[str, object] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Operator):
                changed[field.name] = left.pop(0)
            elif isinstance(value, tuple) and value and isinstance(value[0], Operator):
                changed[field.name] = tuple(left.pop(0) for _ in value)
        assert not left, "as many inputs as before"
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
    """One pair of a join's equality; `null_safe` for `<=>`. Each side is numbered by its own input."""

    left: Expr
    right: Expr
    null_safe: bool = False


@dataclass(frozen=True)
class SortKey:
    """One sort key. NULLs come first in ascending order unless told, as in Spark."""

    value: Expr
    descending: bool = False
    nulls_first: bool = True

    @property
    def suffix(self) -> str:
        """What stands after the expression in an ORDER BY."""
        return f"{'DESC' if self.descending else 'ASC'} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate: `value` is its whole text; the other fields are what kernels look at.

    `plain` says that name, distinct, arguments and filter are all there is (no order within the group, no
    treatment of NULLs): only then may a kernel go by them.
    """

    value: Expr
    name: str
    arguments: tuple[Expr, ...]
    distinct: bool = False
    filter: Expr | None = None
    plain: bool = True


@dataclass(frozen=True)
class WindowCall:
    """One window function: the text of the call, and of its frame if it has one."""

    value: Expr
    name: str
    arguments: tuple[Expr, ...]
    frame: str = ""


@dataclass(frozen=True)
class NamedInput:
    """How the text of an opaque query calls one of its inputs, and that input's columns."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class InputTable(Operator):
    """The rows of a table. `key` are the positions of its primary key, if its rows are upserts."""

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
    """Rows written in the query; a query without FROM has one row of no columns."""

    kind = "values"
    rows: tuple[tuple[Expr, ...], ...]

    @property
    def width(self) -> int:
        return len(self.rows[0])


@dataclass(frozen=True, eq=False)
class Filter(Operator):
    """The rows for which every condition is true."""

    kind = "filter"
    input: Operator
    conditions: tuple[Expr, ...]

    @property
    def width(self) -> int:
        return self.input.width


@dataclass(frozen=True, eq=False)
class TemporalFilter(Operator):
    """The rows for which `value comparison bound` is true, where the bound is made of the clock alone."""

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
    """Expressions of each row."""

    kind = "project"
    input: Operator
    expressions: tuple[Expr, ...]

    @property
    def width(self) -> int:
        return len(self.expressions)


@dataclass(frozen=True, eq=False)
class Generate(Operator):
    """Each row once per row that a generator (explode and its kin) makes of it;
    `outer` keeps those with none.
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
    """Bags put together; types are widened by Spark's rules, pair by pair."""

    kind = "union all"
    parts: tuple[Operator, ...]

    @property
    def width(self) -> int:
        return self.parts[0].width


@dataclass(frozen=True, eq=False)
class Join(Operator):
    """Two inputs by equal keys and a residual condition (over the columns of both).

    A null-aware anti join (NOT IN) keeps the left rows for which no right row with equal keys and a true
    residual makes all of `null_aware` equal, or leaves it unknown.
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
        """Whether it gives the columns of its left input alone."""
        return self.join in {"semi", "anti", "null-aware anti"}

    @property
    def width(self) -> int:
        return self.left.width if self.left_only else self.left.width + self.right.width


@dataclass(frozen=True, eq=False)
class Distinct(Operator):
    """Each row once."""

    kind = "distinct"
    input: Operator

    @property
    def width(self) -> int:
        return self.input.width


@dataclass(frozen=True, eq=False)
class SetOp(Operator):
    """INTERSECT and EXCEPT; with `keep_all` by multiplicity."""

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
    """Groups: their keys, then the aggregates, then (with grouping sets) Spark's grouping id.

    `sets` lists grouping sets by positions in `groups`. Without groups there is one row, even of no input.
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
    """The input's columns, then window functions over one partitioning and order.

    `ties` are the last sort keys of those calls alone that tell peers apart (`tidemill.views.circuit.ties`).
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
class TopK(Operator):
    """The rows of an order from `offset`, at most `limit` of them (None: all).
    Without an order, any such rows.
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
    """The input's columns and the one value of a subquery:
    NULL if it has no row, an error if more than one.
    """

    kind = "scalar"
    input: Operator
    value: Operator

    @property
    def width(self) -> int:
        return self.input.width + 1


@dataclass(frozen=True, eq=False)
class Opaque(Operator):
    """A query kept whole, as text over named inputs; `reason` says why nothing better is known of it.

    `calls` are the functions of the text: what says whether it reads the clock, or is not the same twice.
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
    """What a view shows: its columns under their names.
    `types` are Spark's, or empty where nobody asked it.
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
