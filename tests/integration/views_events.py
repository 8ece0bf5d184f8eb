"""Random queries over events: time windows, and expressions that a condition protects from an error.

The times are minutes apart, so windows share rows and sessions meet. Texts are numbers or not, and divisors
may be 0. Each expression that can raise an error has a condition next to it. Plain Spark evaluates the
condition first in most of the queries; where it does not, it raises an error, and the judge compares nothing.
"""

# ruff: noqa: E501  # each query is on one line

import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemill.testing import Step

DDL = {
    "e": "id INT, k INT, g STRING, ts TIMESTAMP, n TIMESTAMP_NTZ, x DOUBLE, c CHAR(3), v VARCHAR(5)",
    "o": "id INT, k INT, g STRING, ts TIMESTAMP, n TIMESTAMP_NTZ",
}

SPANS = ("'10 minutes'", "'10 minutes', '5 minutes'", "'7 minutes', '7 minutes', '2 minutes'", "'1 hour'")

RISKS = (
    ("CAST(g AS INT)", "g RLIKE '^[0-9]+$'"),
    ("CAST(g AS INT)", "regexp_like(g, '^[0-9]+$')"),
    ("100 DIV k", "k <> 0"),
    ("100 DIV k", "abs(k) > 0"),
    ("100 DIV k", "k % 7 <> 0"),
    ("7 % k", "k > 0"),
    ("element_at(array(1, 2, 3), k)", "k BETWEEN 1 AND 3"),
    ("element_at(array(1, 2, 3), k)", "mod(k, 4) > 0"),
    ("month(make_date(2024, k, 1))", "k IN (1, 2, 3)"),
    ("year(CAST(concat('2024-01-0', g) AS DATE))", "g IN ('1', '7')"),
    ("CAST(100 * k AS TINYINT)", "k IN (0, 1, -1)"),
)
"""Expressions that can raise an error, and conditions under which they do not."""

GUARDED = (
    "SELECT id, r FROM (SELECT id, k, g, {r} AS r FROM e) WHERE {guard}",
    "SELECT id, {r} AS r FROM e WHERE {guard}",
    "SELECT id, {r} AS r FROM (SELECT * FROM e WHERE {guard}) WHERE {r} > 0 AND {r} < 90",
    "SELECT id FROM e WHERE {guard} AND ({r} > 1 OR {r} < -1)",
    "SELECT {r} AS r, count(*) AS n FROM e WHERE {guard} GROUP BY {r}",
    "SELECT k, sum({r}) AS s, count(*) AS n FROM e WHERE {guard} GROUP BY k HAVING sum({r}) > 0",
    "SELECT k, s FROM (SELECT k, g, sum({r}) AS s FROM e GROUP BY k, g) WHERE {guard}",
    "SELECT k, g, sum(r) AS s FROM (SELECT k, g, {r} AS r FROM e) WHERE {guard} GROUP BY k, g",
    "SELECT z.id, z.r, o.id AS i FROM (SELECT id, k, g, {r} AS r FROM e) z JOIN o ON z.r = o.k WHERE {z_guard}",
    "SELECT z.id, o.id AS i FROM o LEFT JOIN (SELECT id, k, g, {r} AS r FROM e WHERE {guard}) z ON z.r = o.k",
    "SELECT z.id, z.r, o.id AS i FROM (SELECT id, k, g, {r} AS r FROM e) z LEFT JOIN o ON z.k = o.k WHERE {z_guard}",
    "SELECT o.id AS i, z.r FROM o LEFT JOIN (SELECT k, g, {r} AS r FROM e) z ON z.k = o.k WHERE {z_guard}",
    "SELECT id, row_number() OVER (PARTITION BY r, k ORDER BY id) AS p FROM (SELECT id, k, g, {r} AS r FROM e) WHERE {guard}",
    "SELECT id, r FROM (SELECT id, k, g, {r} AS r FROM e UNION ALL SELECT id, k, g, {r} FROM o) WHERE {guard}",
    "SELECT DISTINCT r, k FROM (SELECT k, g, {r} AS r FROM e) WHERE {guard}",
    "SELECT id, CASE WHEN {guard} THEN r END AS r FROM (SELECT id, k, g, {r} AS r FROM e)",
    "SELECT id, CASE WHEN {guard} THEN {r} END AS r, CASE WHEN {guard} THEN {r} + 1 ELSE -1 END AS s FROM e",
    "SELECT id, if({guard}, {r}, 0) + if({guard}, {r}, 1) AS r FROM e WHERE id > 1",
    "WITH p AS (SELECT id, k, g, {r} AS r FROM e) SELECT id, r FROM p WHERE {guard} UNION ALL SELECT id, r + 1 FROM p WHERE {guard} AND id > 2",
    "SELECT id, r, m FROM (SELECT id, k, g, {r} AS r, explode(array(k, 1)) AS m FROM e) WHERE {guard}",
    "SELECT id FROM e WHERE EXISTS (SELECT 1 FROM o WHERE o.k = {e_r}) AND {guard}",
    "SELECT id FROM e WHERE {guard} AND k IN (SELECT {r} FROM o WHERE {guard})",
)
"""Queries with an expression r and its guard."""

