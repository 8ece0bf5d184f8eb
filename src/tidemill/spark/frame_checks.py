"""Check the rows of a frame in the pass that writes them (LOT-33).

The write pass counts the rows that fail a NULL check or an expression check. It writes rows that a check
removes into a separate folder. Each row is computed once. So it is either in the lot or in quarantine, even
if the function that made it is not deterministic. A second step writes the removed rows as JSON into the
quarantine table, with the names of the checks that they failed, and deletes the separate folder.

A uniqueness check runs one aggregate over the files that were just written, and reads only the checked
columns. A check that removes duplicates must group the rows before they are written.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

import msgspec

from tidemill import crash
from tidemill.errors import BadCheck, CheckFailed
from tidemill.lots.checks import Check, OnFail
from tidemill.lots.datasets import Kind
from tidemill.spark.lot_reader import read_errors, read_objects
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


class LotFolders(msgspec.Struct, frozen=True, kw_only=True):
    """The folders for good rows and for rows that checks remove. Both end in `/`. No other job writes there.

    - partition_by: columns whose values become folders below `rows`.
    """

    rows: str
    bad: str
    partition_by: tuple[str, ...] = ()


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that were written, the rows that checks removed, and how many rows failed each check."""

    rows: Written
    quarantined: Written = Written()
    counts: dict[str, int] = {}


def write_checked(
    df: "DataFrame",
    storage: Storage,
    folders: LotFolders,
    checks: Sequence[Check],
    *,
    table: str,
    kind: Kind = Kind.ROWS,
) -> Checked:
    """Write a frame like `write_frame`, and check its rows.

    Raise `CheckFailed` if rows fail a check that forbids publishing.

    Args:
        df: the frame.
        storage: the object storage.
        folders: where to write; the folders are empty.
        checks: the checks.
        table: the name of the table, for error messages.
        kind: the kind of the dataset. Deletions are checked only if a check asks for it.
    """
    if not checks:
        return Checked(rows=write_frame(df, storage, folders.rows, partition_by=folders.partition_by))
    inline = {str(number): check for number, check in enumerate(filter(_is_inline, checks), 1)}
    parts, failures = _write_pass(df, storage, folders, inline, kind)
    written = parts.get(_GOOD, Written())
    counts = {}
    for check in checks:
        if check.name in failures:
            counts[check.name] = failures[check.name]
        elif check.kind == "rows":
            counts[check.name] = check.rows_out_of_bounds(written.rows)
        else:
            counts[check.name] = _repeated(df, storage, written, check, kind) if written.rows else 0
    refuse(table, checks, counts, written.rows)
    removed = {numbers: part for numbers, part in parts.items() if numbers != _GOOD}
    quarantined = _quarantine(df, storage, folders.bad, removed, inline) if removed else Written()
    return Checked(rows=written, quarantined=quarantined, counts=counts)


def _is_inline(check: Check) -> bool:
    """Return whether a check is evaluated in the write pass."""
    return check.is_per_row or (check.kind == "unique" and check.on_fail is OnFail.DROP)


