"""Rows on their way between layers: what is narrowed comes out as it was."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tidemill.views.chain.work import Packet
from tidemill.views.spark.wire import narrowed, table_of, to_wire, widened

COUNT = 5_000


def table(largest: int, *, nulls: bool) -> pa.Table:
    chance = np.random.default_rng(largest % 1_000)
    numbers = [int(n) for n in chance.integers(-largest, largest, COUNT)]
    values = [None if nulls and n % 7 == 0 else value for n, value in enumerate(numbers)]
    small = [None if value is None else value % 20_000 for value in values]
    days = [None if value is None else dt.date(1990, 1, 1) + dt.timedelta(days=value) for value in small]
    return pa.table(
        {
            "_h": pa.array(chance.integers(-(2**63), 2**63 - 1, COUNT)),
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


@pytest.mark.parametrize("largest", [1, 100, 30_000, 2**31 - 1, 2**31 + 1, 2**62])
@pytest.mark.parametrize("nulls", [False, True])
def test_what_is_narrowed_comes_out_as_it_was(largest: int, nulls: bool) -> None:
    rows = table(largest, nulls=nulls)
    for some in (rows, rows.slice(17, 4_500), pa.concat_tables([rows.slice(0, 100), rows.slice(50)])):
        assert widened(narrowed(some)).equals(some)
    assert narrowed(rows).nbytes < rows.nbytes


def test_a_packet_is_smaller_on_the_wire_and_the_same_behind_it() -> None:
    rows = table(100, nulls=True)
    sizes = []
    for narrow in (False, True):
        (row,) = to_wire([Packet(3, 1, "main", rows)], narrow=narrow)
        assert table_of(row.column(3)[0]).equals(rows)
        sizes.append(row.nbytes)
    assert sizes[1] < 0.7 * sizes[0]


def test_few_rows_and_rows_without_numbers_travel_as_they_are() -> None:
    few = table(100, nulls=False).slice(0, 10)
    (row,) = to_wire([Packet(0, 1, "main", few)], narrow=True)
    assert table_of(row.column(3)[0]).equals(few)
    texts = pa.table({"t": ["x"] * COUNT})
    assert narrowed(texts) is texts


def test_nothing_but_nulls_travels() -> None:
    rows = pa.table({"n": pa.nulls(COUNT, pa.int64()), "d": pa.nulls(COUNT, pa.decimal128(10, 2))})
    assert widened(narrowed(rows)).equals(rows)
