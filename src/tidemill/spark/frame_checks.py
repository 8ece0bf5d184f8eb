"""Checks of frames, in the pass that writes their rows (LOT-33).

The write pass counts the rows that fail a check of NULLs or of an expression. It writes rows that a check
removes into another folder. Each row is computed once, so it is either in the lot or in quarantine, even if
the function that made it is not deterministic. The removed rows are then written as JSON into the quarantine
table, with the names of the checks that they failed, and their folder is deleted.

Uniqueness is one aggregate over the files that were just written, of the checked columns only. A check that
removes rows that are not unique must group them before they are written.
"""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

import msgspec

from tidemill import crash
from tidemill.errors import BadCheck, CheckFailed
from tidemill.lots.checks import Check, OnFail
from tidemill.lots.datasets import Kind
from tidemill.objects import Objects
from tidemill.spark.lot_reader import naming, read_objects
from tidemill.spark.lot_writer import Written, write_flagged, write_frame
from tidemill.spark.operations import OP, WEIGHT, RowOperation
from tidemill.spark.queries import quoted
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FAIL: Final = "_tidemill_fail_"
_FLAG: Final = "checked.failed"
_GOOD: Final = "0"
BAD_SCHEMA: Final = "record STRING, error STRING, check STRING"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, what checks removed, and how many rows failed each check."""

    rows: Written
    quarantined: Written = Written()
    counts: dict[str, int] = {}


def write_checked(
    df: "DataFrame",
    storage: Storage,
    objects: Objects,
    prefix: str,
    bad_prefix: str,
    checks: Sequence[Check],
    *,
    table: str,
    kind: Kind = Kind.ROWS,
    partition_by: Sequence[str] = (),
) -> Checked:
    """Write a frame like `write_frame`, and check its rows; `CheckFailed` names the checks that forbid it.

    Args:
        df: the frame.
        storage: where to write, for Spark.
        objects: the same storage, for us.
        prefix: an empty folder for rows.
        bad_prefix: an empty folder for rows that checks remove.
        checks: the checks.
        table: the name of the table, for errors.
        kind: the kind of the table. Only inserted rows of changes and operations are checked.
        partition_by: as for `write_frame`.
    """
    if not checks:
        return Checked(rows=write_frame(df, storage, objects, prefix, partition_by=partition_by))
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    counted = Observation()
    inline = [
        check
        for check in checks
        if check.is_per_row or (check.kind == "unique" and check.on_fail is OnFail.DROP)
    ]
    names = {check.name: f"{_FAIL}{number}" for number, check in enumerate(inline, 1)}
    marked = _marked(df, inline, names, kind)
    metrics = [sf.count_if(sf.col(column)).alias(column) for column in names.values()]
    observed = marked.observe(counted, *metrics) if metrics else marked
    dropping = [check for check in inline if check.on_fail is OnFail.DROP]
    if dropping:
        flag = _free(_FLAG, df.columns)
        numbers = {check.name: names[check.name].removeprefix(_FAIL) for check in dropping}
        failed = sf.concat_ws(
            "-", *[sf.when(sf.col(names[check.name]), sf.lit(numbers[check.name])) for check in dropping]
        )
        flags = sf.when(failed == "", sf.lit(_GOOD)).otherwise(failed)
        out = observed.select(*[sf.col(quoted(name)) for name in df.columns], flags.alias(flag))
        parts = write_flagged(out, storage, objects, prefix, partition_by=partition_by, flag=flag)
        written = parts.get(_GOOD, Written())
    else:
        out = observed.select(*[sf.col(quoted(name)) for name in df.columns])
        parts = {}
        written = write_frame(out, storage, objects, prefix, partition_by=partition_by)
    observed_counts = counted.get if metrics else {}
    counts = {name: int(observed_counts.get(column) or 0) for name, column in names.items()}
    for check in checks:
        if check.kind == "unique" and check.name not in counts:
            counts[check.name] = _repeated(df, storage, written, check, kind) if written.rows else 0
        elif check.kind == "rows":
            counts[check.name] = check.rows_out_of_bounds(written.rows)
    refuse(table, checks, counts, written.rows)
    bad = {failed_checks: part for failed_checks, part in parts.items() if failed_checks != _GOOD}
    quarantined = Written()
    if bad:
        by_number = {names[check.name].removeprefix(_FAIL): check for check in dropping}
        quarantined = _quarantine(df, storage, objects, bad_prefix, bad, by_number)
    return Checked(
        rows=written, quarantined=quarantined, counts={check.name: counts[check.name] for check in checks}
    )


def refuse(table: str, checks: Sequence[Check], counts: dict[str, int], rows: int) -> None:
    """Raise `CheckFailed` if a check failed that forbids publishing."""
    failed = [check for check in checks if check.on_fail is OnFail.FAIL and counts[check.name]]
    if not failed:
        return
    texts = [
        f"{check.name} ({check.problem}; found {rows:,})"
        if check.kind == "rows"
        else f"{check.name} ({counts[check.name]:,} of {rows:,} rows: {check.problem})"
        for check in failed
    ]
    raise CheckFailed(f"{table} does not pass {', '.join(texts)}; nothing was published")


def verify(empty: "DataFrame", checks: Sequence[Check]) -> None:
    """Validate checks by Spark's analysis of an empty frame; `BadCheck` names one that does not fit."""
    for check in checks:
        missing = [name for name in check.columns if name not in empty.columns]
        if missing:
            raise BadCheck(
                f"the check {check.name} uses the column {missing[0]}, which does not exist",
                hint=f"use one of {', '.join(empty.columns)}",
            )
        try:
            if check.kind == "expect":
                empty.where(check.expression).schema  # noqa: B018 - triggers the analysis
            elif check.kind == "unique":
                empty.groupBy(*[quoted(name) for name in check.columns]).count().schema  # noqa: B018
        except Exception as error:
            reason = " ".join(str(error).split("\n\nJVM stacktrace")[0].split(";\n'")[0].split())[:400]
            raise BadCheck(f"the check {check.name} does not fit the table: {reason}") from error


