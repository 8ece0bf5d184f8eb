"""Checks of rows, in the pass that writes them (LOT-33).

Counts, NULLs and expressions are counted while the rows are written. Rows that are taken out go into a folder
of their own in the same pass: each row is computed once, so it is in the lot or in quarantine, and never in
both or neither, whatever the function that made it. What is in that folder is then kept as JSON in the
quarantine table, with the names of the checks it failed, and the folder is removed.

Whether values are unique is one aggregate over the files that were just written, of these columns alone; only
where rows that are not unique are to be taken out must they meet before they are written.
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
from tidemill.spark.operations import OP, WEIGHT, Operation
from tidemill.spark.queries import quoted
from tidemill.spark.reading import naming, read_objects
from tidemill.spark.storage import Storage
from tidemill.spark.writing import Written, write_flagged, write_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FAIL: Final = "_tidemill_fail_"
_FLAG: Final = "checked.failed"
_GOOD: Final = "0"
BAD_SCHEMA: Final = "record STRING, error STRING, check STRING"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, what was taken out, and how many rows failed each check."""

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
    """Run a frame and keep its rows, as `write_frame` does; `CheckFailed` names the checks that forbid it.

    Args:
        df: what to compute.
        storage: where, for Spark.
        objects: the same place, for us.
        prefix: the folder for rows, nobody else's.
        bad_prefix: the folder for what is taken out, nobody else's.
        checks: what is expected.
        table: its name, for errors.
        kind: of the table: of changes and operations only rows that come are checked.
        partition_by: as for `write_frame`.
    """
    if not checks:
        return Checked(rows=write_frame(df, storage, objects, prefix, partition_by=partition_by))
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    counted = Observation()
    inline = [one for one in checks if one.of_rows or (one.kind == "unique" and one.on_fail is OnFail.DROP)]
    names = {one.name: f"{_FAIL}{number}" for number, one in enumerate(inline, 1)}
    marked = _marked(df, inline, names, kind)
    metrics = [sf.count_if(sf.col(column)).alias(column) for column in names.values()]
    observed = marked.observe(counted, *metrics) if metrics else marked
    dropping = [one for one in inline if one.on_fail is OnFail.DROP]
    if dropping:
        flag = _free(_FLAG, df.columns)
        numbers = {one.name: names[one.name].removeprefix(_FAIL) for one in dropping}
        failed = sf.concat_ws(
            "-", *[sf.when(sf.col(names[one.name]), sf.lit(numbers[one.name])) for one in dropping]
        )
        spelled = sf.when(failed == "", sf.lit(_GOOD)).otherwise(failed)
        out = observed.select(*[sf.col(quoted(name)) for name in df.columns], spelled.alias(flag))
        apart = write_flagged(out, storage, objects, prefix, partition_by=partition_by, flag=flag)
        written = apart.get(_GOOD, Written())
    else:
        out = observed.select(*[sf.col(quoted(name)) for name in df.columns])
        apart = {}
        written = write_frame(out, storage, objects, prefix, partition_by=partition_by)
    seen = counted.get if metrics else {}
    counts = {name: int(seen.get(column) or 0) for name, column in names.items()}
    for one in checks:
        if one.kind == "unique" and one.name not in counts:
            counts[one.name] = _repeated(df, storage, written, one, kind) if written.rows else 0
        elif one.kind == "rows":
            counts[one.name] = one.amiss(written.rows)
    refuse(table, checks, counts, written.rows)
    bad = {of: one for of, one in apart.items() if of != _GOOD}
    quarantined = Written()
    if bad:
        by_number = {names[one.name].removeprefix(_FAIL): one for one in dropping}
        quarantined = _quarantine(df, storage, objects, bad_prefix, bad, by_number)
    return Checked(
        rows=written, quarantined=quarantined, counts={one.name: counts[one.name] for one in checks}
    )


def refuse(table: str, checks: Sequence[Check], counts: dict[str, int], rows: int) -> None:
    """`CheckFailed` if one that forbids it has failed."""
    failed = [one for one in checks if one.on_fail is OnFail.FAIL and counts[one.name]]
    if not failed:
        return
    told = [
        f"{one.name} ({one.wrong}; there are {rows:,})"
        if one.kind == "rows"
        else f"{one.name} ({counts[one.name]:,} of {rows:,} rows: {one.wrong})"
        for one in failed
    ]
    raise CheckFailed(f"{table} does not pass {', '.join(told)}; nothing was published")