WINDOWED = (
    "SELECT {w}.start AS s, {agg} AS a FROM {t} GROUP BY {w}",
    "SELECT k, {w} AS w, {agg} AS a, count(*) AS n FROM {t} WHERE k > 0 GROUP BY k, {w}",
    "SELECT window.start AS s, window.end AS f, k, {agg} AS a FROM {t} GROUP BY {w}, k HAVING count(*) > 1",
    "SELECT w.start AS s, count(*) AS n FROM (SELECT {w} AS w, k FROM {t}) WHERE k IS NOT NULL GROUP BY w.start",
    "SELECT id, {w} AS w FROM {t}",
    "SELECT id, k + 1 AS l, {w}.end AS f FROM {t} WHERE id % 2 = 0",
    "SELECT DISTINCT {w} AS w FROM {t}",
    "SELECT {w} AS w, max(ts) AS m FROM {t} GROUP BY ALL",
    "SELECT w, id, rank() OVER (PARTITION BY w ORDER BY id) AS p FROM (SELECT {w} AS w, id FROM {t})",
    "SELECT l.w.start AS s, l.a, r.n FROM (SELECT {w} AS w, {agg} AS a FROM e GROUP BY 1) l JOIN (SELECT {w} AS w, count(*) AS n FROM o GROUP BY 1) r ON l.w = r.w",
    "SELECT l.id, r.id AS i FROM (SELECT id, {w} AS w FROM e) l LEFT JOIN (SELECT id, {w} AS w FROM o) r ON l.w = r.w",
    "SELECT {w} AS w, k, {agg} AS a FROM {t} GROUP BY ROLLUP ({w}, k)",
    "SELECT id, {w} AS w, explode(array(k, id)) AS m FROM {t}",
    "SELECT k, session_window.start AS s, session_window.end AS f, {agg} AS a FROM {t} GROUP BY k, session_window({time}, '5 minutes')",
    "SELECT g, k, session_window({time}, '3 minutes') AS w, count(*) AS n FROM {t} WHERE id > 0 GROUP BY g, session_window({time}, '3 minutes'), k",
    "SELECT session_window({time}, '2 minutes') AS w, {agg} AS a FROM {t} GROUP BY session_window({time}, '2 minutes')",
    "SELECT k, max(n) AS n FROM (SELECT k, session_window({time}, '4 minutes') AS w, count(*) AS n FROM {t} GROUP BY k, session_window({time}, '4 minutes')) GROUP BY k",
)
"""Queries with a time window w over a table t."""

PLAIN = (
    "SELECT k, count(*) AS n, sum(id) AS s FROM {t} GROUP BY k",
    "SELECT id, k * 2 AS z, n, to_json(named_struct('n', n, 'ts', ts)) AS j FROM {t}",
    "SELECT k + 1 AS l, max(n) AS m, typeof(max(n)) AS ty FROM {t} GROUP BY k + 1",
    "SELECT c, v, length(c) AS l, count(*) AS n FROM e GROUP BY c, v",
    "SELECT e.id, o.id AS i, e.c, to_json(struct(o.n)) AS j FROM e JOIN o ON e.k = o.k AND e.c < o.g",
    "SELECT e.id, o.n, date_format(o.n, 'HH:mm') AS h FROM e LEFT JOIN o ON e.n = o.n",
    "SELECT x, count(*) AS n, min(v) AS v FROM e GROUP BY x",
    "SELECT a.id, b.id AS i FROM e a JOIN e b ON a.x = b.x AND a.id < b.id",
)
"""Queries that share their tables with those above: no time window may change their rows."""


class EventGenerator:
    """Generates queries; a query depends only on its seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def query(self) -> str:
        templates, weights = (GUARDED, WINDOWED, PLAIN), (4, 4, 1)
        (shapes,) = self.chance.choices(templates, weights)
        risk, guard = self.chance.choice(RISKS)
        table = self.chance.choice(tuple(DDL))
        time = self.chance.choice(("ts", "ts", "n"))
        values = {
            "r": risk,
            "guard": guard,
            "e_r": _qualified(risk, "e"),
            "z_guard": _qualified(guard, "z"),
            "w": f"window({time}, {self.chance.choice(SPANS)})",
            "time": time,
            "t": table,
            "agg": self.chance.choice(("count(*)", "sum(id)", "min(g)", "max(n)", "count(DISTINCT k)")),
        }
        return self.chance.choice(shapes).format_map(values)


def _qualified(expression: str, table: str) -> str:
    return re.sub(r"\b([gk])\b", rf"{table}.\1", expression)


def steps(seed: int) -> list[Step]:
    """Return four steps: empty tables, inserts, and twice inserts and deletes."""
    chance = random.Random(seed)
    first = {name: _rows(chance, name, 14) for name in DDL}
    second = {name: _rows(chance, name, 8) for name in DDL}
    third = {name: _rows(chance, name, 4) for name in DDL}
    return [
        Step(),
        Step(first),
        Step(second, {name: rows[:6] for name, rows in first.items()}),
        Step(third, {name: [*rows[8:], *second[name][2:]] for name, rows in first.items()}),
    ]


_VALUES: dict[str, Sequence[Any]] = {
    "k": (0, 1, 2, 3, 5, -1, 7, None),
    "g": ("1", "12", "7", "abc", "", " 3", "9x", None),
    "x": (0.0, 1.5, 2.5, float("nan"), None),
    "c": ("", "a", "ab", "abc", None),
    "v": ("", "a", "a ", "long", None),
}


def _rows(chance: random.Random, table: str, count: int) -> list[dict[str, Any]]:
    names = [column.split()[0] for column in DDL[table].split(", ")]
    return [{name: _value(chance, name) for name in names} for _ in range(count)]


def _value(chance: random.Random, name: str) -> Any:
    if name == "id":
        return chance.randint(1, 9)
    if name in _VALUES:
        return chance.choice(_VALUES[name])
    if chance.random() < 0.15:
        return None
    zone = UTC if name == "ts" else None
    return datetime(2024, 3, 31, 0, 50, tzinfo=zone) + timedelta(seconds=30 * chance.randint(0, 50))
