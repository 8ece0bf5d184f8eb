"""Checks: what is expected of the rows of a lot, as values (LOT-33).

    not_null("id")                    no value of these columns is NULL
    unique("id")                      no two rows of a lot have the same values there; a NULL is like no other
    expect("amount > 0")              the expression is true for every row; NULL is not true
    rows(at_least=1)                  how many rows a lot has

A check that fails is told and counted (`warn`), takes the rows that fail out of the lot and into the
quarantine table (`drop`), or keeps the lot from being published (`fail`, unless told otherwise). What is
counted is in the lot's manifest, under the name of the check.

Only rows that come are checked: a deletion, or the retraction of a row, is let through. One check nobody
declares: a write by key has a key, be it an upsert or a deletion (LOT-40).
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec

from tidemill.errors import BadCheck
from tidemill.lots.keys import DatasetId

KEY: Final = "key"
RESERVED: Final = frozenset({"files", "quarantined", "unknown_columns", "rescued", KEY})
"""What is counted beside checks that are declared, in the same place."""

QUARANTINE_SCHEMA: Final = "file STRING, line BIGINT, record STRING, error STRING, check STRING"
"""Of a quarantine table. `file` and `line` are of records that a source could not read: `line` counts from 1;
where records are not lines it counts records, and it is NULL, as `record` is, for a file that could not be
read at all. `check` names what took a row out that could be read; `record` is that row as JSON."""

Kind = Literal["not_null", "unique", "expect", "rows"]
Action = Literal["warn", "drop", "fail"]


class OnFail(StrEnum):
    """What becomes of rows that fail."""

    WARN = "warn"
    DROP = "drop"
    FAIL = "fail"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check; made by the functions of this module.

    >>> unique("id", on_fail="warn").on_fail.value
    'warn'

    - all_operations: it is of rows that go as well.
    """

    kind: Kind
    name: str
    on_fail: OnFail = OnFail.FAIL
    columns: tuple[str, ...] = ()
    expression: str = ""
    at_least: int | None = None
    at_most: int | None = None
    all_operations: bool = False

    @property
    def of_rows(self) -> bool:
        """Can it be told of a row by itself?"""
        return self.kind in ("not_null", "expect")

    @property
    def of_lots(self) -> bool:
        """Is it about a lot as a whole, so that it cannot be told part by part?"""
        return not self.of_rows

    @property
    def wrong(self) -> str:
        """What is wrong with a row that fails, for people."""
        named = ", ".join(self.columns)
        match self.kind:
            case "not_null":
                return f"NULL in the key {named}" if self.all_operations else f"{named} is NULL"
            case "unique":
                return f"{named} is there more than once"
            case "expect":
                return f"not true: {self.expression}"
            case "rows":
                bounds = [
                    f"at least {self.at_least}" if self.at_least is not None else "",
                    f"at most {self.at_most}" if self.at_most is not None else "",
                ]
                return f"{' and '.join(filter(None, bounds))} rows were expected"

    def amiss(self, rows: int) -> int:
        """Of a check of the number of rows: how many are missing, or too many."""
        if self.at_least is not None and rows < self.at_least:
            return self.at_least - rows
        if self.at_most is not None and rows > self.at_most:
            return rows - self.at_most
        return 0


def not_null(*columns: str, on_fail: Action = "fail", name: str | None = None) -> Check:
    """No value of these columns is NULL.

    >>> not_null("id").name
    'not_null(id)'
    """
    return _check("not_null", name or f"not_null({', '.join(columns)})", on_fail, columns)


def has_key(*columns: str) -> Check:
    """No write of a keyed dataset is without its key, deletions included; one that is, is taken out."""
    return Check(kind="not_null", name=KEY, on_fail=OnFail.DROP, columns=columns, all_operations=True)


def unique(*columns: str, on_fail: Action = "fail", name: str | None = None) -> Check:
    """No two rows of a lot have the same values in these columns. With `drop` all that do are taken out: no
    one of them is better than the others.

    >>> unique("id").name
    'unique(id)'
    """
    return _check("unique", name or f"unique({', '.join(columns)})", on_fail, columns)


def expect(expression: str, *, on_fail: Action = "fail", name: str | None = None) -> Check:
    """An expression of Spark SQL that is true for every row.

    >>> expect("amount > 0", name="positive", on_fail="drop").wrong
    'not true: amount > 0'
    """
    if not expression.strip():
        raise BadCheck("an empty expression", hint="write a condition: expect('amount > 0')")
    return msgspec.structs.replace(_check("expect", name or expression, on_fail), expression=expression)


def rows(
    *, at_least: int | None = None, at_most: int | None = None, on_fail: Action = "fail", name: str = "rows"
) -> Check:
    """How many rows a lot has.

    >>> rows(at_least=1).wrong
    'at least 1 rows were expected'
    """
    if at_least is None and at_most is None:
        raise BadCheck("rows() expects nothing", hint="at_least=1, for example")
    if (at_least or 0) < 0 or (at_most is not None and at_most < (at_least or 0)):
        raise BadCheck(f"rows(at_least={at_least}, at_most={at_most})", hint="0 <= at_least <= at_most")
    if on_fail == "drop":
        raise BadCheck("no row fails a check of how many there are", hint="on_fail='warn' or 'fail'")
    return msgspec.structs.replace(_check("rows", name, on_fail), at_least=at_least, at_most=at_most)


def _check(kind: Kind, name: str, on_fail: str, columns: Sequence[str] = ()) -> Check:
    if kind in ("not_null", "unique") and (not columns or not all(isinstance(one, str) for one in columns)):
        raise BadCheck(f"{kind} without columns", hint=f"{kind}('id')")
    if on_fail not in list(OnFail):
        raise BadCheck(f"on_fail={on_fail!r}", hint="warn, drop or fail")
    if name in RESERVED or not name:
        raise BadCheck(f"a check called {name!r}", hint="give it another name: name='…'")
    return Check(kind=kind, name=name, on_fail=OnFail(on_fail), columns=tuple(columns))


def of(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Checks as they were given, each with a name of its own."""
    found: dict[str, Check] = {}
    for one in checks:
        if not isinstance(one, Check):
            raise BadCheck(f"{one!r:.60} is no check", hint="not_null(…), unique(…), expect(…) or rows(…)")
        if one.name in found:
            raise BadCheck(f"two checks called {one.name!r}", hint="give one another name: name='…'")
        found[one.name] = one
    return tuple(found.values())


def drops(checks: Sequence[Check]) -> bool:
    """Can rows be taken out by these?"""
    return any(one.on_fail is OnFail.DROP for one in checks)


def strict(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The same where nothing can be taken out: what would take rows out forbids them."""
    return tuple(
        msgspec.structs.replace(one, on_fail=OnFail.FAIL) if one.on_fail is OnFail.DROP else one
        for one in checks
    )


def quarantine_of(dataset: DatasetId) -> DatasetId:
    """Where the rows and records go that do not fit a table."""
    return DatasetId(f"{dataset.name}_quarantine", dataset.version)
