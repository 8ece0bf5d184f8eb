"""Files that others wrote, as rows of a dataset; what does not fit goes to quarantine, and nothing is lost.

Rows that fit are written in one pass, and in that pass those that do not are counted. Only when there are any
a second pass looks at the files they are in, finds their lines and says what is wrong with each. Files that
cannot be read go to quarantine as a whole, or, if they are packed and cut, with what is behind the cut.

**Strict.** Spark takes `{"a": 1}{"a": 2}` for one record and drops the second; here such a line is wrong, as
is an object followed by anything. A number where a text is declared is its text; everything else that is not
of the declared type is wrong. Columns that a record lacks are NULL.

**Drift.** Columns that are not declared are left out, and the records that have some are counted (`freeze`);
or they are added to the declared ones (`evolve`); or they are kept as JSON in a column of their own, with the
values that are not of their type (`rescue`). See `drifting`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from tidemill.errors import BadSource, SourceFileChanged, SourceMiscounted
from tidemill.lots.checks import Check
from tidemill.lots.datasets import Drift, Kind
from tidemill.schemas.columns import Schema
from tidemill.spark import culprits, headers, operations, ordinals, salvage
from tidemill.spark import schema as schemas
from tidemill.spark.checking import Checked, write_checked
from tidemill.spark.culprits import ForeignFile, plain
from tidemill.spark.drift import RESCUED, added
from tidemill.spark.drifting import (
    discovered,
    footers_unknown,
)
from tidemill.spark.faults import named, what_is_wrong
from tidemill.spark.formats import Format, Reading
from tidemill.spark.records import BLOCK, FILE, LEFT, PARSED, PLACE, TEXT, UNKNOWN, WRONG, Records
from tidemill.spark.salvage import Salvage
from tidemill.spark.storage import Storage
from tidemill.spark.writing import Written, write_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Session: TypeAlias = SparkSession  # for rooms that do not name pyspark

BAD_SCHEMA: Final = "file STRING, line BIGINT, record STRING, error STRING"
_ID: Final = "_tidemill_id"

Write = Callable[["DataFrame", str], Written]
"""Keeps the rows of a frame; the text names a folder of this try alone (empty for the first)."""


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of some files; how many rows failed each check, and the columns, if there are more now."""

    rows: Written
    quarantined: Written = Written()
    checks: dict[str, int] = {}
    schema: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The folders that rows and wrong records are written into, nobody else's; each ends in `/`."""

    rows: str
    bad: str
    partition_by: tuple[str, ...] = ()


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of a dataset are: the declared columns as a text, its kind and key, what is expected."""

    schema: str
    kind: Kind = Kind.ROWS
    key: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    table: str = ""
    drift: Drift = Drift.FREEZE


def ingest(
    spark: "SparkSession",
    storage: Storage,
    place: Place,
    dataset: Columns,
    reading: Reading,
    files: Sequence[ForeignFile],
    *,
    options: Mapping[str, str],
    open_file: Callable[[str], BinaryIO],
) -> Ingested:
    """Read files into objects of a lot; see `Ingest`.

    Args:
        spark: the session.
        storage: where lots are.
        place: where in it.
        dataset: what the rows are.
        reading: what the files are.
        files: the files.
        options: what Spark needs to reach them.
        open_file: the bytes of a file by its path.
    """
    declared = schemas.analysed(spark, dataset.schema)
    if dataset.drift is Drift.RESCUE:
        declared = Schema(tuple(one for one in declared.columns if one.name != RESCUED))
    columns = schemas.to_spark(declared)
    found: list[schemas.Column] = []
    # Of lines, and of CSV, what is rescued is seen record by record.
    rescues = dataset.drift is Drift.RESCUE and reading.format is not Format.CSV and not reading.by_lines
    if dataset.drift is Drift.EVOLVE or rescues:
        found = discovered(spark, columns, reading, files, options=options, open_file=open_file)
    grown = added(declared, found) if dataset.drift is Drift.EVOLVE else declared
    columns = schemas.to_spark(grown)
    if reading.format is Format.TEXT and [one.dataType.simpleString() for one in columns] != ["string"]:
        raise BadSource(
            f"lines of text for the columns {', '.join(columns.names)}",
            hint="a dataset for text has one column, of type STRING",
        )

    checked = Checked(rows=Written())

    def write_rows(frame: "DataFrame", folder: str) -> Written:
        nonlocal checked
        checked = write_checked(
            frame,
            storage,
            storage.objects,
            place.rows + folder,
            f"{place.bad}{folder}checks/",
            dataset.checks,
            table=dataset.table,
            kind=dataset.kind,
            partition_by=place.partition_by,
        )
        return checked.rows

    def write_bad(frame: "DataFrame", folder: str) -> Written:
        return write_frame(frame, storage, storage.objects, place.bad + folder)

    reader = Ingest(
        spark,
        columns,
        reading,
        options=options,
        open_file=open_file,
        kind=dataset.kind,
        key=dataset.key,
        drift=dataset.drift,
        beside=found if rescues else (),
    )
    done = reader.run(files, write_rows, write_bad)
    out = checked.quarantined
    return Ingested(
        rows=done.rows,
        quarantined=Written(done.quarantined.objects + out.objects, done.quarantined.rows + out.rows),
        checks={**done.checks, **checked.counts},
        schema=str(grown) if grown != declared else "",
    )


class Ingest:
    """Reads the files of one window.

    Args:
        spark: the session.
        schema: the columns of the dataset.
        reading: what the files are.
        options: what Spark needs to reach them.
        open_file: the bytes of a file by its path, for headers and for what is left of a cut one.
        kind: of the dataset; what comes from a file is appended, or an upsert where there is a key.
        key: its key columns; a record without one of them is wrong (LOT-40).
        drift: what becomes of columns that are not declared.
        beside: such columns, where they are read to be rescued.
    """

    def __init__(
        self,
        spark: "SparkSession",
        schema: "StructType",
        reading: Reading,
        *,
        options: Mapping[str, str],
        open_file: Callable[[str], BinaryIO],
        kind: Kind = Kind.ROWS,
        key: Sequence[str] = (),
        drift: Drift = Drift.FREEZE,
        beside: Sequence[schemas.Column] = (),
    ) -> None:
        self._spark = spark
        self._schema = schema
        self._reading = reading
        self._open = open_file
        self._kind = kind
        self._key = tuple(key)
        self._rescues = drift is Drift.RESCUE
        self._from = Records(
            spark, schema, reading, options=options, kind=kind, rescues=self._rescues, beside=beside
        )

    def run(self, files: Sequence[ForeignFile], write_rows: Write, write_bad: Write) -> Ingested:
        """Write what fits with one function and what does not with the other."""
        from pyspark.sql import Observation

        refused: dict[str, str] = {}
        cut: dict[str, Salvage] = {}
        groups = self._inspected(files, refused)
        tries = 0
        while True:
            sound = [file for group in groups for file in group.files]
            counted = Observation()
            try:
                frame = self._fitting(groups, cut, counted)
                written = Written() if frame is None else write_rows(frame, f"try-{tries}/" if tries else "")
                break
            except Exception as error:
                file = culprits.culprit(error, sound)
                if file is None or file.path in cut:
                    raise
                groups = [headers.without(group, file) for group in groups]
                self._blame(file, error, refused, cut, groups)
                tries += 1
        seen = {} if frame is None else counted.get
        faults = _Faults(refused, cut, int(seen.get("bad", 0)), int(seen.get("keyless", 0)))
        drifted = {
            "unknown_columns": int(seen.get("unknown", 0)) + self._in_footers(sound),
            "rescued": int(seen.get("rescued", 0)),
        }
        checks = {name: count for name, count in drifted.items() if count}
        if not faults.total:
            return Ingested(rows=written, checks=checks)
        return Ingested(rows=written, quarantined=self._quarantine(groups, faults, write_bad), checks=checks)

    def _in_footers(self, files: Sequence[ForeignFile]) -> int:
        """Rows of Parquet files with columns that are left out."""
        if self._reading.format is not Format.PARQUET or self._rescues:
            return 0
        return footers_unknown(files, self._schema, self._open)

    # --- files

    def _inspected(self, files: Sequence[ForeignFile], refused: dict[str, str]) -> list[headers.Group]:
        """Files that are read alike, and those that cannot be read, as far as a look at each can tell."""
        reading = self._reading
        if reading.format is Format.PARQUET:
            for file in files:
                wrong = salvage.not_parquet(file.size, lambda path=file.path: self._open(path))  # type: ignore[misc]
                if wrong:
                    refused[file.path] = wrong
        elif reading.format is Format.CSV and reading.header:
            return headers.grouped(files, self._schema, reading, self._open, refused)
        return [headers.Group(None, tuple(file for file in files if file.path not in refused))]

    def _blame(
        self,
        file: ForeignFile,
        error: Exception,
        refused: dict[str, str],
        cut: dict[str, Salvage],
        groups: list[headers.Group],
    ) -> None:
        """A job failed over one file: is it the file, or the way to it? If it is the file, set it aside."""
        if culprits.is_gone(error):
            raise SourceFileChanged(f"{file.path} is gone") from error
        if culprits.is_out_of_reach(error):
            raise error
        again = self._failing(file)
        if again is None:
            raise error  # it can be read by itself: another try is due
        left = salvage.of_gzip(file.path, self._open) if self._reading.by_lines else None
        if left is not None and left.lines and left.lines == self._from.lines([file], cut=True).count():
            cut[file.path] = left
            groups.append(headers.Group(_header_of(file, self._schema, self._reading, self._open), (file,)))
        else:
            refused[file.path] = culprits.reason(again)

    def _failing(self, file: ForeignFile) -> Exception | None:
        """What reading this file alone ends with; None when nothing is wrong."""
        header = _header_of(file, self._schema, self._reading, self._open)
        try:
            frame = self._from.of(headers.Group(header, (file,)), cut=False)
            frame.write.format("noop").mode("overwrite").save()
        except Exception as error:  # noqa: BLE001 - the answer
            return error
        return None

    # --- rows that fit

    def _fitting(
        self, groups: Sequence[headers.Group], cut: Mapping[str, Salvage], counted: object
    ) -> "DataFrame | None":
        from pyspark.sql import functions as sf

        everything = self._everything(groups, cut)
        if everything is None:
            return None
        wrong, keyless = sf.col(WRONG), self._keyless()
        # The observation stands between parsing and its use, so that a record is parsed once.
        observed = everything.observe(
            counted,  # type: ignore[arg-type]
            sf.count_if(wrong).alias("bad"),
            sf.count_if(~wrong & keyless).alias("keyless"),
            sf.count_if(~wrong & sf.col(UNKNOWN)).alias("unknown"),
            sf.count_if(~wrong & sf.col(LEFT).isNotNull()).alias("rescued"),
        )
        rows = observed.where(~wrong & ~keyless)
        columns = [sf.col(f"{PARSED}.{named(name)}") for name in self._schema.names]
        if self._rescues:
            columns.append(sf.col(LEFT).alias(RESCUED))
        if self._kind is Kind.CHANGES:
            columns.append(sf.lit(1).cast("bigint").alias(operations.WEIGHT))
        if self._kind is Kind.KEYED:
            files = [file for group in groups for file in group.files]
            rows = ordinals.with_files(rows, FILE, files, self._spark)
            columns.append(sf.lit(operations.Operation.UPSERT.value).alias(operations.OP))
            columns.append(ordinals.ordinal(PLACE).alias(operations.ORDINAL))
        return rows.select(*columns)

    def _everything(self, groups: Sequence[headers.Group], cut: Mapping[str, Salvage]) -> "DataFrame | None":
        """All records of all files; None when there is no file."""
        frames = [self._from.of(part, cut=is_cut) for part, is_cut in _split(groups, cut)]
        return reduce(lambda one, other: one.unionByName(other), frames) if frames else None

    def _keyless(self) -> "Column":
        """Does a record lack a part of its key?"""
        from pyspark.sql import functions as sf

        missing = [sf.col(f"{PARSED}.{named(name)}").isNull() for name in self._key]
        return reduce(lambda one, other: one | other, missing, sf.expr("false"))

    # --- what does not fit

    def _quarantine(self, groups: Sequence[headers.Group], faults: "_Faults", write_bad: Write) -> Written:
        whole = [(path, None, None, why) for path, why in faults.refused.items()]
        tails = [
            (path, left.lines + 1, left.tail or None, "the packed data is cut or broken from here on")
            for path, left in faults.cut.items()
        ]
        frames = [self._spark.createDataFrame([*whole, *tails], BAD_SCHEMA)] if whole or tails else []
        if faults.bad:
            frames += [self._wrong(part, cut=is_cut) for part, is_cut in _split(groups, faults.cut)]
        if faults.keyless:
            frames.append(self._without_key(groups, faults.cut))
        written = write_bad(reduce(lambda one, other: one.unionByName(other), frames), "records/")
        if written.rows != faults.total:
            raise SourceMiscounted(
                f"{faults.total} records for quarantine, and {written.rows} when they were sought"
            )
        return written

    def _without_key(self, groups: Sequence[headers.Group], cut: Mapping[str, Salvage]) -> "DataFrame":
        """Records that fit, but for their key. Where they are in their file is not told."""
        from pyspark.sql import functions as sf

        everything = self._everything(groups, cut)
        assert everything is not None
        found = self._unpruned(everything).where(~sf.col(WRONG) & self._keyless())
        files = [file for group in groups for file in group.files]
        columns = [sf.col(f"{PARSED}.{named(name)}").alias(name) for name in self._schema.names]
        record = sf.to_json(sf.struct(*columns), {"ignoreNullFields": "false"})
        return ordinals.with_files(found, FILE, files, self._spark).select(
            "file",
            sf.lit(None).cast("bigint").alias("line"),
            record.alias("record"),
            sf.lit(f"its key ({', '.join(self._key)}) is NULL").alias("error"),
        )

    def _wrong(self, group: headers.Group, *, cut: bool) -> "DataFrame":
        """The wrong records of some files, with their lines and what is wrong with each.

        Lines are counted block by block, because a large file is read by several tasks; what is no line is
        counted file by file, because such a file is read by one.
        """
        from pyspark.sql import functions as sf

        if self._reading.by_lines:
            counted = self._from.lines(group.files, cut=cut)
        else:
            counted = self._unpruned(self._from.of(group, cut=cut)).withColumn(BLOCK, sf.lit(0))
        counted = counted.withColumn(_ID, sf.monotonically_increasing_id())
        places = self._places(counted, group.files)
        located = counted.join(sf.broadcast(places), [FILE, BLOCK])
        located = located.withColumn("line", sf.col(_ID) + sf.col("shift"))
        if not self._reading.by_lines:
            wrong = located.where(WRONG)
        elif self._reading.format is Format.CSV:
            # A line is wrong by its text alone: the wrong ones are those with the text of a wrong record,
            # but for the header, which is no record.
            texts = self._unpruned(self._from.structured(group, cut=cut)).where(WRONG).select(FILE, TEXT)
            lines = located if group.header is None else located.where(sf.col("line") != sf.col("first"))
            wrong = lines.join(texts.distinct(), [FILE, TEXT], "left_semi")
        else:
            wrong = self._from.parsed(located).where(WRONG)
        schema = self._schema if group.header is None else group.header.schema
        return wrong.select(
            sf.col("file"),
            sf.col("line"),
            sf.make_valid_utf8(TEXT).alias("record"),
            what_is_wrong(sf.col(TEXT), schema, self._reading).alias("error"),
        )

    def _places(self, counted: "DataFrame", files: Sequence[ForeignFile]) -> "DataFrame":
        """For each block: its file's name, what makes an id a line's number, and the file's first line."""
        from pyspark.sql import functions as sf

        # A text that is NULL is that of a record that is not wrong.
        filled = sf.min(sf.when(sf.coalesce(sf.trim(TEXT), sf.lit("x")) != "", sf.col(_ID)))
        blocks = counted.groupBy(FILE, BLOCK).agg(sf.min(_ID), sf.count(sf.lit(1)), filled)
        rows = sorted((tuple(row) for row in blocks.collect()), key=lambda row: (row[0], row[1]))
        names = {plain(file.uri): file.path for file in files}
        before: dict[str, int] = {}
        firsts: dict[str, int] = {}
        shifts = {}
        for path, block, start, count, first in rows:
            shifts[path, block] = before.get(path, 0) - start + 1
            before[path] = before.get(path, 0) + count
            if first is not None:
                firsts.setdefault(path, shifts[path, block] + first)
        found = [
            (path, block, shift, names[plain(unquote(path))], firsts.get(path))
            for (path, block), shift in shifts.items()
        ]
        return self._spark.createDataFrame(
            found, f"{FILE} STRING, {BLOCK} BIGINT, shift BIGINT, file STRING, first BIGINT"
        )

    def _unpruned(self, records: "DataFrame") -> "DataFrame":
        """Have every column read, needed or not: a value that is not read is not found to be wrong."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as sf

        nulls = [sf.col(f"{PARSED}.{named(name)}").isNull().cast("int") for name in self._schema.names]
        return records.observe(
            Observation(), sf.max(reduce(lambda one, other: one + other, nulls)).alias("n")
        )


class _Faults(NamedTuple):
    """What is wrong with files and records; lines that are wrong, and records that lack their key."""

    refused: Mapping[str, str]
    cut: Mapping[str, Salvage]
    bad: int
    keyless: int

    @property
    def total(self) -> int:
        return len(self.refused) + len(self.cut) + self.bad + self.keyless


def _split(
    groups: Sequence[headers.Group], cut: Mapping[str, Salvage]
) -> Iterator[tuple[headers.Group, bool]]:
    """Groups of files that are read in one way, and whether they are cut."""
    for group in groups:
        for is_cut in (False, True):
            files = tuple(file for file in group.files if (file.path in cut) is is_cut)
            if files:
                yield headers.Group(group.header, files), is_cut


def _header_of(
    file: ForeignFile, schema: "StructType", reading: Reading, open_file: Callable[[str], BinaryIO]
) -> "headers.Header | None":
    if reading.format is not Format.CSV or not reading.header:
        return None
    groups = headers.grouped([file], schema, reading, open_file, {})
    return groups[0].header if groups else None
