"""Files of a folder, read by Spark: every record is stored or quarantined, and no file stops the source."""

import csv
import functools
import gzip
import io
import random
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.mutation import damaged, json_text, mutated_value, text, value
from tests.fuzz.targets.json_input import dataset, declaration, row
from tidemill.clock import SYSTEM
from tidemill.lots.checks import quarantine_of
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject
from tidemill.objects import open_objects
from tidemill.publish.parts import PartClaim, PartInput, PartSink, PartTask, SinkWritten
from tidemill.schemas import ddl
from tidemill.sources.file_source import FileSourceSpec
from tidemill.sources.folder import folder
from tidemill.sources.window_task import run_window
from tidemill.spark.ingest.formats import Format, why_not_read
from tidemill.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES = 6
FORMATS = ("json", "csv", "parquet")
FORKS = False  # a forked process cannot use the Spark of its parent
_LINE = re.compile(rb"\r\n|\n|\r")
_session: list["SparkSession"] = []


def use(spark: "SparkSession") -> None:
    """Use a session that is already open."""
    _session.append(spark)


@functools.cache
def _spark() -> "SparkSession":
    from tests.servers.spark import SMALL, small_spark
    from tidemill.spark.sessions import open_session

    return _session[-1] if _session else open_session(small_spark(SMALL))


def generate(rng: random.Random) -> dict[str, Any]:
    case = declaration(rng)
    case["format"] = rng.choice(FORMATS)
    for name, kind in list(case["columns"].items()):
        (column,) = ddl.parse(f"c {kind}").columns
        if why_not_read(Format(case["format"]), column.type):
            del case["columns"][name]
    make = {"json": _json, "csv": _csv, "parquet": _parquet}[case["format"]]
    case["files"] = {}
    for number in range(rng.randrange(1, 6)):
        body = make(rng, case["columns"])
        name = f"{number}{rng.choice(('', ' a', '%20', 'é', '#', '=x'))}.{case['format']}"
        if case["format"] != "parquet" and rng.random() < 0.1:
            body, name = gzip.compress(body), f"{name}.gz"
        case["files"][name] = damaged(rng, body) if rng.random() < 0.3 else body
    return case


def _json(rng: random.Random, columns: dict[str, str]) -> bytes:
    lines = [json_text(rng, row(rng, columns)) for _ in range(rng.randrange(5))]
    return rng.choice((b"\n", b"\r\n", b"\n\n", b"\n \n")).join(lines)


def _csv(rng: random.Random, columns: dict[str, str]) -> bytes:
    sink = io.StringIO(newline="")
    names = ["id", *columns]
    if rng.random() < 0.3:
        names = [*rng.sample(names, len(names)), rng.choice(("extra", "ID", "", text(rng)))]
    writer = csv.writer(sink, lineterminator=rng.choice(("\n", "\r\n")))
    writer.writerow(names)
    for _ in range(rng.randrange(5)):
        values = [rng.choice((1, "x", "", "2024-01-01", "1.5", "true", text(rng))) for _ in names]
        writer.writerow(
            values[: rng.choice((len(names), len(names), 1, 0))] if rng.random() < 0.2 else values
        )
    return sink.getvalue().encode("utf-8", "replace")


def _parquet(rng: random.Random, columns: dict[str, str]) -> bytes:
    count = rng.randrange(4)
    table = pa.table({"id": pa.array(range(count), rng.choice((pa.int64(), pa.int32(), pa.uint64())))})
    for name in rng.sample([*columns, "extra", "ID", "a b"], rng.randrange(4)):
        try:
            column = pa.array(
                [mutated_value(rng, value(rng, 1)) if rng.random() < 0.2 else 1 for _ in range(count)]
            )
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            column = pa.nulls(count)
        if name not in table.column_names:
            table = table.append_column(name, column)
    sink = io.BytesIO()
    try:
        pq.write_table(table, sink, compression=rng.choice(("none", "snappy", "zstd")))
    except (pa.ArrowException, UnicodeError):
        pq.write_table(table.select(["id"]), sink := io.BytesIO())
    return sink.getvalue()


def check(case: dict[str, Any]) -> None:
    files, form = case.get("files", {}), case.get("format", "json")
    if not files:
        return
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "in"
        root.mkdir()
        for name, body in files.items():
            (root / name).write_bytes(body)
        good, bad = _ingest(case, form, root, Path(scratch) / "objects")
        records = good.rows + bad.rows
        if form == "json" and not any(name.endswith(".gz") for name in files):
            expected = sum(_lines(body) for body in files.values())
            assert records == expected, f"{good.rows} rows and {bad.rows} bad records of {expected}"
        for item in (*good.objects, *bad.objects):
            table = pq.read_table(Path(scratch) / "objects" / item.uri)
            assert table.num_rows == item.rows
        errors = [pq.read_table(Path(scratch) / "objects" / item.uri).column("error") for item in bad.objects]
        assert all(error for column in errors for error in column.to_pylist()), "no reason is given"


def _lines(body: bytes) -> int:
    """Count the records of a file of JSON lines as Spark splits it."""
    return sum(1 for line in _LINE.split(body.removeprefix(b"\xef\xbb\xbf")) if line.strip(b" "))


def _ingest(case: dict[str, Any], form: str, root: Path, objects: Path) -> tuple[SinkWritten, SinkWritten]:
    orders, place = DatasetId("orders"), folder(f"{root}/**", format=form)
    declared, listing = dataset(case), place.listing()
    spec = FileSourceSpec(
        id="source:shop/orders",
        pipeline="shop",
        dataset=orders,
        schema=declared.schema,
        kind=declared.kind,
        key=declared.key,
        drift=declared.drift,
        reading=place.reading,
        quarantine=quarantine_of(orders),
    )
    listed = list(listing.files(lambda *_: None))
    inputs = tuple(StoredObject(uri=file.path, size=file.size, etag=file.version) for file in listed)
    task = PartTask(
        kind="source",
        pipeline="shop",
        author=spec.id,
        code=spec.code,
        attempt="attempt",
        lot="A00000000000000001",
        key="k",
        inputs=(PartInput(dataset=orders, objects=inputs),),
        sinks=(PartSink(dataset=orders), PartSink(dataset=spec.quarantine)),
    )
    storage = Storage(open_objects(str(objects), clock=SYSTEM))
    good, bad = run_window(_spark(), storage, spec, listing, task, PartClaim("f", 1))
    return good, bad
