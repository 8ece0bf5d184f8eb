"""What differs, made smaller: fewer rows, then a shorter query, for as long as it still differs."""

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
    """The fewest rows, inserted in one step, with which it still differs; None if it takes several steps."""
    contents = TableContents(ddl)
    for step in steps:
        contents.apply(step)
        rows = {name: contents.rows(name) for name in ddl}
        if differs(rows):
            break
    else:
        return None
    # Halves of a table first, then single rows.
    for size in (4, 2, 1):
        for name in ddl:
            place = len(rows[name])
            while place > 0:
                place = max(0, place - size)
                less = {**rows, name: rows[name][:place] + rows[name][place + size :]}
                if less[name] != rows[name] and differs(less):
                    rows = less
    return rows


def shrunk_steps(steps: Sequence[Step], differs: Callable[[list[Step]], bool]) -> list[Step]:
    """The fewest rows in the fewest steps with which it still differs; steps that cannot be taken do not."""
    small = list(steps)
    for place in range(len(small) - 1, -1, -1):
        less = small[:place] + small[place + 1 :]
        if less and differs(less):
            small = less
    for size in (16, 4, 1):
        for place in range(len(small)):
            for kind in ("deletes", "inserts"):
                for name in getattr(small[place], kind):
                    small = _fewer(small, place, kind, name, size, differs)
    return small


def _fewer(
    steps: list[Step], place: int, kind: str, name: str, size: int, differs: Callable[[list[Step]], bool]
) -> list[Step]:
    at = len(getattr(steps[place], kind)[name])
    while at > 0:
        at = max(0, at - size)
        rows = getattr(steps[place], kind)[name]
        fewer = {**getattr(steps[place], kind), name: [*rows[:at], *rows[at + size :]]}
        less = [*steps[:place], replace(steps[place], **{kind: fewer}), *steps[place + 1 :]]
        if differs(less):
            steps = less
    return steps


def shrunk_query(sql: str, differs: Callable[[str], bool]) -> str:
    """The shortest query that can be had by leaving out parts of this one and still differs."""
    smaller = True
    while smaller:
        smaller = False
        for less in sorted(set(shorter(sql)), key=len):
            if differs(less):
                sql, smaller = less, True
                break
    return sql


def shorter(sql: str) -> Iterator[str]:
    """Queries with one part less: a clause, a column, or all but one of the queries it is made of."""
    tree = sqlglot.parse_one(sql, dialect="spark")
    places = list(tree.find_all(exp.Select))
    for place, select in enumerate(places):
        if select is not tree:
            yield select.sql(dialect="spark")
        for clause in CLAUSES:
            if select.args.get(clause):
                yield _without(tree, place, clause, None)
        if len(select.expressions) > 1:
            for number in range(len(select.expressions)):
                yield _without(tree, place, "expressions", number)
        for number in range(len(select.args.get("joins") or [])):
            yield _without(tree, place, "joins", number)


def _without(tree: exp.Expr, place: int, clause: str, number: int | None) -> str:
    copy = tree.copy()
    select = list(copy.find_all(exp.Select))[place]
    if number is None:
        select.set(clause, None)
    else:
        kept = [one for at, one in enumerate(select.args[clause]) if at != number]
        select.set(clause, kept)
    return copy.sql(dialect="spark")
