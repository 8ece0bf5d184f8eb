"""A view's table over many steps and merges, without Spark: its pieces add up to its changes."""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from tidemill import crash
from tidemill.errors import ObjectUnreadable, WriteMismatch
from tidemill.lots import layout
from tidemill.objects.memory import MemoryObjects
from tidemill.spark.lot_writer import write_table
from tidemill.testing.fake_clock import FakeClock
from tidemill.views.kernels.zsets import digest
from tidemill.views.spark import table_merges, table_pieces
from tidemill.views.spark.digests import number_of
from tidemill.views.spark.table_merges import arrow_schema, netted, read_piece, stored_columns
from tidemill.views.spark.view_tables import ViewAttempt, ViewTables
from tidemill.views.steps.inputs import ManifestReader
from tidemill.views.steps.keys import changes_of

SCHEMA = st.StructType(
    [
        st.StructField("k", st.LongType()),
        st.StructField("s", st.StringType()),
        st.StructField("d", st.DoubleType()),
        st.StructField("at", st.TimestampType()),
        st.StructField("a", st.ArrayType(st.IntegerType())),
    ]
)
ARROW = arrow_schema(stored_columns(SCHEMA))
Row = tuple[int, str | None, float, int | None]


class Steps:
    """One view's table, step by step."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = FakeClock()
        self.rng = random.Random(seed)
        self.objects = MemoryObjects(self.clock)
        self.reader = ManifestReader(self.objects)
        storage: Any = SimpleNamespace(objects=self.objects)  # Spark reads nothing here
        self.tables = ViewTables(storage, self.reader, self.clock)
        self.table = ""
        self.number = 0
        self.truth: Counter[int] = Counter()
        self.sizes: list[int] = []
        self.cut = 0

    def step(self, change: Counter[int]) -> None:
        """Run a step with these weights by key; the key determines all other columns of a row."""
        self.number += 1
        attempt = ViewAttempt(pipeline="p", view="v", lot=f"S{self.number:05}", attempt=f"t{self.number}")
        rows = rows_of(change)
        prefix = layout.data_prefix(*changes_of("p", "v").parts, attempt.lot, attempt.attempt)
        written = write_table(rows, self.objects, prefix)
        changes = self.tables.record_changes(attempt, written, SCHEMA, digest(rows, "_h1", "_h2", "_weight"))
        before = {info.key for info in self.objects.list("data/")}
        table = self.tables.extended(attempt, self.table, changes, SCHEMA)
        new = [info for info in self.objects.list("data/") if info.key not in before]
        self.sizes.append(sum(self.rows_in(info.key) for info in new))
        self.table = table
        self.cut += bool(self.reader.load(table).within)
        for key, weight in change.items():
            self.truth[key] += weight
            if not self.truth[key]:
                del self.truth[key]

    def rows_in(self, key: str) -> int:
        return int(pa.parquet.read_metadata(pa.BufferReader(self.objects.get(key)[0])).num_rows)

    def content(self) -> pa.Table:
        tables = [ARROW.empty_table()]
        for piece in self.tables.pieces(self.table):
            listed = self.reader.load(piece.part).objects
            tables += [read_piece(self.objects, item, piece, ARROW) for item in listed]
        return netted(pa.concat_tables(tables))

    def check(self) -> None:
        table = self.content()
        assert dict(zip(table["k"].to_pylist(), table["_weight"].to_pylist(), strict=True)) == self.truth
        # Compared as text, because NaN does not equal itself.
        assert str(table.sort_by("k").to_pylist()) == str(rows_of(self.truth).to_pylist())
        stated = number_of(self.reader.load(self.table).digest)
        assert digest(table, "_h1", "_h2", "_weight") == stated

    def change(self, size: int) -> Counter[int]:
        old = self.rng.sample(sorted(self.truth), min(len(self.truth), size // 2))
        new = [self.rng.randrange(1 << 40) for _ in range(size - len(old))]
        return Counter({**dict.fromkeys(new, 1), **{key: -self.truth[key] for key in old}})


def rows_of(weights: Counter[int]) -> pa.Table:
    keys = sorted(weights)
    hashes = [random.Random(key).getrandbits(128) for key in keys]
    columns: list[Any] = [
        keys,
        [None if key % 7 == 0 else f"s{key}" for key in keys],
        [float("nan") if key % 5 == 0 else key / 3 for key in keys],
        [None if key % 3 == 0 else key for key in keys],
        [[key % 100, None] for key in keys],
        [(value >> 64) - (1 << 63) for value in hashes],
        [(value & (2**64 - 1)) - (1 << 63) for value in hashes],
        [weights[key] for key in keys],
    ]
    return pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, ARROW, strict=True)], schema=ARROW
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of hundreds of rows, and row groups of some."""
    monkeypatch.setattr(table_pieces, "FLOOR_ROWS", 300)
    monkeypatch.setattr(table_pieces, "SLICE_ROWS", 400)
    monkeypatch.setattr(table_pieces, "SHARE", 8)
    monkeypatch.setattr(table_merges, "GROUP_ROWS", 50)


