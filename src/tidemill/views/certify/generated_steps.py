"""Steps made up for certification: few values, so that rows meet, repeat and cancel; and all that is awkward.

The pools are the same for every table: joins find partners, distinct finds duplicates, order finds ties.
NULL, NaN, both zeros, empty strings and empty arrays are among them. Only the last step has values at the
ends of their types: where a query overflows on those, that step is left out by whoever compares.
"""

import datetime as dt
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from tidemill.schemas.columns import Array, Column, Map, Simple, Struct, Type
from tidemill.schemas.type_table import Family, numbers_of, row_of
from tidemill.spark import schema
from tidemill.views.certify.table_contents import Step

ROWS = 9
FIRST = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NOW = int(FIRST.timestamp()) * 1_000_000
DAY_US = 86_400_000_000


def generate_steps(
    ddl: Mapping[str, str], *, seed: int = 0, rows: int = ROWS, clock: bool = False
) -> list[Step]:
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
        column.name: ends(column.type)[-1] if ends(column.type) else value(chance, column.type, ends=True)
        for column in columns
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
    row = row_of(name)
    if row.family is Family.DECIMAL:
        digits, scale = numbers_of(name)
        whole = chance.choice((0, 1, 15, -25, 10**digits - 1 if ends else 3))
        fits = whole % 10**digits if whole > 0 else max(whole, -(10**digits) + 1)
        # By its digits: arithmetic on decimals would round to the 28 of Python's context.
        return Decimal((int(fits < 0), tuple(map(int, str(abs(fits)))), -scale))
    return chance.choice([*row.samples, *(row.extremes if ends else ())])


def ends(kind: Type) -> tuple[Any, ...]:
    """The lowest and highest values of a type, if arithmetic on it can overflow."""
    return row_of(kind).extremes if isinstance(kind, Simple) else ()
