"""Checks of views: derived views that contain the rows that fail (LOT-33).

A check covers all rows of a view, however long ago they arrived. So the rows that fail are the result of a
query over the view, and Tidemill keeps this result up to date like any view, at the cost of the change:

    revenue_failures     the rows that fail now, one for each check: check, error, record (the row as JSON)
    revenue_unchecked    the result of the user's query, if a check drops or fails
    revenue              the checked view. It selects the rows of `revenue_unchecked` that no check drops.
                         While rows fail a check with `fail`, its group sets the view aside: it keeps its
                         last table, and so do the views that read it.

If all checks warn, there is no `revenue_unchecked`: the user's query is the query of `revenue`.

`revenue_unchecked` is a table, and not only a part of two queries, so that a row is computed once. A query
that returns other values each time could otherwise put a row into both tables, or into neither (ADR 14).

Uniqueness and foreign keys only apply to rows that no check of single rows drops.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidemill.lots.checks import Check, OnFail
from tidemill.pipeline.declarations import ViewDecl
from tidemill.spark.queries import quoted

RECORD = "to_json(struct(*), map('ignoreNullFields', 'false'))"


def failures_of(view: str) -> str:
    """Return the name of the view with the rows of a view that fail its checks."""
    return f"{view}_failures"


def unchecked_of(view: str) -> str:
    """Return the name of the view with all rows of a view, including those that a check drops."""
    return f"{view}_unchecked"


def with_checks(decl: ViewDecl, checks: Sequence[Check]) -> list[ViewDecl]:
    """Return a view and its derived views, as declared. Without checks, return only the view."""
    if not checks:
        return [decl]
    failures = failures_of(decl.name)
    checked = replace(decl, checks=tuple(checks), failures=failures)
    original = decl
    if any(check.on_fail is not OnFail.WARN for check in checks):
        original = replace(decl, name=unchecked_of(decl.name))
        refresh = decl.refresh if decl.refresh == "incremental" else "auto"
        checked = ViewDecl(
            name=decl.name,
            sql=_kept_rows(original.name, checks),
            group=decl.group,
            refresh=refresh,
            pace=decl.pace,
            line=decl.line,
            checks=checked.checks,
            failures=failures,
        )
    failing = ViewDecl(
        name=failures,
        sql=_failing_rows(original.name, checks),
        group=decl.group,
        pace=decl.pace,
        line=decl.line,
        checked=decl.name,
    )
    return [checked, failing] if original is decl else [original, failing, checked]


def _kept_rows(table: str, checks: Sequence[Check]) -> str:
    """Return the query for the rows that no check drops."""
    dropping = [check for check in checks if check.on_fail is OnFail.DROP]
    queries = [_rows_to_compare(table, dropping)]
    for check in dropping:
        last = f"rows_{len(queries) - 1}"
        if check.kind == "unique":
            queries.append(f"SELECT * FROM {last} WHERE NOT {_is_repeated(check, last, 'rows_0')}")  # noqa: S608
        elif check.kind == "foreign_key":
            null = " OR ".join(f"{quoted(name)} IS NULL" for name in check.columns)
            queries.append(
                f"SELECT * FROM {last} WHERE {null}"  # noqa: S608
                f"\nUNION ALL SELECT * FROM {last} WHERE {_is_present(check)} AND {_is_known(check, last)}"
            )
    named = ",\n".join(f"rows_{number} AS ({query})" for number, query in enumerate(queries))
    return f"WITH {named}\nSELECT * FROM rows_{len(queries) - 1}"


def _rows_to_compare(table: str, checks: Sequence[Check]) -> str:
    """Return the query for the rows that no check of single rows drops."""
    conditions = [_holds(check) for check in checks if check.is_per_row and check.on_fail is OnFail.DROP]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT * FROM {quoted(table)}{where}"  # noqa: S608 - the user's own conditions


def _failing_rows(table: str, checks: Sequence[Check]) -> str:
    """Return the query for the rows that fail, with the name of the check."""
    failing = "\nUNION ALL ".join(_failing(check, table) for check in checks)
    return f"WITH rows_0 AS ({_rows_to_compare(table, checks)})\n{failing}"


def _failing(check: Check, table: str) -> str:
    head = f"SELECT {_text(check.name)} AS check, {_text(check.problem)} AS error"
    match check.kind:
        case "not_null" | "expect":
            return f"{head}, {RECORD} AS record FROM {quoted(table)} WHERE NOT ({_holds(check)})"
        case "unique":
            return f"{head}, {RECORD} AS record FROM rows_0 WHERE {_is_repeated(check, 'rows_0', 'rows_0')}"
        case "foreign_key":
            condition = f"{_is_present(check)} AND NOT {_is_known(check, 'rows_0')}"
            return f"{head}, {RECORD} AS record FROM rows_0 WHERE {condition}"
        case "rows":
            limits = " OR ".join(_out_of_bounds(check))
            counted = f"SELECT count(*) AS n FROM {quoted(table)}"  # noqa: S608
            return f"{head}, to_json(named_struct('rows', n)) AS record FROM ({counted}) WHERE {limits}"


def _holds(check: Check) -> str:
    """Return the condition of a check of single rows. It is never NULL."""
    if check.kind == "not_null":
        return _is_present(check)
    return f"coalesce(({check.expression}\n), false)"  # the expression may end with a comment


def _is_present(check: Check) -> str:
    return " AND ".join(f"{quoted(name)} IS NOT NULL" for name in check.columns)


def _is_repeated(check: Check, rows: str, among: str) -> str:
    """Return a condition: whether the values of a row of `rows` occur more than once among other rows."""
    names = ", ".join(quoted(name) for name in check.columns)
    repeated = f"SELECT {names} FROM {among} WHERE {_is_present(check)} GROUP BY {names} HAVING count(*) > 1"  # noqa: S608
    equal = " AND ".join(f"d.{quoted(name)} = {rows}.{quoted(name)}" for name in check.columns)
    return f"EXISTS (SELECT 1 FROM ({repeated}) AS d WHERE {equal})"  # noqa: S608


def _is_known(check: Check, rows: str) -> str:
    """Return a condition: whether the table that a foreign key references has the values of a row."""
    pairs = zip(check.to, check.columns, strict=True)
    equal = " AND ".join(f"d.{quoted(to)} = {rows}.{quoted(name)}" for to, name in pairs)
    return f"EXISTS (SELECT 1 FROM {quoted(check.references)} AS d WHERE {equal})"  # noqa: S608


def _out_of_bounds(check: Check) -> Iterator[str]:
    if check.at_least is not None:
        yield f"n < {check.at_least}"
    if check.at_most is not None:
        yield f"n > {check.at_most}"


def _text(value: str) -> str:
    """Return a text as a literal of Spark SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