@pytest.mark.slow
@pytest.mark.rule("DBSP-47")
@pytest.mark.rule("DBSP-42")
def test_merges_keep_the_content_and_rewrite_no_more_than_the_budget(small: None) -> None:
    steps = Steps()
    steps.step(steps.change(2_000))
    sizes = [1, 3, 20, 20, 60]
    for number in range(90):
        steps.step(steps.change(steps.rng.choice(sizes)))
        if number % 15 == 0:
            steps.check()
    steps.check()
    assert max(steps.sizes) <= 1.3 * 400  # rows written; at least as many were read
    assert sum(steps.sizes) > 2_000  # the first run was merged too, window by window
    assert steps.cut > 5  # some runs count only in a part of hash space
    assert len(steps.reader.load(steps.table).parts) < 40
    everything = steps.change(0)
    for key in steps.truth:
        everything[key] = -steps.truth[key]
    steps.step(everything)
    for _ in range(10):
        steps.step(Counter({1: 1}))
        steps.step(Counter({1: -1}))
    steps.check()
    assert steps.content().num_rows == 0


def test_a_crash_during_a_merge_leaves_the_table_unchanged(small: None) -> None:
    steps = Steps()
    for _ in range(table_pieces.FAN - 1):
        steps.step(steps.change(5))
    before, truth = steps.table, steps.truth.copy()
    for point in ("spark.write_table.before", "spark.write_table.after", "views.manifest.after"):
        with crash.armed(point, visit=2), pytest.raises(crash.Crashed):
            steps.step(steps.change(5))
        assert (steps.table, steps.truth) == (before, truth)
        steps.check()
    steps.step(steps.change(5))
    steps.check()
    assert len(steps.reader.load(steps.table).parts) == 1


def test_a_run_that_differs_from_its_manifest_is_not_merged() -> None:
    steps = Steps()
    for _ in range(table_pieces.FAN - 1):
        steps.step(steps.change(5))
    leaf = steps.reader.load(steps.reader.load(steps.table).parts[2])
    body = steps.objects.get(leaf.objects[0].uri)[0]
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(rows_of(steps.change(4)), sink, store_schema=False)
    steps.objects.put(leaf.objects[0].uri, sink.getvalue().to_pybytes())
    with pytest.raises(
        WriteMismatch, match=layout.parse_key(steps.reader.load(steps.table).parts[2])["attempt"]
    ):
        steps.step(steps.change(5))
    steps.objects.put(leaf.objects[0].uri, body[:-20])
    with pytest.raises(ObjectUnreadable, match=leaf.objects[0].uri.rpartition("/")[2]):
        steps.step(steps.change(5))
    steps.objects.delete(leaf.objects[0].uri)
    with pytest.raises(ObjectUnreadable):
        steps.step(steps.change(5))
    steps.objects.put(leaf.objects[0].uri, body)
    steps.step(steps.change(5))
    steps.check()


@pytest.mark.parametrize(
    "kind",
    [
        st.StringType("UTF8_LCASE"),
        st.MapType(st.StringType(), st.IntegerType()),
        st.ArrayType(st.StructType([st.StructField("m", st.MapType(st.LongType(), st.LongType()))])),
        st.YearMonthIntervalType(),
    ],
)
def test_types_that_arrow_lacks_or_compares_differently_are_left_to_spark(kind: st.DataType) -> None:
    schema = st.StructType([st.StructField("collate", st.LongType()), st.StructField("x", kind)])
    assert arrow_schema(stored_columns(schema)) is None
    assert arrow_schema(stored_columns(st.StructType(schema.fields[:1]))) is not None
