"""Random queries over tables with a column of every type, which use them as keys, orders and payloads.

The table of types (`type_roles.role_of`) tells how a column may be used. A column of a type that no view can
store is read through a function. Columns of different but comparable types are compared: integers of
different widths, decimals of different scales, floats and doubles, dates and timestamps.
"""

from dataclasses import replace
from functools import cache

from tests.integration.views_generator import JOINS, Generator, Relation
from tests.type_roles import TYPES, How, Role, role_of
from tidemill.spark import schema
from tidemill.testing import Case, Step
from tidemill.views.certify import generated_steps

COLUMNS = {
    "a": "INT",
    "bo": "BOOLEAN",
    "ti": "TINYINT",
    "sm": "SMALLINT",
    "bi": "BIGINT",
    "fl": "FLOAT",
    "db": "DOUBLE",
    "de": "DECIMAL(10,2)",
    "big": "DECIMAL(38,0)",
    "fine": "DECIMAL(38,18)",
    "st": "STRING",
    "lc": "STRING COLLATE UTF8_LCASE",
    "ci": "STRING COLLATE UNICODE_CI",
    "bin": "BINARY",
    "da": "DATE",
    "ts": "TIMESTAMP",
    "ntz": "TIMESTAMP_NTZ",
    "tm": "TIME(6)",
    "ym": "INTERVAL YEAR TO MONTH",
    "mo": "INTERVAL MONTH",
    "dt": "INTERVAL DAY TO SECOND",
    "ho": "INTERVAL HOUR",
    "iv": "INTERVAL",
    "va": "VARIANT",
    "ge": "GEOMETRY(4326)",
    "gg": "GEOGRAPHY(4326)",
    "arr": "ARRAY<INT>",
    "dbs": "ARRAY<DOUBLE>",
    "lcs": "ARRAY<STRING COLLATE UTF8_LCASE>",
    "rec": "STRUCT<f: INT, g: STRING>",
    "m": "MAP<STRING, INT>",
    "ms": "ARRAY<MAP<STRING, INT>>",
}
DDL = {table: ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()) for table in ("w", "z")}
EXCLUDED = frozenset({"CHAR(3)", "VARCHAR(5)", "VOID", "STRUCT<v: VARIANT>"})
"""Types without a column: those that are strings in a query, that no table has, or that nest another type."""
assert set(COLUMNS.values()) == set(TYPES) - EXCLUDED

COMPARABLE = (
    ("TINYINT", "SMALLINT", "INT", "BIGINT"),
    ("FLOAT", "DOUBLE"),
    ("DECIMAL(10,2)", "DECIMAL(38,0)", "INT"),
    ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
    ("INTERVAL YEAR TO MONTH", "INTERVAL MONTH"),
    ("INTERVAL DAY TO SECOND", "INTERVAL HOUR"),
)
"""Groups of types that Spark compares with each other."""

