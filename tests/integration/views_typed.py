"""Queries drawn at random over tables with a column of every type: each is a key, an order, a payload.

What may be done with a column comes from the table of types (`type_roles.role_of`); a type that no view keeps
is read through a function. Columns of kindred types are compared with each other: integers of different
widths, decimals of different scales, floats and doubles, dates and timestamps.
"""

from dataclasses import replace
from functools import cache

from tests.integration.views_generator import JOINS, Generator, Relation
from tests.type_roles import TYPES, How, Role, role_of
from tidemill.spark import schema
from tidemill.testing import Case, Step
from tidemill.views.certify import generated_steps

WIDE = {
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
DDL = {table: ", ".join(f"{name} {kind}" for name, kind in WIDE.items()) for table in ("w", "z")}
LEFT_OUT = frozenset({"CHAR(3)", "VARCHAR(5)", "VOID", "STRUCT<v: VARIANT>"})
"""Of the types of the table: strings in a query, what no table has, and a type with another one inside."""
assert set(WIDE.values()) == set(TYPES) - LEFT_OUT

KIN = (
    ("TINYINT", "SMALLINT", "INT", "BIGINT"),
    ("FLOAT", "DOUBLE"),
    ("DECIMAL(10,2)", "DECIMAL(38,0)", "INT"),
    ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
    ("INTERVAL YEAR TO MONTH", "INTERVAL MONTH"),
    ("INTERVAL DAY TO SECOND", "INTERVAL HOUR"),
)
"""Types that Spark compares with each other."""

_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_READ = {
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
_MADE = {
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
"""Expressions of the type they are about; NULL where that is NULL, and never out of range."""
_PARTS = {
    "STRUCT<f: INT, g: STRING>": (("{}.f", "INT"), ("{}.g", "STRING")),
    "ARRAY<INT>": (("get({}, 0)", "INT"), ("size({})", "INT")),
    "MAP<STRING, INT>": (("{}['a']", "INT"), ("map_keys({})", "ARRAY<STRING>")),
    "TIME(6)": (("hour({})", "INT"),),
    "DATE": (("year({})", "INT"),),
    "BINARY": (("hex({})", "STRING"),),
}
_SUMS = {
    **dict.fromkeys(_WHOLE, "BIGINT"),
    **dict.fromkeys(("FLOAT", "TIMESTAMP"), "DOUBLE"),
    "DECIMAL(10,2)": "DECIMAL(20,2)",
}
_AVERAGES = {"DECIMAL(10,2)": "DECIMAL(14,6)"}


@cache
def may(kind: str, role: Role) -> bool:
    """Whether a value of a type, as it is written here, may have a role."""
    return role_of(schema.parse(f"v {kind}").columns[0].type, role).how is not How.REFUSED


class TypedGenerator(Generator):
    """Draws queries about every type; kinds of columns are Spark's types. A seed has one that it is about."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.about = list(WIDE)[seed % len(WIDE)]

    # --- queries ------------------------------------------------------------------------------------------

    def _grouped(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        keys = self._some(source, Role.KEY, self.chance.randint(0, 2))
        calls = [self._aggregate(source) for _ in range(self.chance.randint(1, 3))]
        chosen, columns = self._list([*((key, self._kind(source, key)) for key in keys), *calls])
        by = having = ""
        if keys:
            shapes = ("{}", "{}", "{}", "ROLLUP ({})", "CUBE ({})", "GROUPING SETS (({}), ())")
            by = " GROUP BY " + self.chance.choice(shapes).format(", ".join(keys))
            having = self.chance.choice(("", "", " HAVING count(*) > 1"))
        return f"SELECT {chosen} FROM {source.sql}{self._where(source, depth)}{by}{having}", columns

    def _window(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        part, order, low = (self._one(source, Role.ORDERED) for _ in range(3))
        value = self._one(source, Role.PAYLOAD)
        turn = self.chance.choice(("", " DESC", " NULLS LAST"))
        over = f"(PARTITION BY {part} ORDER BY {order}{turn})"
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
        shown = [(part, self._kind(source, part)), (order, self._kind(source, order)), (call, kind)]
        chosen, columns = self._list(shown)
        qualify = f" QUALIFY {list(columns)[-1]} = 1" if kind == "INT" and self.chance.random() < 0.3 else ""
        return f"SELECT {chosen} FROM {source.sql}{self._where(source, depth)}{qualify}", columns

    def _sets(self, depth: int) -> tuple[str, dict[str, str]]:
        left, right = self._name(), self._name()
        fit = [name for name, kind in WIDE.items() if may(kind, Role.ORDERED)]
        mine = [self.about if self.about in fit else "a", *self.chance.sample(fit, self.chance.randint(0, 1))]
        pairs, shown = [], []
        for name in mine:
            other = self.chance.choice([one for one, kind in WIDE.items() if kind in _WHOLE or one == name])
            other = other if WIDE[name] in _WHOLE else name
            wider = max(WIDE[name], WIDE[other], key=_WHOLE.index) if WIDE[name] in _WHOLE else WIDE[name]
            pairs.append((f"{left}.{name}", f"{right}.{other}"))
            shown.append(wider)
        one, columns = self._list([(sql, kind) for (sql, _), kind in zip(pairs, shown, strict=True)])
        other, _ = self._list([(sql, kind) for (_, sql), kind in zip(pairs, shown, strict=True)])
        words = ("UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
        first, second = f"SELECT {one} FROM w {left}", f"SELECT {other} FROM {self._table()} {right}"
        mine_, other_ = Relation("", self._columns(left)), Relation("", self._columns(right))
        first, second = first + self._where(mine_, 0), second + self._where(other_, 0)
        return f"{first} {self.chance.choice(words)} {second}", columns

    def _distinct(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        shown = [(one, self._kind(source, one)) for one in self._some(source, Role.ORDERED, 2)]
        chosen, columns = self._list(shown)
        return f"SELECT DISTINCT {chosen} FROM {source.sql}{self._where(source, depth)}", columns

    def _top(self, depth: int) -> tuple[str, dict[str, str]]:
        source = self._from(depth)
        order = ", ".join(
            f"{one}{self.chance.choice(('', ' DESC'))}" for one in self._some(source, Role.ORDERED, 2)
        )
        chosen, columns = self._list([self._scalar(source), self._scalar(source)])
        limit = f"LIMIT {self.chance.randint(0, 6)}"
        return f"SELECT {chosen} FROM {source.sql}{self._where(source, 0)} ORDER BY {order} {limit}", columns

    def _cte(self, depth: int) -> tuple[str, dict[str, str]]:
        if depth < 1:
            return self._plain(depth)
        body, columns = self._query(depth - 1)
        name, left, right = self._name(), self._name(), self._name()
        keys = [one for one, kind in columns.items() if may(kind, Role.JOINED)]
        if keys and self.chance.random() < 0.5:
            key, value, number = self.chance.choice(keys), self._name(), self._name()
            joined = f"{name} {left} JOIN {name} {right} ON {left}.{key} <=> {right}.{key}"
            text = f"SELECT {left}.{key} AS {value}, count(*) AS {number} FROM {joined} GROUP BY {left}.{key}"
            return f"WITH {name} AS ({body}) {text}", {value: columns[key], number: "BIGINT"}
        chosen, out = self._list([self._aggregate(Relation(name, dict(columns)))])
        return f"WITH {name} AS ({body}) SELECT {chosen} FROM {name}", out

    def _generated(self, depth: int) -> tuple[str, dict[str, str]]:
        outer = self.chance.choice(("", "OUTER "))
        table, one, other = self._table(), self._name(), self._name()
        column, made = self.chance.choice(
            [
                ("arr", {one: "INT"}),
                ("dbs", {one: "DOUBLE"}),
                ("lcs", {one: "STRING COLLATE UTF8_LCASE"}),
                ("m", {one: "STRING", other: "INT"}),
                ("ms", {one: "MAP<STRING, INT>"}),
            ]
        )
        view = f"LATERAL VIEW {outer}explode({column}) g AS {', '.join(made)}"
        source = Relation(f"{table} {view}", {"a": "INT", self.about: WIDE[self.about], **made})
        key = self.chance.choice([name for name, kind in source.columns.items() if may(kind, Role.KEY)])
        chosen, columns = self._list([(key, source.columns[key]), self._aggregate(source)])
        return f"SELECT {chosen} FROM {source.sql}{self._where(source, 0)} GROUP BY {key}", columns

    # --- pieces -------------------------------------------------------------------------------------------

    def _table(self) -> str:
        return self.chance.choice(tuple(DDL))

    def _columns(self, name: str) -> dict[str, str]:
        """Some of the columns of a table: the one this seed is about, and a few others."""
        some = {"a", self.about, *self.chance.sample(list(WIDE), 4)}
        return {f"{name}.{one}": WIDE[one] for one in sorted(some)}

    def _from(self, depth: int) -> Relation:
        if depth > 0 and self.chance.random() < 0.3:
            body, columns = self._query(depth - 1)
            name = self._name()
            return Relation(f"({body}) {name}", {f"{name}.{one}": kind for one, kind in columns.items()})
        if self.chance.random() < 0.5:
            return self._joined()
        name = self._name()
        return Relation(f"{self._table()} {name}", self._columns(name))

    def _joined(self) -> Relation:
        left, right = self._name(), self._name()
        join = self.chance.choice(JOINS)
        names = [one for one, kind in WIDE.items() if may(kind, Role.JOINED)]
        one = self.about if self.about in names and self.chance.random() < 0.6 else self.chance.choice(names)
        kin = [kinds for kinds in KIN if WIDE[one] in kinds]
        alike = self.chance.choice(kin) if kin and self.chance.random() < 0.5 else (WIDE[one],)
        other = self.chance.choice([name for name, kind in WIDE.items() if kind in alike])
        key = f"{left}.{one} {self.chance.choice(('=', '=', '<=>'))} {right}.{other}"
        key += self.chance.choice(("", "", f" AND {left}.a = {right}.a", f" AND {left}.ti >= {right}.a"))
        columns = self._columns(left)
        if join not in ("LEFT SEMI JOIN", "LEFT ANTI JOIN"):
            columns |= self._columns(right)
        return Relation(f"{self._table()} {left} {join} {self._table()} {right} ON {key}", columns)

    def _condition(self, source: Relation, depth: int) -> str:
        column = self._column(source)
        found = [f"{column} IS NOT NULL", f"{column} IS NULL"]
        ordered = [one for one, kind in source.columns.items() if may(kind, Role.ORDERED)]
        if ordered:
            one = self.chance.choice(ordered)
            kind, inner = source.columns[one], self._name()
            alike = [other for other in ordered if source.columns[other] == kind and other != one]
            if alike:
                other = self.chance.choice(alike)
                found += [
                    f"{one} {self.chance.choice(('<', '>=', '<>'))} {other}",
                    f"NOT ({one} <=> {other})",
                ]
            same = [name for name, other in WIDE.items() if other == kind]
            if depth > 0 and same:
                negated, mine = self.chance.choice(("", "NOT ")), same[0]
                theirs = f"{inner}.{mine}"
                found += [
                    f"{one} {negated}IN (SELECT {theirs} FROM z {inner} WHERE {inner}.a > 0)",
                    f"{negated}EXISTS (SELECT 1 FROM z {inner} WHERE {theirs} = {one} AND {inner}.a < 3)",
                    f"{one} >= (SELECT min({theirs}) FROM z {inner})",
                ]
        chosen = self.chance.choice(found)
        return f"{chosen} AND {self.chance.choice(found[:2])}" if self.chance.random() < 0.2 else chosen

    def _lookup(self, source: Relation) -> str:
        inner, one = self._name(), self.chance.choice(source.of("INT"))
        call = self.chance.choice(("count(*)", f"max({inner}.bi)", f"coalesce(sum({inner}.sm), -1L)"))
        return f"(SELECT {call} FROM z {inner} WHERE {inner}.a = {one})"

    def _scalar(self, source: Relation) -> tuple[str, str]:
        column = self._column(source)
        kind = source.columns[column]
        if not may(kind, Role.PAYLOAD):
            said, made = self.chance.choice(_READ[kind])
            return said.format(column), made
        if kind in _PARTS and self.chance.random() < 0.3:
            said, made = self.chance.choice(_PARTS[kind])
            return said.format(column), made
        if kind in _MADE and self.chance.random() < 0.4:
            return self.chance.choice(_MADE[kind]).format(column), kind
        if kind in _WHOLE and self.chance.random() < 0.4:
            return self.chance.choice(("{} % 3", "coalesce({}, -7)")).format(column), "INT"
        return column, kind

    def _aggregate(self, source: Relation) -> tuple[str, str]:
        column = self._column(source)
        kind = source.columns[column]
        found = [("count(*)", "BIGINT"), (f"count({column})", "BIGINT")]
        if may(kind, Role.KEY):
            found += [(f"count(DISTINCT {column})", "BIGINT")]
        if may(kind, Role.PAYLOAD):
            found += [(f"first({column})", kind), (f"any_value({column})", kind)]
            found += [(f"max_by({column}, {self._one(source, Role.ORDERED)})", kind)]
        if may(kind, Role.ORDERED):
            found += [(f"min({column})", kind), (f"max({column})", kind)] * 2
            found += [(f"sort_array(collect_list({column}))", f"ARRAY<{kind}>")]
        if kind == "BOOLEAN":
            found += [(f"bool_or({column})", kind)]
        if may(kind, Role.AGGREGATED) and not kind.startswith("STRING"):
            found += [(f"sum({column})", _SUMS.get(kind, kind))] * 2
        if kind in _WHOLE or kind.startswith("DECIMAL(10"):
            found += [(f"avg({column})", _AVERAGES.get(kind, "DOUBLE"))]
            found += [(f"sum(DISTINCT {column})", _SUMS.get(kind, kind))]
        return self.chance.choice(found)

    def _some(self, source: Relation, role: Role, count: int) -> list[str]:
        """That many columns that may have a role, if there are as many; most often what the seed is about."""
        fit = [one for one, kind in source.columns.items() if may(kind, role)]
        first = [one for one in fit if one.rpartition(".")[2] == self.about and self.chance.random() < 0.7]
        others = self.chance.sample(fit, len(fit))
        found = list(dict.fromkeys([*first[:1], *others]))[:count]
        return found or ["CAST(1 AS INT)"] * min(1, count)

    def _one(self, source: Relation, role: Role) -> str:
        return self._some(source, role, 1)[0]

    def _kind(self, source: Relation, column: str) -> str:
        return source.columns.get(column, "INT")


def steps(seed: int) -> list[Step]:
    """Nothing; rows; rows and deletions, and infinities among them."""
    empty, first, second = generated_steps.generate_steps(DDL, seed=seed)[:3]
    ends = {"fl": float("inf"), "db": float("-inf")}
    more = {name: [*rows, {**rows[0], **ends}, {**rows[1], **ends}] for name, rows in second.inserts.items()}
    return [empty, first, Step(more, second.deletes)]


def one_result(case: Case) -> Case:
    """A case whose query has one result. Of a group Spark gives any row, in whatever order it reads: then
    the query is that of the circuit as it was written, in which the hash of the row decides.
    """
    free = any(f"{call}(" in case.sql for call in ("first", "any_value", "max_by"))
    return replace(case, sql=case.tie_breaking) if free and isinstance(case.tie_breaking, str) else case
