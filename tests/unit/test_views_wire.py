"""Rows between layers: compacted rows are restored as they were."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tidemill.views.chain.compact_rows import compacted, restored
from tidemill.views.chain.layer_task import Packet
from tidemill.views.chain.stateful_operator import hash_column
from tidemill.views.spark.wire_format import table_of, to_wire
from tidemill.views.trace.key_hash import fine_hashes
from tidemill.views.trace.layout import Layout

COUNT = 5_000


def table(largest: int, *, nulls: bool) -> pa.Table:
    rng = np.random.default_rng(largest % 1_000)
    numbers = [int(n) for n in rng.integers(-largest, largest, COUNT)]
    values = [None if nulls and n % 7 == 0 else value for n, value in enumerate(numbers)]
    small = [None if value is None else value % 20_000 for value in values]
    days = [None if value is None else dt.date(1990, 1, 1) + dt.timedelta(days=value) for value in small]
    return pa.table(
        {
            "_h": pa.array(rng.integers(-(2**63), 2**63 - 1, COUNT)),
            "long": pa.array(values, pa.int64()),
            "int": pa.array(small, pa.int32()),
            "day": pa.array(days, pa.date32()),
            "at": pa.array(values, pa.timestamp("us", tz="UTC")),
            "local": pa.array(values, pa.timestamp("us")),
            "money": pa.array(
                [None if v is None else Decimal(v % 10**12) / 100 for v in values], pa.decimal128(18, 2)
            ),
            "large": pa.array([None if v is None else Decimal(v) for v in values], pa.decimal128(38, 0)),
            "text": pa.array([None if v is None else str(v) for v in values]),
            "real": pa.array([None if v is None else v / 3 for v in values], pa.float64()),
            "_w": pa.array(np.ones(COUNT, np.int64)),
        }
    )


def layout(rows: pa.Table, names: list[str], key: int | None = None) -> Layout:
    """Return the layout of these columns: all are the key, or the first `key` of them in a fine trace."""
    columns = pa.schema([rows.schema.field(name) for name in names])
    return Layout(columns, len(names) if key is None else key, fine=key is not None)


@pytest.mark.parametrize("largest", [1, 100, 30_000, 2**31 - 1, 2**31 + 1, 2**62])
@pytest.mark.parametrize("nulls", [False, True])
def test_compacted_rows_are_restored_as_they_were(largest: int, nulls: bool) -> None:
    rows = table(largest, nulls=nulls)
    for part in (rows, rows.slice(17, 4_500), pa.concat_tables([rows.slice(0, 100), rows.slice(50)])):
        assert restored(compacted(part)).equals(part)
    assert compacted(rows).nbytes < rows.nbytes


def test_a_compacted_packet_is_smaller_on_the_wire_and_decoded_as_it_was() -> None:
    rows = table(100, nulls=True)
    sizes = []
    for sent in (rows, compacted(rows)):
        (row,) = to_wire([Packet(3, 1, "main", sent)])
        assert table_of(row.column(3)[0]).equals(rows)
        sizes.append(row.nbytes)
    assert sizes[1] < 0.7 * sizes[0]


def test_rows_that_cannot_be_compacted_stay_unchanged() -> None:
    texts = pa.table({"t": [f"{n}" for n in range(COUNT)]})
    assert compacted(texts) is texts


def test_columns_of_nulls_are_restored() -> None:
    rows = pa.table({"n": pa.nulls(COUNT, pa.int64()), "d": pa.nulls(COUNT, pa.decimal128(10, 2))})
    assert restored(compacted(rows)).equals(rows)


TEXTS = (["north", "", "süd", "a\0b", "east" * 30], [None, "north", "south"], [None])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
@pytest.mark.parametrize("texts", TEXTS)
def test_strings_that_repeat_become_numbers(kind: pa.DataType, texts: list[str | None]) -> None:
    values = pa.array(texts).cast(kind).take(pa.array(np.arange(COUNT) % len(texts)))
    rows = pa.table({"t": values, "n": pa.array(np.arange(COUNT))})
    small = compacted(rows)
    assert small.schema.field("t").type == pa.int8()
    for part in (rows, rows.slice(17, 4_500)):
        assert restored(compacted(part)).equals(part)
    selected = pa.array(np.arange(COUNT)[::-3])
    assert restored(small.take(selected)).equals(rows.take(selected)), (
        "a selection of the compacted rows is restored too"
    )


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(
    "key",
    [["long"], ["day", "money"], ["large", "at"], ["real"], ["region", "int"], ["region"], []],
)
def test_a_hash_that_is_cheap_to_compute_is_computed_again(key: list[str], nulls: bool) -> None:
    rows = table(2**40, nulls=nulls)
    regions = pa.array(["n", "e", "s", None if nulls else "w"]).take(pa.array(np.arange(COUNT) % 4))
    rows = rows.append_column("region", regions)
    rows = rows.set_column(0, "_h", hash_column(rows, key))
    small = compacted(rows, layout(rows, key))
    assert "_h" not in small.column_names
    assert "_w" not in small.column_names, "all rows have the same weight"
    assert restored(small).equals(rows)
    selected = pa.array(np.arange(COUNT)[5::7])
    assert restored(small.take(selected)).equals(rows.take(selected))


def test_a_hash_of_strings_that_do_not_repeat_is_sent() -> None:
    rows = table(2**40, nulls=False)
    rows = rows.set_column(0, "_h", hash_column(rows, ["text"]))
    assert "_h" in compacted(rows, layout(rows, ["text"])).column_names
    assert restored(compacted(rows, layout(rows, ["text"]))).equals(rows)


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(("key", "rest"), [(["long"], ["day", "real"]), (["day", "money"], ["large", "int"])])
def test_the_hash_of_a_fine_trace_is_computed_again(key: list[str], rest: list[str], nulls: bool) -> None:
    rows = table(2**40, nulls=nulls)
    columns = [[rows[name].combine_chunks() for name in names] for names in (key, rest)]
    rows = rows.select(["_h", *key, *rest, "_w"]).set_column(0, "_h", pa.array(fine_hashes(*columns, COUNT)))
    small = compacted(rows, layout(rows, [*key, *rest], len(key)))
    assert "_h" not in small.column_names
    assert restored(small).equals(rows)


def test_weights_that_differ_are_sent() -> None:
    rows = pa.table({"n": pa.array(np.arange(COUNT)), "_w": pa.array(np.where(np.arange(COUNT) % 9, 1, -1))})
    assert "_w" in compacted(rows).column_names
    assert restored(compacted(rows)).equals(rows)
    weights = pa.table({"_w": pa.array(np.ones(COUNT, np.int64))})
    assert restored(compacted(weights)).equals(weights), "a table without columns would have no rows"