_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_READERS = {
    "VARIANT": (
        ("try_variant_get({}, '$.a', 'int')", "INT"),
        ("CAST({} AS STRING)", "STRING"),
        ("try_variant_get({}, '$.b', 'array<boolean>')", "ARRAY<BOOLEAN>"),
        ("is_variant_null({})", "BOOLEAN"),
    ),
    "INTERVAL": (("CAST({} AS STRING)", "STRING"), ("DATE '2024-01-31' + {}", "TIMESTAMP")),
    "GEOMETRY(4326)": (("ST_AsBinary({})", "BINARY"),),
    "GEOGRAPHY(4326)": (("ST_AsBinary({})", "BINARY"),),
}
_SAME_TYPE = {
    "BOOLEAN": ("NOT {}",),
    "FLOAT": ("-{}", "{} / 2"),
    "DOUBLE": ("-{}", "abs({})"),
    "STRING": ("upper({})", "concat({}, '!')"),
    "STRING COLLATE UTF8_LCASE": ("trim({})",),
    "BINARY": ("substr({}, 1, 1)",),
    "DATE": ("date_add({}, 1)", "last_day({})"),
    "TIMESTAMP": ("{} + INTERVAL '1' HOUR", "date_trunc('DAY', {})"),
    "TIMESTAMP_NTZ": ("{} - INTERVAL '1' HOUR",),
    "INTERVAL DAY TO SECOND": ("-{}",),
    "INTERVAL YEAR TO MONTH": ("-{}",),
    "ARRAY<INT>": ("reverse({})", "array_sort({})", "filter({}, i -> i > 0)"),
    "ARRAY<DOUBLE>": ("reverse({})", "array_distinct({})"),
    "STRUCT<f: INT, g: STRING>": ("named_struct('f', {0}.f, 'g', upper({0}.g))",),
    "MAP<STRING, INT>": ("map_filter({}, (k, v) -> v > 0)",),
}
"""Expressions with the type of their argument; NULL for NULL, and never out of range."""
_PARTS = {
    "STRUCT<f: INT, g: STRING>": (("{}.f", "INT"), ("{}.g", "STRING")),
    "ARRAY<INT>": (("get({}, 0)", "INT"), ("size({})", "INT")),
    "MAP<STRING, INT>": (("{}['a']", "INT"), ("map_keys({})", "ARRAY<STRING>")),
    "TIME(6)": (("hour({})", "INT"),),
    "DATE": (("year({})", "INT"),),
    "BINARY": (("hex({})", "STRING"),),
}
_SUMS = {
    **dict.fromkeys(_INTEGERS, "BIGINT"),
    **dict.fromkeys(("FLOAT", "TIMESTAMP"), "DOUBLE"),
    "DECIMAL(10,2)": "DECIMAL(20,2)",
}
_AVERAGES = {"DECIMAL(10,2)": "DECIMAL(14,6)"}


@cache
def allows(kind: str, role: Role) -> bool:
    """Return whether a view accepts a type in a role."""
    return role_of(schema.parse(f"v {kind}").columns[0].type, role).how is not How.REFUSED