def _write_pass(
    df: "DataFrame", storage: Storage, folders: LotFolders, inline: Mapping[str, Check], kind: Kind
) -> tuple[Mapping[str, Written], dict[str, int]]:
    """Write the rows, and evaluate the checks in `inline`, which maps the number of a check to the check.

    Returns the written parts, and how many rows failed each check. The key of a part lists the numbers of the
    checks that remove its rows; `_GOOD` is the key of the rows that stay.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    counted = Observation()
    frame = _marked(df, inline, kind)
    if inline:
        failures = [sf.count_if(sf.col(_FAIL + number)).alias(_FAIL + number) for number in inline]
        frame = frame.observe(counted, *failures)
    columns = [sf.col(quoted(name)) for name in df.columns]
    dropping = [number for number, check in inline.items() if check.on_fail is OnFail.DROP]
    parts: Mapping[str, Written]
    if dropping:
        flag = _unused_name(_FLAG, df.columns)
        failed = sf.concat_ws("-", *[sf.when(sf.col(_FAIL + number), sf.lit(number)) for number in dropping])
        flags = sf.when(failed == "", sf.lit(_GOOD)).otherwise(failed)
        flagged = frame.select(*columns, flags.alias(flag))
        parts = write_flagged(flagged, storage, folders.rows, partition_by=folders.partition_by, flag=flag)
    else:
        rows = write_frame(frame.select(*columns), storage, folders.rows, partition_by=folders.partition_by)
        parts = {_GOOD: rows}
    counts = counted.get if inline else {}
    return parts, {check.name: int(counts.get(_FAIL + number) or 0) for number, check in inline.items()}


def refuse(table: str, checks: Sequence[Check], counts: dict[str, int], rows: int) -> None:
    """Raise `CheckFailed` if rows failed a check that forbids publishing."""
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
    """Let Spark analyse the checks on an empty frame. Raise `BadCheck` for the first invalid one."""
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
            raise BadCheck(
                f"the check {check.name} does not fit the table: {reason}",
                hint="correct the columns or the condition of this check",
            ) from error


def _marked(df: "DataFrame", inline: Mapping[str, Check], kind: Kind) -> "DataFrame":
    """Add one column per check, named by the check's number. It says whether a row fails the check."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    inserted = _is_inserted(kind)
    flags = {}
    for number, check in inline.items():
        if check.is_per_row:
            fails = ~sf.coalesce(_holds(check), sf.expr("false"))
            flags[_FAIL + number] = fails if check.all_operations else inserted & fails
    marked = df.withColumns(flags) if flags else df
    unique = {number: check for number, check in inline.items() if check.kind == "unique"}
    if not unique:
        return marked
    # A uniqueness check ignores rows that another check removes.
    removed = [
        sf.col(_FAIL + number)
        for number, check in inline.items()
        if check.is_per_row and check.on_fail is OnFail.DROP
    ]
    stays = reduce(lambda left, right: left & ~right, removed, inserted)
    unique_flags = {}
    for number, check in unique.items():
        keys = [sf.col(quoted(name)) for name in check.columns]
        times = sf.sum(sf.when(stays, _times(kind)).otherwise(sf.lit(0))).over(Window.partitionBy(*keys))
        unique_flags[_FAIL + number] = stays & _all_present(keys) & (times > 1)
    return marked.withColumns(unique_flags)


def _holds(check: Check) -> "Column":
    from pyspark.sql import functions as sf

    if check.kind == "expect":
        return sf.expr(check.expression)
    return _all_present([sf.col(quoted(name)) for name in check.columns])


def _all_present(columns: "Sequence[Column]") -> "Column":
    """Return an expression: True if none of these columns is NULL."""
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
    """Count the written rows whose values in the checked columns are not unique."""
    from pyspark.sql import functions as sf

    rows = read_objects(df.sparkSession, storage, df.schema, written.objects)
    keys = [sf.col(quoted(name)) for name in check.columns]
    times = sf.sum(_times(kind)).alias("times")
    groups = rows.where(_is_inserted(kind) & _all_present(keys)).groupBy(*keys).agg(times)
    with read_errors(storage):
        totals = groups.where("times > 1").agg(sf.sum("times")).collect()
    return int(totals[0][0] or 0)


def _quarantine(
    df: "DataFrame",
    storage: Storage,
    prefix: str,
    parts: Mapping[str, Written],
    checks: Mapping[str, Check],
) -> Written:
    """Write the removed rows to the quarantine table, and delete the files that contained them."""
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
    quarantined = write_frame(union, storage, prefix)
    crash.point("spark.drop.before")
    storage.objects.delete_many(item.uri for written in parts.values() for item in written.objects)
    crash.point("spark.drop.after")
    return quarantined


def _unused_name(name: str, used: Sequence[str]) -> str:
    """Return a column name that is not in use."""
    while name.lower() in {other.lower() for other in used}:
        name += "~"
    return name
