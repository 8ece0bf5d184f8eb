"""Run the same checks as `frame_checks`, but on Arrow tables and without Spark, for small appends (LOT-33).

Only the expressions of checks need Spark SQL. A process with a Spark session evaluates them (`evaluator`).
"""

import base64
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import BadCheck
from tidemill.lots.checks import Check, OnFail
from tidemill.lots.datasets import Kind
from tidemill.spark.operations import OP, WEIGHT, RowOperation
from tidemill.spark.schema import of_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Evaluate = Callable[[pa.Table, Sequence[str]], list[pa.Array]]
"""Evaluates expressions. For each expression it returns an array: whether the expression is true in each row.
NULL counts as not true."""

_ROW: Final = "_tidemill_row"

BAD: pa.Schema = pa.schema([("record", pa.string()), ("error", pa.string()), ("check", pa.string())])


class CheckedTable:
    """The rows that stay, the rows of the quarantine table, and how many rows failed each check."""

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
    """Check the rows of a table that is ready to be stored. Rows that fail a check raise no error.

    - kind: the kind of the dataset. Deletions are checked only if a check asks for it.
    - evaluate: evaluates expressions; without it, no check may have an expression.
    """
    inserted = _inserted(table, kind)
    failed: dict[str, pa.Array] = {}
    expected = [check for check in checks if check.kind == "expect"]
    if expected and evaluate is None:
        raise BadCheck(
            f"the check {expected[0].name} is an expression, which needs Spark",
            hint="append a Spark DataFrame, or use not_null, unique or rows",
        )
    if expected and evaluate is not None and table.num_rows:
        true = evaluate(table, [check.expression for check in expected])
        for check, holds in zip(expected, true, strict=True):
            failed[check.name] = pc.and_(inserted, pc.invert(holds))
    for check in checks:
        if check.kind == "expect":
            failed.setdefault(check.name, pa.array([False] * table.num_rows, pa.bool_()))
        if check.kind == "not_null":
            missing = pc.invert(_all_present(table, check.columns))
            failed[check.name] = missing if check.all_operations else pc.and_(inserted, missing)
    # As on Spark: a uniqueness check ignores rows that another check removes.
    stays = inserted
    for check in checks:
        if check.is_per_row and check.on_fail is OnFail.DROP:
            stays = pc.and_(stays, pc.invert(failed[check.name]))
    for check in checks:
        if check.kind == "unique":
            failed[check.name] = _repeated(table, check.columns, stays, kind)
    removed = pa.array([False] * table.num_rows, pa.bool_())
    for check in checks:
        if check.on_fail is OnFail.DROP:
            removed = pc.or_(removed, failed[check.name])
    rows = table.filter(pc.invert(removed))
    counts = {
        check.name: check.rows_out_of_bounds(rows.num_rows)
        if check.kind == "rows"
        else int(pc.sum(failed[check.name]).as_py() or 0)
        for check in checks
    }
    return CheckedTable(rows, _quarantine(table, removed, checks, failed), counts)


def _inserted(table: pa.Table, kind: Kind) -> pa.Array:
    if kind is Kind.CHANGES:
        return pc.greater(table.column(WEIGHT), 0).combine_chunks()
    if kind is Kind.KEYED:
        return pc.equal(table.column(OP), RowOperation.UPSERT.value).combine_chunks()
    return pa.array([True] * table.num_rows, pa.bool_())


def _all_present(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Return, for each row, True if none of these columns is NULL."""
    present = pa.array([True] * table.num_rows, pa.bool_())
    for name in columns:
        present = pc.and_(present, pc.is_valid(table.column(name)).combine_chunks())
    return present


def _repeated(table: pa.Table, columns: Sequence[str], stays: pa.Array, kind: Kind) -> pa.Array:
    compared = pc.and_(stays, _all_present(table, columns))
    weights = table.column(WEIGHT) if kind is Kind.CHANGES else pa.array([1] * table.num_rows, pa.int64())
    keys = [f"k{number}" for number in range(len(columns))]
    keyed = pa.table([*(table.column(name) for name in columns), weights], names=[*keys, "times"])
    keyed = keyed.append_column("row", pa.array(range(table.num_rows), pa.int64())).filter(compared)
    groups = keyed.group_by(keys).aggregate([("times", "sum"), ("row", "list")])
    several = groups.filter(pc.greater(groups.column("times_sum"), 1)).column("row_list")
    rows = set(pc.list_flatten(several).to_pylist())
    return pa.array([number in rows for number in range(table.num_rows)], pa.bool_())


def _quarantine(
    table: pa.Table, removed: pa.Array, checks: Sequence[Check], failed: dict[str, pa.Array]
) -> pa.Table:
    dropping = [check for check in checks if check.on_fail is OnFail.DROP]
    rows = []
    for number in pc.indices_nonzero(removed).to_pylist():
        failing = [check for check in dropping if failed[check.name][number].as_py()]
        rows.append(
            {
                "record": json.dumps(_row(table, number), default=_text, ensure_ascii=False),
                "error": "; ".join(check.problem for check in failing),
                "check": ", ".join(check.name for check in failing),
            }
        )
    return pa.Table.from_pylist(rows, schema=BAD)


def _row(table: pa.Table, number: int) -> dict[str, Any]:
    """Return one row. A date or timestamp outside Python's range is returned as a number."""
    row: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            row[name] = column[number].as_py()
        except (OverflowError, ValueError):
            row[name] = getattr(column[number], "value", None)
    return row


def _text(value: Any) -> str:
    """Convert a value that JSON does not support to text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | datetime | time) else str(value)


def evaluator(spark: "SparkSession") -> Evaluate:
    """Return a function that evaluates expressions on this session, with one Spark job per call."""

    def evaluate(table: pa.Table, expressions: Sequence[str]) -> list[pa.Array]:
        from pyspark.sql import functions as sf

        numbered = table.append_column(_ROW, pa.array(range(table.num_rows), pa.int64()))
        true = [
            sf.coalesce(sf.expr(expression), sf.lit(False)).alias(f"c{number}")  # noqa: FBT003 - a literal
            for number, expression in enumerate(expressions)
        ]
        columns = to_spark(of_arrow(numbered.schema))  # otherwise Spark adds a time zone to every timestamp
        evaluated = spark.createDataFrame(numbered, columns).select(_ROW, *true).toArrow().sort_by(_ROW)
        return [evaluated.column(f"c{number}").combine_chunks() for number in range(len(expressions))]

    return evaluate
