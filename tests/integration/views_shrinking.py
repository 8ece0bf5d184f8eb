"""Shrinking: reduce the rows and the query of a difference as long as the difference remains."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlglot
from sqlglot import exp

from tidemill.testing import Step
from tidemill.views.certify.table_contents import TableContents

Rows = dict[str, list[Any]]
CLAUSES = ("where", "having", "qualify", "limit", "order", "distinct", "group")


def shrunk_rows(
    ddl: Mapping[str, str], steps: Sequence[Step], differs: Callable[[Rows], bool]
) -> Rows | None:
    """Return few rows, inserted in one step, with which the difference remains; None if there are none."""
    contents = TableContents(ddl)
    for step in steps:
        contents.apply(step)
        rows = {name: contents.rows(name) for name in ddl}
        if differs(rows):
            break
    else:
        return None
    # First groups of rows, then single rows.
    for size in (4, 2, 1):
        for name in ddl:
            index = len(rows[name])
            while index > 0:
                index = max(0, index - size)
                fewer = {**rows, name: rows[name][:index] + rows[name][index + size :]}
                if fewer[name] != rows[name] and differs(fewer):
                    rows = fewer
    return rows


def shrunk_steps(steps: Sequence[Step], differs: Callable[[list[Step]], bool]) -> list[Step]:
    """Return few steps with few rows with which the difference remains."""
    small = list(steps)
    for index in range(len(small) - 1, -1, -1):
        fewer = small[:index] + small[index + 1 :]
        if fewer and differs(fewer):
            small = fewer
    for size in (16, 4, 1):
        for index in range(len(small)):
            for kind in ("deletes", "inserts"):
                for name in getattr(small[index], kind):
                    small = _fewer(small, index, kind, name, size, differs)
    return small


def _fewer(
    steps: list[Step], number: int, kind: str, name: str, size: int, differs: Callable[[list[Step]], bool]
) -> list[Step]:
    index = len(getattr(steps[number], kind)[name])
    while index > 0:
        index = max(0, index - size)
        rows = getattr(steps[number], kind)[name]
        fewer = {**getattr(steps[number], kind), name: [*rows[:index], *rows[index + size :]]}
        fewer_steps = [*steps[:number], replace(steps[number], **{kind: fewer}), *steps[number + 1 :]]
        if differs(fewer_steps):
            steps = fewer_steps
    return steps


def shrunk_query(sql: str, differs: Callable[[str], bool]) -> str:
    """Remove parts of a query as long as the difference remains."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in sorted(set(shorter(sql)), key=len):
            if differs(candidate):
                sql, smaller = candidate, True
                break
    return sql


def shorter(sql: str) -> Iterator[str]:
    """Yield shorter queries: without one clause, column or join, or only one of the nested queries."""
    tree = sqlglot.parse_one(sql, dialect="spark")
    selects = list(tree.find_all(exp.Select))
    for number, select in enumerate(selects):
        if select is not tree:
            yield select.sql(dialect="spark")
        for clause in CLAUSES:
            if select.args.get(clause):
                yield _without(tree, number, clause, None)
        if len(select.expressions) > 1:
            for index in range(len(select.expressions)):
                yield _without(tree, number, "expressions", index)
        for index in range(len(select.args.get("joins") or [])):
            yield _without(tree, number, "joins", index)


def _without(tree: exp.Expr, number: int, clause: str, index: int | None) -> str:
    copy = tree.copy()
    select = list(copy.find_all(exp.Select))[number]
    if index is None:
        select.set(clause, None)
    else:
        remaining = [part for other, part in enumerate(select.args[clause]) if other != index]
        select.set(clause, remaining)
    return copy.sql(dialect="spark")