class TypedGenerator(Generator):
    """Generates queries with all types; each seed prefers the type of one column."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.about = list(COLUMNS)[seed % len(COLUMNS)]

    # --- queries ------------------------------------------------------------------------------------------

    def _grouped(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        keys = self._columns_for(source, Role.KEY, self.chance.randint(0, 2))
        calls = [self._aggregate(source) for _ in range(self.chance.randint(1, 3))]
        select_list, columns = self._list([*((key, self._kind(source, key)) for key in keys), *calls])
        by = having = ""
        if keys:
            shapes = ("{}", "{}", "{}", "ROLLUP ({})", "CUBE ({})", "GROUPING SETS (({}), ())")
            by = " GROUP BY " + self.chance.choice(shapes).format(", ".join(keys))
            having = self.chance.choice(("", "", " HAVING count(*) > 1"))
        return f"SELECT {select_list} FROM {source.sql}{self._where(source, depth)}{by}{having}", columns

    def _window(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        part, order, low = (self._column_for(source, Role.ORDERED) for _ in range(3))
        value = self._column_for(source, Role.PAYLOAD)
        direction = self.chance.choice(("", " DESC", " NULLS LAST"))
        over = f"(PARTITION BY {part} ORDER BY {order}{direction})"
        rows = f"(PARTITION BY {part} ORDER BY {order} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)"
        call, kind = self.chance.choice(
            [
                (f"rank() OVER {over}", "INT"),
                (f"dense_rank() OVER {over}", "INT"),
                (f"row_number() OVER {over}", "INT"),
                (f"count({value}) OVER (PARTITION BY {part})", "BIGINT"),
                (f"max({low}) OVER {rows}", self._kind(source, low)),
                (f"lag({value}) OVER {over}", self._kind(source, value)),
                (f"first_value({value}) OVER {over}", self._kind(source, value)),
            ]
        )
        items = [(part, self._kind(source, part)), (order, self._kind(source, order)), (call, kind)]
        select_list, columns = self._list(items)
        qualify = f" QUALIFY {list(columns)[-1]} = 1" if kind == "INT" and self.chance.random() < 0.3 else ""
        return f"SELECT {select_list} FROM {source.sql}{self._where(source, depth)}{qualify}", columns

    def _sets(self, depth: int) -> tuple[str, dict[str, str]]:
        left, right = self._name(), self._name()
        comparable = [name for name, kind in COLUMNS.items() if allows(kind, Role.ORDERED)]
        names = [
            self.about if self.about in comparable else "a",
            *self.chance.sample(comparable, self.chance.randint(0, 1)),
        ]
        pairs, types = [], []
        for name in names:
            other = self.chance.choice(
                [left_list for left_list, kind in COLUMNS.items() if kind in _INTEGERS or left_list == name]
            )
            other = other if COLUMNS[name] in _INTEGERS else name
            wider = (
                max(COLUMNS[name], COLUMNS[other], key=_INTEGERS.index)
                if COLUMNS[name] in _INTEGERS
                else COLUMNS[name]
            )
            pairs.append((f"{left}.{name}", f"{right}.{other}"))
            types.append(wider)
        left_list, columns = self._list([(sql, kind) for (sql, _), kind in zip(pairs, types, strict=True)])
        other, _ = self._list([(sql, kind) for (_, sql), kind in zip(pairs, types, strict=True)])
        operations = ("UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
        left_query, right_query = (
            f"SELECT {left_list} FROM w {left}",
            f"SELECT {other} FROM {self._table()} {right}",
        )
        left_source, right_source = Relation("", self._columns(left)), Relation("", self._columns(right))
        left_query, right_query = (
            left_query + self._where(left_source, 0),
            right_query + self._where(right_source, 0),
        )
        return f"{left_query} {self.chance.choice(operations)} {right_query}", columns

    def _distinct(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        items = [
            (column, self._kind(source, column)) for column in self._columns_for(source, Role.ORDERED, 2)
        ]
        select_list, columns = self._list(items)
        return f"SELECT DISTINCT {select_list} FROM {source.sql}{self._where(source, depth)}", columns

    def _top(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        order = ", ".join(
            f"{column}{self.chance.choice(('', ' DESC'))}"
            for column in self._columns_for(source, Role.ORDERED, 2)
        )
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
        name, left, right = self._name(), self._name(), self._name()
        keys = [column for column, kind in columns.items() if allows(kind, Role.JOINED)]
        if keys and self.chance.random() < 0.5:
            key, value, number = self.chance.choice(keys), self._name(), self._name()
            joined = f"{name} {left} JOIN {name} {right} ON {left}.{key} <=> {right}.{key}"
            text = f"SELECT {left}.{key} AS {value}, count(*) AS {number} FROM {joined} GROUP BY {left}.{key}"
            return f"WITH {name} AS ({body}) {text}", {value: columns[key], number: "BIGINT"}
        select_list, out = self._list([self._aggregate(Relation(name, dict(columns)))])
        return f"WITH {name} AS ({body}) SELECT {select_list} FROM {name}", out

    def _generated(self, depth: int) -> tuple[str, dict[str, str]]:
        outer = self.chance.choice(("", "OUTER "))
        table, first_name, second_name = self._table(), self._name(), self._name()
        column, generated = self.chance.choice(
            [
                ("arr", {first_name: "INT"}),
                ("dbs", {first_name: "DOUBLE"}),
                ("lcs", {first_name: "STRING COLLATE UTF8_LCASE"}),
                ("m", {first_name: "STRING", second_name: "INT"}),
                ("ms", {first_name: "MAP<STRING, INT>"}),
            ]
        )
        view = f"LATERAL VIEW {outer}explode({column}) g AS {', '.join(generated)}"
        source = Relation(f"{table} {view}", {"a": "INT", self.about: COLUMNS[self.about], **generated})
        key = self.chance.choice([name for name, kind in source.columns.items() if allows(kind, Role.KEY)])
        select_list, columns = self._list([(key, source.columns[key]), self._aggregate(source)])
        return f"SELECT {select_list} FROM {source.sql}{self._where(source, 0)} GROUP BY {key}", columns

    # --- pieces -------------------------------------------------------------------------------------------

    def _table(self) -> str:
        return self.chance.choice(tuple(DDL))

    def _columns(self, name: str) -> dict[str, str]:
        """Return some columns of a table, among them the preferred one."""
        selected = {"a", self.about, *self.chance.sample(list(COLUMNS), 4)}
        return {f"{name}.{column}": COLUMNS[column] for column in sorted(selected)}

    def _from(self, depth: int) -> Relation:
        if depth > 0 and self.chance.random() < 0.3:
            body, columns = self._query(depth - 1)
            name = self._name()
            return Relation(
                f"({body}) {name}", {f"{name}.{column}": kind for column, kind in columns.items()}
            )
        if self.chance.random() < 0.5:
            return self._joined()
        name = self._name()
        return Relation(f"{self._table()} {name}", self._columns(name))

    def _joined(self) -> Relation:
        left, right = self._name(), self._name()
        join = self.chance.choice(JOINS)
        names = [left_column for left_column, kind in COLUMNS.items() if allows(kind, Role.JOINED)]
        left_column = (
            self.about if self.about in names and self.chance.random() < 0.6 else self.chance.choice(names)
        )
        kin = [kinds for kinds in COMPARABLE if COLUMNS[left_column] in kinds]
        comparable = (
            self.chance.choice(kin) if kin and self.chance.random() < 0.5 else (COLUMNS[left_column],)
        )
        right_column = self.chance.choice([name for name, kind in COLUMNS.items() if kind in comparable])
        key = f"{left}.{left_column} {self.chance.choice(('=', '=', '<=>'))} {right}.{right_column}"
        key += self.chance.choice(("", "", f" AND {left}.a = {right}.a", f" AND {left}.ti >= {right}.a"))
        columns = self._columns(left)
        if join not in ("LEFT SEMI JOIN", "LEFT ANTI JOIN"):
            columns |= self._columns(right)
        return Relation(f"{self._table()} {left} {join} {self._table()} {right} ON {key}", columns)

    def _condition(self, source: Relation, depth: int) -> str:
        column = self._column(source)
        conditions = [f"{column} IS NOT NULL", f"{column} IS NULL"]
        ordered = [
            ordered_column for ordered_column, kind in source.columns.items() if allows(kind, Role.ORDERED)
        ]
        if ordered:
            ordered_column = self.chance.choice(ordered)
            kind, inner = source.columns[ordered_column], self._name()
            same_type = [
                other for other in ordered if source.columns[other] == kind and other != ordered_column
            ]
            if same_type:
                other = self.chance.choice(same_type)
                conditions += [
                    f"{ordered_column} {self.chance.choice(('<', '>=', '<>'))} {other}",
                    f"NOT ({ordered_column} <=> {other})",
                ]
            inner_columns = [name for name, other in COLUMNS.items() if other == kind]
            if depth > 0 and inner_columns:
                negated, inner_column = self.chance.choice(("", "NOT ")), inner_columns[0]
                inner_value = f"{inner}.{inner_column}"
                matching = f"{inner_value} = {ordered_column} AND {inner}.a < 3"
                conditions += [
                    f"{ordered_column} {negated}IN (SELECT {inner_value} FROM z {inner} WHERE {inner}.a > 0)",
                    f"{negated}EXISTS (SELECT 1 FROM z {inner} WHERE {matching})",
                    f"{ordered_column} >= (SELECT min({inner_value}) FROM z {inner})",
                ]
        condition = self.chance.choice(conditions)
        return (
            f"{condition} AND {self.chance.choice(conditions[:2])}"
            if self.chance.random() < 0.2
            else condition
        )

    def _lookup(self, source: Relation) -> str:
        inner, column = self._name(), self.chance.choice(source.of("INT"))
        call = self.chance.choice(("count(*)", f"max({inner}.bi)", f"coalesce(sum({inner}.sm), -1L)"))
        return f"(SELECT {call} FROM z {inner} WHERE {inner}.a = {column})"

    def _scalar(self, source: Relation) -> tuple[str, str]:
        column = self._column(source)
        kind = source.columns[column]
        if not allows(kind, Role.PAYLOAD):
            template, result_type = self.chance.choice(_READERS[kind])
            return template.format(column), result_type
        if kind in _PARTS and self.chance.random() < 0.3:
            template, result_type = self.chance.choice(_PARTS[kind])
            return template.format(column), result_type
        if kind in _SAME_TYPE and self.chance.random() < 0.4:
            return self.chance.choice(_SAME_TYPE[kind]).format(column), kind
        if kind in _INTEGERS and self.chance.random() < 0.4:
            return self.chance.choice(("{} % 3", "coalesce({}, -7)")).format(column), "INT"
        return column, kind

    def _aggregate(self, source: Relation) -> tuple[str, str]:
        column = self._column(source)
        kind = source.columns[column]
        aggregates = [("count(*)", "BIGINT"), (f"count({column})", "BIGINT")]
        if allows(kind, Role.KEY):
            aggregates += [(f"count(DISTINCT {column})", "BIGINT")]
        if allows(kind, Role.PAYLOAD):
            aggregates += [(f"first({column})", kind), (f"any_value({column})", kind)]
            aggregates += [(f"max_by({column}, {self._column_for(source, Role.ORDERED)})", kind)]
        if allows(kind, Role.ORDERED):
            aggregates += [(f"min({column})", kind), (f"max({column})", kind)] * 2
            aggregates += [(f"sort_array(collect_list({column}))", f"ARRAY<{kind}>")]
        if kind == "BOOLEAN":
            aggregates += [(f"bool_or({column})", kind)]
        if allows(kind, Role.AGGREGATED) and not kind.startswith("STRING"):
            aggregates += [(f"sum({column})", _SUMS.get(kind, kind))] * 2
        if kind in _INTEGERS or kind.startswith("DECIMAL(10"):
            aggregates += [(f"avg({column})", _AVERAGES.get(kind, "DOUBLE"))]
            aggregates += [(f"sum(DISTINCT {column})", _SUMS.get(kind, kind))]
        return self.chance.choice(aggregates)

    def _columns_for(self, source: Relation, role: Role, count: int) -> list[str]:
        """Return up to `count` columns that are allowed in a role, most often the preferred one."""
        candidates = [column for column, kind in source.columns.items() if allows(kind, role)]
        preferred = [
            column
            for column in candidates
            if column.rpartition(".")[2] == self.about and self.chance.random() < 0.7
        ]
        shuffled = self.chance.sample(candidates, len(candidates))
        selected = list(dict.fromkeys([*preferred[:1], *shuffled]))[:count]
        return selected or ["CAST(1 AS INT)"] * min(1, count)

    def _column_for(self, source: Relation, role: Role) -> str:
        return self._columns_for(source, role, 1)[0]

    def _kind(self, source: Relation, column: str) -> str:
        return source.columns.get(column, "INT")


def steps(seed: int) -> list[Step]:
    """Return an empty step, a step with inserts, and one with inserts, deletes and infinities."""
    empty, first, second = generated_steps.generate_steps(DDL, seed=seed)[:3]
    ends = {"fl": float("inf"), "db": float("-inf")}
    inserts = {
        name: [*rows, {**rows[0], **ends}, {**rows[1], **ends}] for name, rows in second.inserts.items()
    }
    return [empty, first, Step(inserts, second.deletes)]


def one_result(case: Case) -> Case:
    """Return a case whose query has only one result.

    A query with first(), any_value() or max_by() may return any row of a group. It is replaced by the circuit
    before any rewrite, in which the hash of the row decides.
    """
    free = any(f"{call}(" in case.sql for call in ("first", "any_value", "max_by"))
    return replace(case, sql=case.tie_breaking) if free and isinstance(case.tie_breaking, str) else case
