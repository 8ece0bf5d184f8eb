"""Steps made up for certification: few values, so that rows meet, repeat and cancel; and all that is awkward.

The pools are the same for every table: joins find partners, distinct finds duplicates, order finds ties.
NULL, NaN, both zeros, empty strings and empty arrays are among them. Only the last step has values at the
ends of their types: where a query overflows on those, that step is left out by whoever compares.
"""

import datetime as dt
import random
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from tidemill.spark import schema
from tidemill.spark.schema import Array, Column, Map, Struct, Type
from tidemill.views.certify.contents import Step

ROWS = 9
NAN = float("nan")
FIRST = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NOW = int(FIRST.timestamp()) * 1_000_000
DAY_US = 86_400_000_000


def _point(x: float, y: float) -> bytes:
    """A point, as geometries are written."""
    return struct.pack("<BIdd", 1, 1, x, y)


_POOLS: Mapping[str, Sequence[Any]] = {
    "boolean": (True, False),
    "tinyint": (0, 1, 2, -1, 3),
    "smallint": (0, 1, 2, -1, 3),
    "int": (0, 1, 2, 3, -1, 5),
    "bigint": (0, 1, 2, 3, -1, 5),
    "float": (0.0, -0.0, 1.5, 2.0, NAN, -2.5),
    "double": (0.0, -0.0, 1.5, 2.0, NAN, -2.5),
    "string": ("", "a", "b", "A", "x y", "1", "ü"),
    "binary": (b"", b"\x00", b"a"),
    "date": tuple((FIRST + dt.timedelta(days=n)).date() for n in (0, 1, 31, -1)),
    "timestamp": tuple(FIRST + dt.timedelta(hours=n) for n in (0, 1, 30, -30, 12)),
    "timestamp_ntz": tuple((FIRST + dt.timedelta(hours=n)).replace(tzinfo=None) for n in (0, 1, 30, -30)),
    "interval day to second": (dt.timedelta(0), dt.timedelta(hours=1), dt.timedelta(days=-1)),
    "interval year to month": ("0-0", "1-2", "-0-3"),
    **dict.fromkeys((f"interval {unit}" for unit in ("year", "month", "day", "hour")), ("0", "1", "-3")),
    "interval": ("0 days", "1 month", "30 days", "1 month 2 days 3 seconds"),
    "variant": ("1", "1.0", '"a"', "null", '{"a": 1, "b": [true, null]}', '{"b": [], "a": 2}'),
    **dict.fromkeys(("geometry", "geography"), (_point(0.0, 0.0), _point(1.0, 2.0))),
    "void": (None,),
    "time": (dt.time(0), dt.time(12, 30), dt.time(23, 59, 59)),
}
_ENDS: Mapping[str, Sequence[Any]] = {
    "tinyint": (-128, 127),
    "smallint": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
    "float": (float("inf"), float("-inf")),
    "double": (float("inf"), float("-inf"), 1e300),
    "date": (dt.date(1, 1, 1), dt.date(9999, 12, 31)),
}


def steps(ddl: Mapping[str, str], *, seed: int = 0, rows: int = ROWS, clock: bool = False) -> list[Step]:
    """Inserts and deletes for tables with these columns.

    An empty one first, so that empty tables are met; then rows alone, then rows and deletions, then nothing,
    then the ends of types.

    Args:
        ddl: columns by table.
        seed: another one makes other rows.
        rows: of each table and step.
        clock: whether a step follows in which nothing but the time moves.
    """
    chance = random.Random(seed)
    columns = {name: schema.parse(text).columns for name, text in ddl.items()}
    first = {name: _rows(chance, columns[name], rows) for name in columns}
    second = {name: _rows(chance, columns[name], rows // 2) for name in columns}
    gone = {name: chance.sample(first[name], rows // 3) for name in columns}
    found = [
        Step(now=NOW),
        Step(inserts=first, now=NOW + DAY_US),
        Step(inserts=second, deletes=gone),
    ]
    if clock:
        found.append(Step(now=NOW + 40 * DAY_US))
    ends = {
        name: [_highest(chance, columns[name]), *_rows(chance, columns[name], 3, ends=True)]
        for name in columns
    }
    rest = {name: second[name][: rows // 4] for name in columns}
    return [*found, Step(inserts=ends, deletes=rest)]


def _rows(chance: random.Random, columns: Sequence[Column], count: int, *, ends: bool = False) -> list[Any]:
    made = [{one.name: value(chance, one.type, ends=ends) for one in columns} for _ in range(count)]
    # Some rows are there twice whatever was drawn: wide tables would have no duplicates else.
    return made[: count - count // 4] + made[: count // 4]


def _highest(chance: random.Random, columns: Sequence[Column]) -> dict[str, Any]:
    """A row with the highest value of each type that has one."""
    return {
        one.name: _ENDS[str(one.type)][-1] if str(one.type) in _ENDS else value(chance, one.type, ends=True)
        for one in columns
    }


def value(chance: random.Random, kind: Type, *, ends: bool = False, nulls: float = 0.2) -> Any:
    """A value of a type, NULL now and then."""
    if chance.random() < nulls:
        return None
    match kind:
        case Array():
            return [value(chance, kind.element, ends=ends) for _ in range(chance.choice((0, 1, 2, 3)))]
        case Map():
            keys = {value(chance, kind.key, nulls=0.0) for _ in range(chance.choice((0, 1, 2)))}
            return [(key, value(chance, kind.value, ends=ends)) for key in sorted(keys, key=repr)]
        case Struct():
            return {one.name: value(chance, one.type, ends=ends) for one in kind.fields}
        case _:
            return _simple(chance, kind.name, ends)


def _simple(chance: random.Random, name: str, ends: bool) -> Any:
    word = name.partition("(")[0]
    if word == "decimal":
        digits, scale = (int(part) for part in name[8:-1].split(","))
        whole = chance.choice((0, 1, 15, -25, 10**digits - 1 if ends else 3))
        fits = whole % 10**digits if whole > 0 else max(whole, -(10**digits) + 1)
        # By its digits: arithmetic on decimals would round to the 28 of Python's context.
        return Decimal((int(fits < 0), tuple(map(int, str(abs(fits)))), -scale))
    if word in ("char", "varchar") or name.startswith("string collate "):
        word = "string"
    pool = _POOLS.get(word, _POOLS.get(name, (None,)))
    return chance.choice([*pool, *(_ENDS.get(word, ()) if ends else ())])


def ends(kind: Type) -> tuple[Any, ...]:
    """The values at the ends of a type, where it has some that arithmetic can leave."""
    return tuple(_ENDS.get(str(kind), ()))
