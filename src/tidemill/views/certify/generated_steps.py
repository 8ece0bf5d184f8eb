"""Generated steps for certification, with few distinct values and many edge cases.

All tables use the same values, so joins find matches, DISTINCT finds duplicates and ORDER BY finds ties. The
values include NULL, NaN, both zeros, adjacent integers, timestamps a few minutes apart, long and empty texts,
and empty arrays. Each column has a NULL. Only the last step has the lowest and
highest values of the types, because a query may overflow on them. The comparison accepts a step in which both
sides raise an error.

Columns that are used as lengths or counts get no extreme values: `repeat(s, 2147483647)` does not raise an
error, but crashes Spark. Timestamps in such columns are at most a minute apart, so that `sequence(first,
last, step)` stays short.
"""

import datetime as dt
import random
from collections.abc import Collection, Mapping, Sequence
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
LARGE_SIZE = 40
"""The largest value of a column that is used as a length or a count."""


def generate_steps(
    ddl: Mapping[str, str],
    *,
    seed: int | str = 0,
    rows: int = ROWS,
    clock: bool = False,
    sized: Mapping[str, Collection[str]] | None = None,
) -> list[Step]:
    """Generate inserts and deletes for tables with these columns.

    The first step is empty, to test empty tables. Then follow a step with inserts, a step with inserts and
    deletes, optionally a step in which only the time changes, and a step with extreme values.

    Args:
        ddl: the columns of each table.
        seed: the seed of the random values.
        rows: the number of rows per table and step.
        clock: whether to add a step in which only the time changes.
        sized: for each table, the columns that are used as lengths or counts.
    """
    chance = random.Random(seed)
    tables = {
        name: _TableRows(chance, schema.parse(text).columns, (sized or {}).get(name, ()))
        for name, text in ddl.items()
    }
    first_rows = {name: table.draw(rows) for name, table in tables.items()}
    second_rows = {name: table.draw(rows // 2) for name, table in tables.items()}
    deleted = {name: chance.sample(first_rows[name], rows // 3) for name in tables}
    steps = [
        Step(now=NOW),
        Step(inserts=first_rows, now=NOW + DAY_US),
        Step(inserts=second_rows, deletes=deleted),
    ]
    if clock:
        steps.append(Step(now=NOW + 40 * DAY_US))
    ends = {name: [table.highest(), *table.draw(3, ends=True)] for name, table in tables.items()}
    deleted_later = {name: second_rows[name][: rows // 4] for name in tables}
    return [*steps, Step(inserts=ends, deletes=deleted_later, extreme=True)]


class _TableRows:
    """Draws rows of one table."""

    def __init__(self, chance: random.Random, columns: Sequence[Column], sized: Collection[str]) -> None:
        self._chance = chance
        self._columns = columns
        self._sized = {name.lower() for name in sized}

    def draw(self, count: int, *, ends: bool = False) -> list[dict[str, Any]]:
        """Return random rows; with `ends`, some values are the lowest or highest of their type."""
        rows = [
            {column.name: self._value(column, ends=ends) for column in self._columns} for _ in range(count)
        ]
        # Repeat some rows: otherwise wide tables would have no duplicates.
        distinct = rows[: count - count // 4]
        for place, column in enumerate(self._columns):
            if all(row[column.name] is not None for row in distinct):
                distinct[place % len(distinct)][column.name] = None  # each column has a NULL
        return distinct + distinct[: count // 4]

    def highest(self) -> dict[str, Any]:
        """Return a row with the highest value of each type that has one."""
        return {column.name: self._highest(column) for column in self._columns}

    def _highest(self, column: Column) -> Any:
        if not ends(column.type):
            return self._value(column, ends=True)
        if column.name.lower() not in self._sized:
            return ends(column.type)[-1]
        assert isinstance(column.type, Simple)
        return LARGE_SIZE if row_of(column.type).family is Family.INTEGER else self._value(column, ends=False)

    def _value(self, column: Column, *, ends: bool) -> Any:
        if column.name.lower() not in self._sized:
            return value(self._chance, column.type, ends=ends)
        drawn = value(self._chance, column.type)
        if not isinstance(drawn, dt.datetime):
            return drawn
        assert isinstance(column.type, Simple)
        first = row_of(column.type).samples[0]
        return first + (drawn - first) / 3600  # seconds instead of hours


def value(chance: random.Random, kind: Type, *, ends: bool = False, nulls: float = 0.2) -> Any:
    """Return a random value of a type, sometimes NULL."""
    if chance.random() < nulls:
        return None
    match kind:
        case Array():
            return [value(chance, kind.element, ends=ends) for _ in range(chance.choice((0, 1, 2, 3)))]
        case Map():
            keys = {value(chance, kind.key, nulls=0.0) for _ in range(chance.choice((0, 1, 2)))}
            return [(key, value(chance, kind.value, ends=ends)) for key in sorted(keys, key=repr)]
        case Struct():
            return {field.name: value(chance, field.type, ends=ends) for field in kind.fields}
        case _:
            return _simple(chance, kind.name, ends)


def _simple(chance: random.Random, name: str, ends: bool) -> Any:
    row = row_of(name)
    if row.family is Family.TEXT and numbers_of(name):
        text = chance.choice(row.samples)[: numbers_of(name)[0]]
        return text.ljust(numbers_of(name)[0]) if row.name == "char" else text
    if row.family is Family.DECIMAL:
        digits, scale = numbers_of(name)
        unscaled = chance.choice((0, 1, 15, -25, 10**digits - 1 if ends else 3))
        fits = unscaled % 10**digits if unscaled > 0 else max(unscaled, -(10**digits) + 1)
        # Built from digits: decimal arithmetic would round to the 28 digits of Python's context.
        return Decimal((int(fits < 0), tuple(map(int, str(abs(fits)))), -scale))
    return chance.choice([*row.samples, *(row.extremes if ends else ())])


def ends(kind: Type) -> tuple[Any, ...]:
    """Return the lowest and highest values of a type, if its arithmetic can overflow."""
    return row_of(kind).extremes if isinstance(kind, Simple) else ()
