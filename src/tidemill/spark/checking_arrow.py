"""Checks of rows that are in this process, without Spark: what `checking` does, for small appends (LOT-33).

Expressions are Spark SQL: which rows they are true for is told by whoever has a Spark (`evaluating`).
"""

import base64
import json
from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import BadCheck
from tidemill.lots.checks import Check, OnFail
from tidemill.lots.datasets import Kind
from tidemill.spark.evaluation import Evaluate
from tidemill.spark.operations import OP, WEIGHT, Operation

BAD: pa.Schema = pa.schema([("record", pa.string()), ("error", pa.string()), ("check", pa.string())])


class CheckedTable:
    """Rows that stay, rows of the quarantine table, and how many failed each check."""

    def __init__(self, rows: pa.Table, quarantined: pa.Table, counts: dict[str, int]) -> None:
        self.rows = rows
        self.quarantined = quarantined
        self.counts = counts


def check_table(
    table: pa.Table,
    checks: Sequence[Check],
    kind: Kind = Kind.ROWS,
    evaluate: Evaluate | None = None,
) -> CheckedTable:
    """Check a table as a lot holds it; nothing is raised for rows that fail.

    - kind: of changes and operations only rows that come are checked.
    - evaluate: tells which rows expressions are true for; without it there may be none.
    """
    comes = _comes(table, kind)
    failed: dict[str, pa.Array] = {}
    expected = [one for one in checks if one.kind == "expect"]
    if expected and evaluate is None:
        raise BadCheck(f"the check {expected[0].name} is an expression, which needs Spark")
    if expected and evaluate is not None and table.num_rows:
        true = evaluate(table, [one.expression for one in expected])
        for one, holds in zip(expected, true, strict=True):
            failed[one.name] = pc.and_(comes, pc.invert(holds))
    for one in checks:
        if one.kind == "expect":
            failed.setdefault(one.name, pa.array([False] * table.num_rows, pa.bool_()))
        if one.kind == "not_null":
            missing = pc.invert(_told(table, one.columns))
            failed[one.name] = missing if one.all_operations else pc.and_(comes, missing)
    # As on Spark: what is taken out already is not compared with what stays.
    stays = comes
    for one in checks:
        if one.of_rows and one.on_fail is OnFail.DROP:
            stays = pc.and_(stays, pc.invert(failed[one.name]))
    for one in checks:
        if one.kind == "unique":
            failed[one.name] = _repeated(table, one.columns, stays, kind)
    out = pa.array([False] * table.num_rows, pa.bool_())
    for one in checks:
        if one.on_fail is OnFail.DROP:
            out = pc.or_(out, failed[one.name])
    rows = table.filter(pc.invert(out))
    counts = {
        one.name: one.amiss(rows.num_rows)
        if one.kind == "rows"
        else int(pc.sum(failed[one.name]).as_py() or 0)
        for one in checks
    }
    return CheckedTable(rows, _quarantine(table, out, checks, failed), counts)


def _comes(table: pa.Table, kind: Kind) -> pa.Array:
    if kind is Kind.CHANGES:
        return pc.greater(table.column(WEIGHT), 0).combine_chunks()
    if kind is Kind.KEYED:
        return pc.equal(table.column(OP), Operation.UPSERT.value).combine_chunks()
    return pa.array([True] * table.num_rows, pa.bool_())


def _told(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """None of these columns is NULL."""
    told = pa.array([True] * table.num_rows, pa.bool_())
    for name in columns:
        told = pc.and_(told, pc.is_valid(table.column(name)).combine_chunks())
    return told


def _repeated(table: pa.Table, columns: Sequence[str], stays: pa.Array, kind: Kind) -> pa.Array:
    of = pc.and_(stays, _told(table, columns))
    weights = table.column(WEIGHT) if kind is Kind.CHANGES else pa.array([1] * table.num_rows, pa.int64())
    keys = [f"k{number}" for number in range(len(columns))]
    keyed = pa.table([*(table.column(name) for name in columns), weights], names=[*keys, "times"])
    keyed = keyed.append_column("row", pa.array(range(table.num_rows), pa.int64())).filter(of)
    groups = keyed.group_by(keys).aggregate([("times", "sum"), ("row", "list")])
    several = groups.filter(pc.greater(groups.column("times_sum"), 1)).column("row_list")
    rows = set(pc.list_flatten(several).to_pylist())
    return pa.array([number in rows for number in range(table.num_rows)], pa.bool_())


def _quarantine(
    table: pa.Table, out: pa.Array, checks: Sequence[Check], failed: dict[str, pa.Array]
) -> pa.Table:
    dropping = [one for one in checks if one.on_fail is OnFail.DROP]
    found = []
    for number in pc.indices_nonzero(out).to_pylist():
        of = [one for one in dropping if failed[one.name][number].as_py()]
        found.append(
            {
                "record": json.dumps(
                    table.slice(number, 1).to_pylist()[0], default=_text, ensure_ascii=False
                ),
                "error": "; ".join(one.wrong for one in of),
                "check": ", ".join(one.name for one in of),
            }
        )
    return pa.Table.from_pylist(found, schema=BAD)


def _text(value: Any) -> str:
    """What JSON has no form for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | datetime | time) else str(value)
