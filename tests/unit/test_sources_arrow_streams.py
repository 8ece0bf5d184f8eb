"""Arrow streams of other programs: a few bytes must not become a table that fills the memory."""

import io
from struct import pack
from typing import Any

import pyarrow as pa
import pytest

from tidemill.sources.arrow_streams import StreamTooLarge, read_stream
from tidemill.sources.push_body import RequestRefused, parse_rows

MOST = 1 << 20
ARROW = "application/vnd.apache.arrow.stream"


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_tables_of_every_kind_are_read(compression: str | None) -> None:
    words = pa.array(["a", None, "b"] * 1000)
    table = pa.table(
        {
            "id": range(3000),
            "word": words,
            "again": words.dictionary_encode(),
            "number": pa.array([1.5, None, 2.5] * 1000).dictionary_encode(),
            "view": words.cast(pa.string_view()),
            "nothing": pa.nulls(3000),
            "nested": pa.array([{"a": [1, 2]}] * 3000),
        }
    )
    assert read_stream(stream(table, compression), MOST).equals(table)
    assert read_stream(stream(pa.table({})), MOST).num_rows == 0
    assert read_stream(stream(table.slice(0, 0), compression), MOST).num_rows == 0


def many_nulls() -> bytes:
    """A stream of 200 bytes that claims 2^40 rows."""
    return stream(pa.table({"id": pa.nulls(123_456)})).replace(pack("<q", 123_456), pack("<q", 2**40))


LARGE = {
    "nulls": many_nulls,
    "zstd": lambda: stream(pa.table({"id": pa.array([0] * 300_000, pa.int64())}), "zstd"),
    "lz4": lambda: stream(pa.table({"id": pa.array([0] * 300_000, pa.int64())}), "lz4"),
    "rows": lambda: stream(pa.table({"flag": pa.array([True] * 400_000)})),
    "dictionary": lambda: stream(
        pa.table({"word": pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int16()), ["x" * 100])})
    ),
    "views": lambda: stream(pa.table({"word": pa.array(["x" * 100] * 10_000, pa.string_view())})),
}


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
def test_a_stream_that_describes_a_large_table_is_refused(body: Any) -> None:
    with pytest.raises(StreamTooLarge):
        read_stream(body(), MOST)
    with pytest.raises(RequestRefused) as refused:
        parse_rows(body(), ARROW, MOST)
    assert refused.value.status == 413
    assert refused.value.hint


def test_a_type_whose_size_is_unknown_is_refused() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([5], pa.int32()), pa.array([7]))
    nested = pa.StructArray.from_arrays([pa.array(["a"]).dictionary_encode()], ["a"])
    for column in (runs, nested):
        with pytest.raises(RequestRefused, match="not supported") as refused:
            parse_rows(stream(pa.table({"id": column})), ARROW)
        assert refused.value.status == 400
