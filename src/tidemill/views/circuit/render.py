"""Write an operator as a Spark SQL query over relations that contain its inputs.

The keyed rung runs this SQL, and tests compare kernels and rewrites with it. So the SQL is as simple as
possible. Columns are called `c0`, `c1`, …; expressions are inserted unchanged.
"""

# ruff: noqa: S608  # this module writes SQL; names are quoted, expressions come from the user's own query

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.views.circuit.expr import ClockValue, Expr
from tidemill.views.circuit.operators import (
    Aggregate,
    Distinct,
    Filter,
    Generate,
    InputTable,
    Join,
    JoinKey,
    LiteralRows,
    Opaque,
    Operator,
    Project,
    Scalar,
    Sessions,
    SetOp,
    SortKey,
    TemporalFilter,
    TopK,
    UnionAll,
    ViewOutput,
    Window,
)

JOINS = {
    "inner": "INNER JOIN",
    "cross": "CROSS JOIN",
    "left": "LEFT OUTER JOIN",
    "right": "RIGHT OUTER JOIN",
    "full": "FULL OUTER JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
    "null-aware anti": "LEFT ANTI JOIN",
}


def quoted(name: str) -> str:
    """Quote a name with backquotes."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Renderer:
    """Writes operators as SQL, with these values for the clock."""

    now: Mapping[ClockValue, str] | None = None

    def sql(self, operator: Operator, inputs: Sequence[str]) -> str:
        """Return the query of an operator. `inputs` are relations with columns c0, c1, …, one per input."""
        return WRITERS[type(operator)](self, operator, inputs)

    def text(self, expr: Expr, column: Callable[[int], str] | None = None) -> str:
        return expr.sql(column, self.now)

    # --- row by row ---------------------------------------------------------------------------------------

    def source(self, op: InputTable, _: Sequence[str]) -> str:
        columns = [f"{quoted(column.name)} AS c{i}" for i, column in enumerate(op.columns)]
        return f"SELECT {_list(columns)} FROM {quoted(op.table)}"

    def values(self, op: LiteralRows, _: Sequence[str]) -> str:
        rows = ["(" + ", ".join(self.text(value) for value in row) + ")" for row in op.rows]
        if not op.width:
            return " UNION ALL ".join(["SELECT 1 AS one"] * len(op.rows))
        return f"SELECT * FROM VALUES {', '.join(rows)} AS v({', '.join(_columns(op.width))})"

    def filter(self, op: Filter, inputs: Sequence[str]) -> str:
        conditions = " AND ".join(self.text(condition.parenthesized()) for condition in op.conditions)
        return f"SELECT {_list(_columns(op.width))} FROM {inputs[0]} WHERE {conditions}"

    def temporal(self, op: TemporalFilter, inputs: Sequence[str]) -> str:
        condition = (
            f"{self.text(op.value.parenthesized())} {op.comparison} {self.text(op.bound.parenthesized())}"
        )
        return f"SELECT {_list(_columns(op.width))} FROM {inputs[0]} WHERE {condition}"

    def project(self, op: Project, inputs: Sequence[str]) -> str:
        columns = [f"{self.text(expr)} AS c{i}" for i, expr in enumerate(op.expressions)]
        return f"SELECT {_list(columns)} FROM {inputs[0]}"

    def generate(self, op: Generate, inputs: Sequence[str]) -> str:
        if op.call.is_time_window:
            columns = [*_columns(op.input.width), f"{self.text(op.call)} AS c{op.input.width}"]
            return f"SELECT {_list(columns)} FROM {inputs[0]}"
        names = [f"g{i}" for i in range(op.produces)]
        columns = [f"{name} AS c{op.input.width + i}" for i, name in enumerate(names)]
        view = f"LATERAL VIEW {'OUTER ' if op.outer else ''}{self.text(op.call)} g AS {', '.join(names)}"
        return f"SELECT {_list(_columns(op.input.width) + columns)} FROM {inputs[0]} {view}"

    def union(self, op: UnionAll, inputs: Sequence[str]) -> str:
        # Nested from the left: Spark widens types pair by pair, as in the original query.
        sql = f"SELECT {_list(_columns(op.width))} FROM {inputs[0]}"
        for name in inputs[1:]:
            sql = f"({sql}) UNION ALL (SELECT {_list(_columns(op.width))} FROM {name})"
        return sql

    # --- two inputs ---------------------------------------------------------------------------------------

    def join(self, op: Join, inputs: Sequence[str]) -> str:
        width = op.left.width
        names = [f"l.c{i} AS c{i}" for i in range(width)]
        if not op.left_only:
            names += [f"r.c{i} AS c{width + i}" for i in range(op.right.width)]
        on = [self._equal(key) for key in op.keys]
        on += [self.text(part.parenthesized(), lambda i: _side(i, width)) for part in op.residual]
        if op.null_aware:
            on.append(f"coalesce({' AND '.join(self._equal(key) for key in op.null_aware)}, true)")
        tables = f"{inputs[0]} AS l {JOINS[op.join]} {inputs[1]} AS r"
        if op.join != "cross":
            tables += " ON " + (" AND ".join(on) or "true")
        return f"SELECT {_list(names)} FROM {tables}"

    def _equal(self, key: JoinKey) -> str:
        left = self.text(key.left.parenthesized(), "l.c{}".format)
        right = self.text(key.right.parenthesized(), "r.c{}".format)
        return f"({left} {'<=>' if key.null_safe else '='} {right})"

    def set_operation(self, op: SetOp, inputs: Sequence[str]) -> str:
        keyword = op.operation.upper() + (" ALL" if op.keep_all else "")
        left, right = (f"(SELECT {_list(_columns(op.width))} FROM {name})" for name in inputs)
        return f"{left} {keyword} {right}"

    # --- groups and orders --------------------------------------------------------------------------------

    def distinct(self, op: Distinct, inputs: Sequence[str]) -> str:
        return f"SELECT DISTINCT {_list(_columns(op.width))} FROM {inputs[0]}"

    def aggregate(self, op: Aggregate, inputs: Sequence[str]) -> str:
        # A subquery computes the keys, because a number in GROUP BY would mean a position. And if a key is
        # also an argument of an aggregate, grouping sets must set only the key to NULL.
        # Spark merges sessions only if GROUP BY itself contains the call.
        keys = [self.text(expr) if expr.is_session_window else f"g{i}" for i, expr in enumerate(op.groups)]
        groups = [
            f"{self.text(expr)} AS g{i}" for i, expr in enumerate(op.groups) if not expr.is_session_window
        ]
        relation = f"(SELECT *, {', '.join(groups)} FROM {inputs[0]})" if groups else inputs[0]
        columns = [f"{key} AS c{i}" for i, key in enumerate(keys)]
        columns += [f"{self.text(call.value)} AS c{len(keys) + i}" for i, call in enumerate(op.calls)]
        by = ""
        if op.sets is not None:
            columns.append(f"grouping_id() AS c{op.width - 1}")
            sets = ", ".join("(" + ", ".join(keys[i] for i in positions) + ")" for positions in op.sets)
            by = f" GROUP BY {', '.join(keys)} GROUPING SETS ({sets})"
        elif keys:
            by = f" GROUP BY {', '.join(keys)}"
        elif not op.calls:
            # A global aggregate without calls still returns one row.
            columns = ["count(*) AS one"]
        return f"SELECT {_list(columns)} FROM {relation}{by}"

    def window(self, op: Window, inputs: Sequence[str]) -> str:
        width = op.input.width
        columns = _columns(width)
        for i, call in enumerate(op.calls):
            spec = []
            if op.partition:
                spec.append("PARTITION BY " + ", ".join(self.text(expr) for expr in op.partition))
            order = [self._order(key) for key in op.order]
            if breaks_ties(call.name, call.frame):
                order += [self._order(key) for key in op.ties]
            if order:
                spec.append("ORDER BY " + ", ".join(order))
            spec += [call.frame] if call.frame else []
            columns.append(f"{self.text(call.value)} OVER ({' '.join(spec)}) AS c{width + i}")
        return f"SELECT {_list(columns)} FROM {inputs[0]}"

    def sessions(self, op: Sessions, inputs: Sequence[str]) -> str:
        time, gap = self.text(op.time.parenthesized()), f"INTERVAL '{op.gap_us / 1_000_000:.6f}' SECOND"
        by = ", ".join(self.text(expr) for expr in op.partition)
        over = f"OVER ({f'PARTITION BY {by} ' if by else ''}ORDER BY {time})"
        relation = f"(SELECT *, lag({time}) {over} AS last_time FROM {inputs[0]})"
        begins = f"CASE WHEN last_time IS NULL OR {time} > last_time + {gap} THEN {time} END"
        return (
            f"SELECT {_list([*_columns(op.input.width), f'max({begins}) {over} AS c{op.input.width}'])}"
            f" FROM {relation}"
        )

    def top(self, op: TopK, inputs: Sequence[str]) -> str:
        keys = [f"{self.text(key.value)} AS o{i}" for i, key in enumerate(op.order)]
        relation = f"(SELECT *, {', '.join(keys)} FROM {inputs[0]})" if keys else inputs[0]
        order = [f"o{i} {key.suffix}" for i, key in enumerate(op.order)]
        sql = f"SELECT {_list(_columns(op.width))} FROM {relation}"
        sql += f" ORDER BY {', '.join(order)}" if order else ""
        sql += f" LIMIT {op.limit}" if op.limit is not None else ""
        return sql + (f" OFFSET {op.offset}" if op.offset else "")

    def _order(self, key: SortKey) -> str:
        return f"{self.text(key.value)} {key.suffix}"

    # --- subqueries, opaque queries, outputs --------------------------------------------------------------

    def scalar(self, op: Scalar, inputs: Sequence[str]) -> str:
        value = f"(SELECT c0 FROM {inputs[1]}) AS c{op.input.width}"
        return f"SELECT {_list([*_columns(op.input.width), value])} FROM {inputs[0]}"

    def opaque(self, op: Opaque, inputs: Sequence[str]) -> str:
        tables = []
        for relation, table in zip(inputs, op.names, strict=True):
            columns = [f"c{i} AS {quoted(name)}" for i, name in enumerate(table.columns)]
            tables.append(f"{quoted(table.name)} AS (SELECT {_list(columns)} FROM {relation})")
        query = f"SELECT * FROM ({op.sql}) AS q({', '.join(_columns(op.width))})"
        return f"WITH {', '.join(tables)} {query}" if tables else query

    def output(self, op: ViewOutput, inputs: Sequence[str]) -> str:
        return f"SELECT {_list(_columns(op.width))} FROM {inputs[0]}"


def breaks_ties(name: str, frame: str) -> bool:
    """Return whether a window function depends on the order of rows with equal sort keys."""
    if name in {"rank", "dense_rank", "percent_rank", "cume_dist"}:
        return False
    if name in {"row_number", "ntile", "lag", "lead"}:
        return True
    # Without a frame, a function with an order has the frame RANGE … CURRENT ROW, which treats peers equally.
    return frame.upper().startswith("ROWS")


def _columns(width: int) -> list[str]:
    return [f"c{i}" for i in range(width)]


def _list(columns: Sequence[str]) -> str:
    return ", ".join(columns) or "1 AS one"


def _side(i: int, width: int) -> str:
    return f"l.c{i}" if i < width else f"r.c{i - width}"


WRITERS: Mapping[type[Operator], Callable[[Renderer, Any, Sequence[str]], str]] = {
    InputTable: Renderer.source,
    LiteralRows: Renderer.values,
    Filter: Renderer.filter,
    TemporalFilter: Renderer.temporal,
    Project: Renderer.project,
    Generate: Renderer.generate,
    UnionAll: Renderer.union,
    Join: Renderer.join,
    Distinct: Renderer.distinct,
    SetOp: Renderer.set_operation,
    Aggregate: Renderer.aggregate,
    Window: Renderer.window,
    Sessions: Renderer.sessions,
    TopK: Renderer.top,
    Scalar: Renderer.scalar,
    Opaque: Renderer.opaque,
    ViewOutput: Renderer.output,
}