def _marked(df: "DataFrame", checks: Sequence[Check], names: dict[str, str], kind: Kind) -> "DataFrame":
    """Add a column for each check that says whether a row fails it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    inserted = _is_inserted(kind)
    flags = {}
    for check in checks:
        if check.is_per_row:
            fails = ~sf.coalesce(_holds(check), sf.expr("false"))
            flags[names[check.name]] = fails if check.all_operations else inserted & fails
    marked = df.withColumns(flags) if flags else df
    repeated = [check for check in checks if check.kind == "unique"]
    if not repeated:
        return marked
    # Rows that another check removes are not compared with those that stay.
    removed = [
        sf.col(names[check.name]) for check in checks if check.is_per_row and check.on_fail is OnFail.DROP
    ]
    stays = reduce(lambda left, right: left & ~right, removed, inserted)
    unique_flags = {}
    for check in repeated:
        keys = [sf.col(quoted(name)) for name in check.columns]
        times = sf.sum(sf.when(stays, _times(kind)).otherwise(sf.lit(0))).over(Window.partitionBy(*keys))
        unique_flags[names[check.name]] = stays & _all_present(keys) & (times > 1)
    return marked.withColumns(unique_flags)


def _holds(check: Check) -> "Column":
    from pyspark.sql import functions as sf

    if check.kind == "expect":
        return sf.expr(check.expression)
    return _all_present([sf.col(quoted(name)) for name in check.columns])


def _all_present(columns: "Sequence[Column]") -> "Column":
    """Return whether none of these is NULL."""
    return reduce(lambda left, right: left & right, [column.isNotNull() for column in columns])


def _is_inserted(kind: Kind) -> "Column":
    from pyspark.sql import functions as sf

    if kind is Kind.CHANGES:
        return sf.col(WEIGHT) > 0
    if kind is Kind.KEYED:
        return sf.col(OP) == RowOperation.UPSERT.value
    return sf.expr("true")


def _times(kind: Kind) -> "Column":
    from pyspark.sql import functions as sf

    return sf.col(WEIGHT) if kind is Kind.CHANGES else sf.lit(1).cast("bigint")


def _repeated(df: "DataFrame", storage: Storage, written: Written, check: Check, kind: Kind) -> int:
    """Count the written rows whose values are not unique."""
    from pyspark.sql import functions as sf

    rows = read_objects(df.sparkSession, storage, df.schema, written.objects)
    keys = [sf.col(quoted(name)) for name in check.columns]
    times = sf.sum(_times(kind)).alias("times")
    groups = rows.where(_is_inserted(kind) & _all_present(keys)).groupBy(*keys).agg(times)
    with naming(storage):
        totals = groups.where("times > 1").agg(sf.sum("times")).collect()
    return int(totals[0][0] or 0)


def _quarantine(
    df: "DataFrame",
    storage: Storage,
    objects: Objects,
    prefix: str,
    parts: dict[str, Written],
    checks: dict[str, Check],
) -> Written:
    """Write removed rows as rows of the quarantine table, and delete the files they were in."""
    from pyspark.sql import functions as sf

    frames = []
    for numbers, written in sorted(parts.items()):
        failed = [checks[number] for number in numbers.split("-")]
        record = sf.to_json(
            sf.struct(*[sf.col(quoted(name)) for name in df.columns]), {"ignoreNullFields": "false"}
        )
        frames.append(
            read_objects(df.sparkSession, storage, df.schema, written.objects).select(
                record.alias("record"),
                sf.lit("; ".join(check.problem for check in failed)).alias("error"),
                sf.lit(", ".join(check.name for check in failed)).alias("check"),
            )
        )
    union = reduce(lambda left, right: left.unionByName(right), frames)
    kept = write_frame(union, storage, objects, prefix)
    crash.point("spark.drop.before")
    objects.delete_many(item.uri for written in parts.values() for item in written.objects)
    crash.point("spark.drop.after")
    return kept


def _free(name: str, taken: Sequence[str]) -> str:
    """Return a column name that is not taken."""
    while name.lower() in {other.lower() for other in taken}:
        name += "~"
    return name
