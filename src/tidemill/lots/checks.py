"""Checks: conditions that the rows of a lot must meet (LOT-33).

    not_null("id")                    no value of these columns is NULL
    unique("id")                      no two rows of a lot have the same values in these columns (two NULLs
                                      are not the same)
    expect("amount > 0")              the expression is true for every row; NULL is not true
    rows(at_least=1)                  the number of rows in a lot is within limits
    foreign_key("cust", references="customers", to="id")
                                      another table has a row with the same value; only for views

`on_fail` says what happens to rows that fail. `warn` reports and counts them. `drop` moves them from the lot
to the quarantine table. `fail`, the default, refuses to publish the lot. The lot's manifest records the
counts under the name of the check.

A check of a view covers all rows of the view, not only those of a lot; see `pipeline.checked_views`.

Checks apply to inserted rows only: deletions and retractions pass. Every keyed dataset also has an implicit
check: each upsert and each deletion must have a key (LOT-40).
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec

from tidemill.errors import BadCheck
from tidemill.lots.keys import DatasetId

KEY: Final = "key"
RESERVED: Final = frozenset({"files", "quarantined", "unknown_columns", "rescued", KEY})
"""Names that a declared check cannot have: manifests record other counts under these names."""

QUARANTINE_SCHEMA: Final = "file STRING, line BIGINT, record STRING, error STRING, check STRING"
"""The columns of a quarantine table. `file` and `line` locate a record that a source could not read. `line`
counts from 1; in formats without lines it counts records. If a whole file is unreadable, `line` and `record`
are NULL. For a row that failed a check, `check` names the check and `record` is the row as JSON."""

Kind = Literal["not_null", "unique", "expect", "rows", "foreign_key"]
Action = Literal["warn", "drop", "fail"]


class OnFail(StrEnum):
    """What to do with rows that fail a check."""

    WARN = "warn"
    DROP = "drop"
    FAIL = "fail"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check, created by one of the functions below.

    >>> unique("id", on_fail="warn").on_fail.value
    'warn'

    - all_operations: also check deletions and retractions.
    - references, to: the table and its columns that must have the values of `columns`.
    """

    kind: Kind
    name: str
    on_fail: OnFail = OnFail.FAIL
    columns: tuple[str, ...] = ()
    expression: str = ""
    at_least: int | None = None
    at_most: int | None = None
    all_operations: bool = False
    references: str = ""
    to: tuple[str, ...] = ()

    @property
    def is_per_row(self) -> bool:
        """Return whether each row can be checked without the others."""
        return self.kind in ("not_null", "expect")

    @property
    def needs_whole_lot(self) -> bool:
        """Return whether the check needs all rows of a lot, so that parts cannot be checked separately."""
        return not self.is_per_row

    @property
    def problem(self) -> str:
        """Describe what is wrong with a row that fails."""
        columns = ", ".join(self.columns)
        match self.kind:
            case "not_null":
                return f"NULL in the key {columns}" if self.all_operations else f"{columns} is NULL"
            case "unique":
                return f"{columns} is not unique"
            case "expect":
                return f"not true: {self.expression}"
            case "rows":
                bounds = [
                    f"at least {self.at_least}" if self.at_least is not None else "",
                    f"at most {self.at_most}" if self.at_most is not None else "",
                ]
                return f"expected {' and '.join(filter(None, bounds))} rows"
            case "foreign_key":
                return f"{columns} is not in {self.references}({', '.join(self.to)})"

    def rows_out_of_bounds(self, rows: int) -> int:
        """Return by how many rows a lot misses the bounds, for a check of kind `rows`."""
        if self.at_least is not None and rows < self.at_least:
            return self.at_least - rows
        if self.at_most is not None and rows > self.at_most:
            return rows - self.at_most
        return 0


def not_null(*columns: str, on_fail: Action = "fail", name: str | None = None) -> Check:
    """Check that no value of these columns is NULL.

    >>> not_null("id").name
    'not_null(id)'
    """
    return _check("not_null", name or f"not_null({', '.join(columns)})", on_fail, columns)


def has_key(*columns: str) -> Check:
    """Check that every write to a keyed dataset has a key, deletions included; drop writes without a key."""
    return Check(kind="not_null", name=KEY, on_fail=OnFail.DROP, columns=columns, all_operations=True)


def unique(*columns: str, on_fail: Action = "fail", name: str | None = None) -> Check:
    """Check that no two rows of a lot have the same values in these columns. `drop` removes all of the
    duplicates, because no row is better than the others.

    >>> unique("id").name
    'unique(id)'
    """
    return _check("unique", name or f"unique({', '.join(columns)})", on_fail, columns)