def verify(empty: "DataFrame", checks: Sequence[Check]) -> None:
    """Are these checks of such rows? By Spark's analysis of an empty frame; `BadCheck` says which is not."""
    for one in checks:
        missing = [name for name in one.columns if name not in empty.columns]
        if missing:
            raise BadCheck(
                f"the check {one.name} is of the column {missing[0]}, which is not there",
                hint=f"there are {', '.join(empty.columns)}",
            )
        try:
            if one.kind == "expect":
                empty.where(one.expression).schema  # noqa: B018 - asks for the analysis
            elif one.kind == "unique":
                empty.groupBy(*[quoted(name) for name in one.columns]).count().schema  # noqa: B018
        except Exception as error:
            said = " ".join(str(error).split("\n\nJVM stacktrace")[0].split(";\n'")[0].split())[:400]
            raise BadCheck(f"the check {one.name} cannot be made: {said}") from error


def _marked(df: "DataFrame", checks: Sequence[Check], names: dict[str, str], kind: Kind) -> "DataFrame":
    """The frame, with a column for each check that says whether a row fails it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    comes = _comes(kind)
    plain = {}
    for one in checks:
        if one.of_rows:
            fails = ~sf.coalesce(_holds(one), sf.expr("false"))
            plain[names[one.name]] = fails if one.all_operations else comes & fails
    marked = df.withColumns(plain) if plain else df
    repeated = [one for one in checks if one.kind == "unique"]
    if not repeated:
        return marked
    # Rows that are taken out anyway are not compared with those that stay.
    out = [sf.col(names[one.name]) for one in checks if one.of_rows and one.on_fail is OnFail.DROP]
    stays = reduce(lambda left, right: left & ~right, out, comes)
    more = {}
    for one in repeated:
        keys = [sf.col(quoted(name)) for name in one.columns]
        times = sf.sum(sf.when(stays, _times(kind)).otherwise(sf.lit(0))).over(Window.partitionBy(*keys))
        more[names[one.name]] = stays & _told(keys) & (times > 1)
    return marked.withColumns(more)


def _holds(check: Check) -> "Column":
    from pyspark.sql import functions as sf

    if check.kind == "expect":
        return sf.expr(check.expression)
    return _told([sf.col(quoted(name)) for name in check.columns])


def _told(columns: "Sequence[Column]") -> "Column":
    """None of these is NULL."""
    return reduce(lambda left, right: left & right, [one.isNotNull() for one in columns])


def _comes(kind: Kind) -> "Column":
    from pyspark.sql import functions as sf

    if kind is Kind.CHANGES:
        return sf.col(WEIGHT) > 0
    if kind is Kind.KEYED:
        return sf.col(OP) == Operation.UPSERT.value
    return sf.expr("true")


def _times(kind: Kind) -> "Column":
    from pyspark.sql import functions as sf

    return sf.col(WEIGHT) if kind is Kind.CHANGES else sf.lit(1).cast("bigint")


def _repeated(df: "DataFrame", storage: Storage, written: Written, check: Check, kind: Kind) -> int:
    """How many of the rows that were written have values that others have too."""
    from pyspark.sql import functions as sf

    rows = read_objects(df.sparkSession, storage, df.schema, written.objects)
    keys = [sf.col(quoted(name)) for name in check.columns]
    times = sf.sum(_times(kind)).alias("times")
    groups = rows.where(_comes(kind) & _told(keys)).groupBy(*keys).agg(times)
    with naming(storage):
        found = groups.where("times > 1").agg(sf.sum("times")).collect()
    return int(found[0][0] or 0)


def _quarantine(
    df: "DataFrame",
    storage: Storage,
    objects: Objects,
    prefix: str,
    apart: dict[str, Written],
    checks: dict[str, Check],
) -> Written:
    """What was taken out, as rows of the quarantine table; the files it was in are removed."""
    from pyspark.sql import functions as sf

    frames = []
    for failed, written in sorted(apart.items()):
        of = [checks[number] for number in failed.split("-")]
        record = sf.to_json(
            sf.struct(*[sf.col(quoted(name)) for name in df.columns]), {"ignoreNullFields": "false"}
        )
        frames.append(
            read_objects(df.sparkSession, storage, df.schema, written.objects).select(
                record.alias("record"),
                sf.lit("; ".join(one.wrong for one in of)).alias("error"),
                sf.lit(", ".join(one.name for one in of)).alias("check"),
            )
        )
    kept = write_frame(reduce(lambda one, other: one.unionByName(other), frames), storage, objects, prefix)
    crash.point("spark.drop.before")
    objects.delete_many(item.uri for written in apart.values() for item in written.objects)
    crash.point("spark.drop.after")
    return kept


def _free(name: str, taken: Sequence[str]) -> str:
    while name.lower() in {other.lower() for other in taken}:
        name += "~"
    return name
