"""Random queries over the tables of `views_oracle`: joins, aggregates, windows, subqueries, set operations.

A query depends only on its seed. Values stay in small ranges, so nothing overflows. If a window or LIMIT
depends on ties, the equality class of the circuit tells the judge.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DDL = {
    "t": "a INT, b INT, c STRING, x DOUBLE, d DECIMAL(6,2), day DATE",
    "u": "a INT, k BIGINT, e STRING, y DOUBLE",
    "n": "id INT, arr ARRAY<INT>",
}
COLUMNS = {
    "t": {"a": "int", "b": "int", "c": "text", "x": "real", "d": "real", "day": "date"},
    "u": {"a": "int", "k": "int", "e": "text", "y": "real"},
    "n": {"id": "int"},
}
JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")


@dataclass(frozen=True)
class Relation:
    """A part of a FROM clause, and the types of its columns."""

    sql: str
    columns: dict[str, str]

    def of(self, *kinds: str) -> list[str]:
        return [name for name, kind in self.columns.items() if kind in kinds]


class Generator:
    """Generates queries; `depth` limits their nesting."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.names = 0

    def query(self, depth: int = 2) -> str:
        """Return a query whose columns all have names."""
        return self._query(depth)[0]

    # --- queries ------------------------------------------------------------------------------------------

    def _query(self, depth: int) -> tuple[str, dict[str, str]]:
        makers: list[Callable[[int], tuple[str, dict[str, str]]]] = [
            self._plain,
            self._plain,
            self._grouped,
            self._grouped,
            self._window,
            self._sets,
            self._distinct,
            self._top,
            self._cte,
            self._generated,
        ]
        return self.chance.choice(makers)(depth)

    def _plain(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        select_list, columns = self._list([self._scalar(source) for _ in range(self.chance.randint(1, 3))])
        if self.chance.random() < 0.25 and source.of("int"):
            name = self._name()
            select_list += f", {self._lookup(source)} AS {name}"
            columns[name] = "int"
        return f"SELECT {select_list} FROM {source.sql}{self._where(source, depth)}", columns

    def _grouped(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        keys = self.chance.sample(list(source.columns), min(len(source.columns), self.chance.randint(0, 2)))
        calls = [self._aggregate(source) for _ in range(self.chance.randint(1, 3))]
        select_list, columns = self._list([*((key, source.columns[key]) for key in keys), *calls])
        by = having = ""
        if keys:
            shape = self.chance.choice(
                ("{}", "{}", "{}", "ROLLUP ({})", "CUBE ({})", "GROUPING SETS (({}), ())")
            )
            by = " GROUP BY " + shape.format(", ".join(keys))
            having = self.chance.choice(("", "", " HAVING count(*) > 1"))
        return f"SELECT {select_list} FROM {source.sql}{self._where(source, depth)}{by}{having}", columns

    def _window(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        part, order = self._column(source), self._column(source)
        over = f"(PARTITION BY {part} ORDER BY {order}{self.chance.choice(('', ' DESC', ' NULLS LAST'))}{{}})"
        numbers = source.of("int") or ["1"]
        value = self.chance.choice(numbers)
        call, kind = self.chance.choice(
            [
                (f"rank() OVER {over.format('')}", "int"),
                (f"dense_rank() OVER {over.format('')}", "int"),
                (f"row_number() OVER {over.format('')}", "int"),
                (f"sum({value}) OVER {over.format('')}", "int"),
                (f"count(*) OVER (PARTITION BY {part})", "int"),
                (f"max({value}) OVER {over.format(' ROWS BETWEEN 1 PRECEDING AND CURRENT ROW')}", "int"),
                (f"lag({value}) OVER {over.format('')}", "int"),
                (f"first_value({value}) OVER {over.format('')}", "int"),
            ]
        )
        select_list, columns = self._list(
            [(part, source.columns[part]), (order, source.columns[order]), (call, kind)]
        )
        last = list(columns)[-1]
        qualify = f" QUALIFY {last} = 1" if kind == "int" and self.chance.random() < 0.3 else ""
        return f"SELECT {select_list} FROM {source.sql}{self._where(source, depth)}{qualify}", columns

    def _sets(self, depth: int) -> tuple[str, dict[str, str]]:
        left_source, right_source = self._from(0), self._from(depth)
        kinds = [self.chance.choice(["int", "text", "real"]) for _ in range(self.chance.randint(1, 2))]
        left_list, columns = self._list([self._of(left_source, kind) for kind in kinds])
        right_list, _ = self._list([self._of(right_source, kind) for kind in kinds])
        operation = self.chance.choice(
            ("UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
        )
        left_query = f"SELECT {left_list} FROM {left_source.sql}{self._where(left_source, 0)}"
        right_query = f"SELECT {right_list} FROM {right_source.sql}{self._where(right_source, 0)}"
        return f"{left_query} {operation} {right_query}", columns

    def _distinct(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        select_list, columns = self._list([self._scalar(source) for _ in range(self.chance.randint(1, 2))])
        return f"SELECT DISTINCT {select_list} FROM {source.sql}{self._where(source, depth)}", columns

    def _top(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        names = list(source.columns)
        order = ", ".join(self.chance.sample(names, min(len(names), 2)))
        select_list, columns = self._list([self._scalar(source), self._scalar(source)])
        limit = f"LIMIT {self.chance.randint(0, 6)}"
        return (
            f"SELECT {select_list} FROM {source.sql}{self._where(source, 0)} ORDER BY {order} {limit}",
            columns,
        )

    def _cte(self, depth: int) -> tuple[str, dict[str, str]]:
        if depth < 1:
            return self._plain(depth)
        body, columns = self._query(depth - 1)
        name = self._name()
        twice = Relation(f"{name}", dict(columns))
        keys = list(columns)
        if self.chance.random() < 0.5:
            left, right = self._name(), self._name()
            key = self.chance.choice(keys)
            value, number = self._name(), self._name()
            select_list = f"{left}.{key} AS {value}, count(*) AS {number}"
            text = (
                f"{name} {left} JOIN {name} {right} ON {left}.{key} <=> {right}.{key} GROUP BY {left}.{key}"
            )
            new_columns = {value: columns[key], number: "int"}
            return f"WITH {name} AS ({body}) SELECT {select_list} FROM {text}", new_columns
        select_list, out = self._list([self._aggregate(twice)])
        return f"WITH {name} AS ({body}) SELECT {select_list} FROM {name}", out

    def _generated(self, depth: int) -> tuple[str, dict[str, str]]:
        outer = self.chance.choice(("", "OUTER "))
        name = self._name()
        source = Relation(f"n LATERAL VIEW {outer}explode(arr) g AS {name}", {"id": "int", name: "int"})
        select_list, columns = self._list([(name, "int"), self._aggregate(source)])
        return f"SELECT {select_list} FROM {source.sql} GROUP BY {name}", columns

    # --- parts --------------------------------------------------------------------------------------------

    def _from(self, depth: int) -> Relation:
        if depth > 0 and self.chance.random() < 0.3:
            body, columns = self._query(depth - 1)
            name = self._name()
            return Relation(
                f"({body}) {name}", {f"{name}.{column}": kind for column, kind in columns.items()}
            )
        if self.chance.random() < 0.5:
            return self._joined()
        table = self.chance.choice(("t", "t", "u"))
        name = self._name()
        return Relation(
            f"{table} {name}", {f"{name}.{column}": kind for column, kind in COLUMNS[table].items()}
        )

    def _joined(self) -> Relation:
        left, right = self._name(), self._name()
        join = self.chance.choice(JOINS)
        key = self.chance.choice(
            (
                f"{left}.a = {right}.a",
                f"{left}.a <=> {right}.a",
                f"{left}.a = {right}.a AND {left}.c = {right}.e",
                f"{left}.x = {right}.y",
                f"{left}.b = {right}.k AND {left}.b >= {right}.a",
                f"{left}.a + 1 = {right}.a",
                f"{left}.b < {right}.k",
            )
        )
        columns = {f"{left}.{column}": kind for column, kind in COLUMNS["t"].items()}
        if join not in ("LEFT SEMI JOIN", "LEFT ANTI JOIN"):
            columns |= {f"{right}.{column}": kind for column, kind in COLUMNS["u"].items()}
        return Relation(f"t {left} {join} u {right} ON {key}", columns)

    def _where(self, source: Relation, depth: int) -> str:
        if self.chance.random() < 0.4:
            return ""
        return f" WHERE {self._condition(source, depth)}"

    def _condition(self, source: Relation, depth: int) -> str:
        column = self._column(source)
        numbers = source.of("int")
        conditions = [
            f"{column} IS NOT NULL",
            f"{column} IS NULL",
            f"NOT ({column} <=> {self._column(source)})"
            if self._alike(source, column)
            else f"{column} IS NULL",
        ]
        if numbers:
            number = self.chance.choice(numbers)
            conditions += [
                f"{number} > {self.chance.randint(-1, 3)}",
                f"{number} IN (1, 2, NULL)",
                f"({number} = 1 OR {number} = 3)",
                f"CASE WHEN {number} = 0 THEN false ELSE 6 / {number} > 1 END",
            ]
            if depth > 0:
                inner = self._name()
                negated = self.chance.choice(("", "NOT "))
                conditions += [
                    f"{number} {negated}IN (SELECT {inner}.a FROM u {inner} WHERE {inner}.k > 0)",
                    f"{negated}EXISTS (SELECT 1 FROM u {inner} WHERE {inner}.a = {number} AND {inner}.k < 3)",
                    f"{number} > (SELECT count(*) FROM u {inner} WHERE {inner}.a = {number})",
                    f"{number} >= (SELECT avg({inner}.k) FROM u {inner})",
                ]
        condition = self.chance.choice(conditions)
        if self.chance.random() < 0.2:
            word = self.chance.choice(("AND", "OR"))
            condition = f"{condition} {word} {self.chance.choice(conditions[:2])}"
        return condition

    def _alike(self, source: Relation, column: str) -> bool:
        return len(set(source.columns.values())) == 1

    def _lookup(self, source: Relation) -> str:
        inner, column = self._name(), self.chance.choice(source.of("int"))
        call = self.chance.choice(("count(*)", f"max({inner}.k)", f"coalesce(sum({inner}.k), -1L)"))
        return f"(SELECT {call} FROM u {inner} WHERE {inner}.a = {column})"

    def _scalar(self, source: Relation) -> tuple[str, str]:
        column = self._column(source)
        kind = source.columns[column]
        if kind == "int":
            expression = self.chance.choice(
                (column, f"{column} % 3", f"coalesce({column}, -7)", f"-{column}")
            )
            return expression, "int"
        if kind == "text":
            return self.chance.choice((column, f"upper({column})", f"concat({column}, '!')")), "text"
        if kind == "real":
            return self.chance.choice((column, f"CASE WHEN {column} > 1 THEN {column} END")), "real"
        return column, kind

    def _of(self, source: Relation, kind: str) -> tuple[str, str]:
        columns = source.of(kind)
        nothing = {"int": "CAST(NULL AS INT)", "text": "'a'", "real": "1.5D"}[kind]
        return (self.chance.choice(columns) if columns else nothing), kind

    def _aggregate(self, source: Relation) -> tuple[str, str]:
        column = self._column(source)
        kind = source.columns[column]
        aggregates = [("count(*)", "int"), (f"count({column})", "int"), (f"count(DISTINCT {column})", "int")]
        aggregates += [(f"min({column})", kind), (f"max({column})", kind)]
        if kind == "int":
            aggregates += [
                (f"sum({column})", "int"),
                (f"avg({column})", "real"),
                (f"sum(DISTINCT {column})", "int"),
            ]
            aggregates += [
                (f"sum({column}) FILTER (WHERE {column} > 0)", "int"),
                (f"var_pop({column})", "real"),
            ]
            aggregates += [
                (f"bool_or({column} > 1)", "flag"),
                (f"sort_array(collect_list({column}))", "list"),
            ]
        if kind == "real":
            aggregates += [(f"sum({column})", "real"), (f"avg({column})", "real")]
        return self.chance.choice(aggregates)

    def _column(self, source: Relation) -> str:
        return self.chance.choice(list(source.columns))

    def _list(self, items: Sequence[tuple[str, str]]) -> tuple[str, dict[str, str]]:
        named_items = {self._name(): item for item in items}
        select_list = ", ".join(f"{sql} AS {name}" for name, (sql, _) in named_items.items())
        return select_list, {name: kind for name, (_, kind) in named_items.items()}

    def _name(self) -> str:
        self.names += 1
        return f"z{self.names}"