def expect(expression: str, *, on_fail: Action = "fail", name: str | None = None) -> Check:
    """Check that a Spark SQL expression is true for every row.

    >>> expect("amount > 0", name="positive", on_fail="drop").problem
    'not true: amount > 0'
    """
    if not expression.strip():
        raise BadCheck("expect() got an empty expression", hint="write a condition: expect('amount > 0')")
    return msgspec.structs.replace(_check("expect", name or expression, on_fail), expression=expression)


def rows(
    *, at_least: int | None = None, at_most: int | None = None, on_fail: Action = "fail", name: str = "rows"
) -> Check:
    """Check how many rows a lot has.

    >>> rows(at_least=1).problem
    'expected at least 1 rows'
    """
    if at_least is None and at_most is None:
        raise BadCheck("rows() needs a limit", hint="set at_least or at_most: rows(at_least=1)")
    if (at_least or 0) < 0 or (at_most is not None and at_most < (at_least or 0)):
        raise BadCheck(
            f"rows(at_least={at_least}, at_most={at_most}) has invalid limits",
            hint="use 0 <= at_least <= at_most",
        )
    if on_fail == "drop":
        raise BadCheck("rows() cannot drop rows: it only counts them", hint="use on_fail='warn' or 'fail'")
    return msgspec.structs.replace(_check("rows", name, on_fail), at_least=at_least, at_most=at_most)


def foreign_key(
    *columns: str,
    references: str,
    to: str | Sequence[str] = (),
    on_fail: Action = "fail",
    name: str | None = None,
) -> Check:
    """Check that another table has a row with the same values. Rows with a NULL in these columns pass.

    Only views can have this check.

    >>> foreign_key("cust", references="customers", to="id").problem
    'cust is not in customers(id)'

    Args:
        columns: the columns of the view.
        references: the name of the other table or view.
        to: the columns of the other table, in the same order; by default, those with the same names.
        on_fail: what to do with rows that fail.
        name: the name of the check.
    """
    target = (to,) if isinstance(to, str) else tuple(to) or columns
    if not references:
        raise BadCheck("foreign_key() needs the name of a table", hint="pass it: references='customers'")
    if len(target) != len(columns):
        raise BadCheck(
            f"foreign_key() compares {len(columns)} columns with {len(target)}",
            hint="pass one column in to= for each column",
        )
    label = name or f"foreign_key({', '.join(columns)})"
    return msgspec.structs.replace(
        _check("foreign_key", label, on_fail, columns), references=references, to=target
    )


def _check(kind: Kind, name: str, on_fail: str, columns: Sequence[str] = ()) -> Check:
    if kind in ("not_null", "unique", "foreign_key") and not (
        columns and all(isinstance(name, str) for name in columns)
    ):
        raise BadCheck(f"{kind}() needs column names", hint=f"pass the columns: {kind}('id')")
    if on_fail not in list(OnFail):
        raise BadCheck(f"on_fail={on_fail!r} is not valid", hint="use warn, drop or fail")
    if not name:
        raise BadCheck("a check has an empty name", hint="set name='…'")
    if name in RESERVED:
        raise BadCheck(f"the check name {name!r} is reserved", hint="use another name: name='…'")
    return Check(kind=kind, name=name, on_fail=OnFail(on_fail), columns=tuple(columns))


def validate(checks: Sequence[Check], *, of_view: bool = False) -> tuple[Check, ...]:
    """Return the checks as a tuple; raise `BadCheck` for other values and for names used twice.

    - of_view: whether they check a view. Other tables cannot have foreign keys.
    """
    by_name: dict[str, Check] = {}
    for check in checks:
        if not isinstance(check, Check):
            raise BadCheck(
                f"{check!r:.60} is not a check",
                hint="use not_null(…), unique(…), expect(…), rows(…) or foreign_key(…)",
            )
        if check.kind == "foreign_key" and not of_view:
            raise BadCheck(
                f"the check {check.name} works only on views: lots of two tables arrive at different times",
                hint="declare a view over the table, and check the view",
            )
        if check.name in by_name:
            raise BadCheck(f"two checks are called {check.name!r}", hint="rename one of them: name='…'")
        by_name[check.name] = check
    return tuple(by_name.values())


def can_drop(checks: Sequence[Check]) -> bool:
    """Return whether any of the checks can move rows to the quarantine table."""
    return any(check.on_fail is OnFail.DROP for check in checks)


def can_refuse(checks: Sequence[Check]) -> bool:
    """Return whether any of the checks can refuse to publish."""
    return any(check.on_fail is OnFail.FAIL for check in checks)


def without_drop(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return the same checks with `fail` in place of `drop`, for writes that cannot drop rows."""
    return tuple(
        msgspec.structs.replace(check, on_fail=OnFail.FAIL) if check.on_fail is OnFail.DROP else check
        for check in checks
    )


def quarantine_of(dataset: DatasetId) -> DatasetId:
    """Return the id of a dataset's quarantine table, for rows and records that cannot be published."""
    return DatasetId(f"{dataset.name}_quarantine", dataset.version)
