"""Values of rows that Arrow would misread, or that would end the process."""

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidemill.errors import AppendRefused
from tidemill.spark import schema
from tidemill.spark.input_rows import to_table

FATAL = """
from decimal import Decimal
from tidemill.errors import AppendRefused
from tidemill.lots.datasets import DatasetRow, Drift
from tidemill.sources.records import SourceRecord, parse
from tidemill.sources.row_converters import converter, evolving_converter
from tidemill.spark import schema
from tidemill.spark.drift import effective
from tidemill.spark.input_rows import to_table

fatal = [
    ("MAP<STRING, INT>", "[null]", [None]),
    ("STRUCT<m: MAP<STRING, INT>>", '{"m": [null]}', {"m": [None]}),
    ("ARRAY<MAP<STRING, INT>>", "[[null]]", [[None]]),
    ("MAP<STRING, MAP<STRING, INT>>", '{"a": [null]}', {"a": [None]}),
    ("DECIMAL(10, 2)", '"1e-999999999"', Decimal("1e-999999999")),
    ("ARRAY<DECIMAL(10, 2)>", '["-1e-999999999"]', ["-1e-999999999"]),
]
for kind, text, value in fatal:
    ddl = f"id BIGINT, x {kind}"
    try:
        to_table([{"id": 1, "x": value}], schema.to_arrow(schema.parse(ddl)), "d")
        print("appended", kind)
    except AppendRefused as refused:
        assert "column x expects" in refused.message, refused.message
    for drift in Drift:
        dataset = effective(DatasetRow(name="d", schema=ddl, drift=drift))
        evolving = evolving_converter(dataset)
        texts = ['{"id": 1}', f'{{"id": 2, "x": {text}}}']
        records = [SourceRecord("t", number, text.encode()) for number, text in enumerate(texts, 1)]
        columns = dataset.schema if evolving else ""
        parsed = parse(records, converter(dataset), evolving=evolving, columns=columns)
        rescues = drift is Drift.RESCUE
        assert parsed.rows.num_rows == 1 + rescues, (kind, drift)
        assert parsed.bad.column("line").to_pylist() == ([] if rescues else [2]), (kind, drift)
print("done")
"""


def rows_of(ddl: str, *values: Any) -> list[Any]:
    columns = schema.to_arrow(schema.parse(f"x {ddl}"))
    return to_table([{"x": value} for value in values], columns, "d").column("x").to_pylist()


@pytest.mark.rule("LOT-41")
def test_values_that_end_the_process_in_arrow_are_refused_or_quarantined() -> None:
    """In a process of its own: without the checks, Arrow aborts."""
    done = subprocess.run([sys.executable, "-c", FATAL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("ddl", "text", "value"),
    [
        ("TIME", "12:30:00", dt.time(12, 30)),
        ("TIME", "9:05", dt.time(9, 5)),
        ("TIME", "23:59:59.5", dt.time(23, 59, 59, 500_000)),
        ("INTERVAL DAY TO SECOND", "1 02:03:04.5", dt.timedelta(1, 7384, 500_000)),
        ("INTERVAL DAY TO SECOND", "-1 00:00:00", dt.timedelta(-1)),
        ("INTERVAL DAY TO SECOND", "INTERVAL '1 02:03:04' DAY TO SECOND", dt.timedelta(1, 7384)),
        ("INTERVAL DAY TO SECOND", "P1DT2H3M4.5S", dt.timedelta(1, 7384, 500_000)),
        ("INTERVAL DAY TO SECOND", "-PT90M", dt.timedelta(minutes=-90)),
        ("DATE", "2024-02-29", dt.date(2024, 2, 29)),
        ("TIMESTAMP", "2024-01-01T00:00:00Z", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("DECIMAL(10, 2)", "12.30", Decimal("12.30")),
    ],
)
def test_texts_become_values_alone_and_inside_nested_types(ddl: str, text: str, value: Any) -> None:
    assert rows_of(ddl, text, None, value) == [value, None, value]
    assert rows_of(f"ARRAY<{ddl}>", [text, None], []) == [[value, None], []]
    assert rows_of(f"STRUCT<a: {ddl}>", {"a": text}, {}) == [{"a": value}, {"a": None}]
    assert rows_of(f"MAP<STRING, {ddl}>", {"a": text}) == [[("a", value)]]


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("TIME", "24:00:00"),
        ("TIME", "12:00:00.1234567"),
        ("TIME", "12:00:00+01:00"),
        ("TIME", 10**15),
        ("TIMESTAMP", 2**62),
        ("ARRAY<DATE>", [10**7]),
        ("INTERVAL DAY TO SECOND", "P"),
        ("INTERVAL DAY TO SECOND", "PT"),
        ("INTERVAL DAY TO SECOND", "P1M"),
        ("INTERVAL DAY TO SECOND", "1 24:00:00"),
        ("INTERVAL DAY TO SECOND", "P999999999D"),
        ("DECIMAL(10, 2)", "1.234"),
        ("DECIMAL(10, 2)", "NaN"),
        ("DECIMAL(10, 2)", "1e999999999"),
        ("DECIMAL(10, 2)", True),
        ("BIGINT", Decimal("1E+999999")),  # converting it takes minutes
        ("ARRAY<INT>", [Decimal("1E+999999")]),
        ("DATE", Decimal("1E+999999")),
        ("ARRAY<STRING>", "abc"),
        ("ARRAY<STRING>", {"a": 1}),
        ("ARRAY<STRING>", ["\ud800"]),
        ("STRUCT<a: INT>", []),
        ("STRUCT<a: INT>", [["a", 1]]),
        ("MAP<STRING, INT>", [["a", 1]]),
        ("MAP<STRING, INT>", [{"a": 1}]),
        ("MAP<STRING, INT>", {None: 1}),
        ("MAP<STRING, INT>", "ab"),
        ("MAP<INT, INT>", {"a": 1}),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_its_type_is_refused_with_its_row(ddl: str, value: Any) -> None:
    with pytest.raises(AppendRefused, match=r"d: column x expects .*\(row 1\)"):
        rows_of(ddl, None, value)


def test_the_message_writes_the_fields_of_a_struct_as_they_are_declared() -> None:
    with pytest.raises(AppendRefused, match=r"expects struct<Total: decimal\(3,1\)>, got 1 \(row 0\)"):
        rows_of("STRUCT<Total: DECIMAL(3,1)>", 1)


def test_the_hint_names_the_format_of_dates_and_times() -> None:
    for ddl, example in (("TIMESTAMP", "2026-01-31T12:30:00Z"), ("DATE", "2026-01-31"), ("TIME", "12:30:00")):
        with pytest.raises(AppendRefused) as refused:
            rows_of(ddl, "January")
        assert example in (refused.value.hint or "")
    with pytest.raises(AppendRefused) as refused:
        rows_of("TIMESTAMP", "2026-01-01 00:00:00")  # without a zone
    assert "2026-01-31T12:30:00Z" in (refused.value.hint or "")
    arrow = pa.table({"x": ["2026-01-01 00:00:00"]})
    with pytest.raises(AppendRefused) as refused:
        to_table(arrow, schema.to_arrow(schema.parse("x TIMESTAMP")), "d")
    assert "with a time zone" in (refused.value.hint or "")


def test_the_forms_of_maps_and_structs_that_python_and_arrow_use_are_accepted() -> None:
    pairs = [("a", 1), ("b", None)]
    for value in (dict(pairs), pairs, tuple(pairs), [{"key": "a", "value": 1}, {"key": "b"}]):
        assert rows_of("MAP<STRING, INT>", value) == [pairs]
    for value in ({"a": 1, "b": "x", "more": 2}, (1, "x"), [("a", 1), ("b", "x")]):
        assert rows_of("STRUCT<a: INT, b: STRING>", value) == [{"a": 1, "b": "x"}]


def test_texts_of_an_arrow_table_become_times_and_intervals() -> None:
    ddl = "t TIME, i INTERVAL DAY TO SECOND"
    arrow = pa.table({"t": ["12:30:00", None], "i": ["PT1S", None]})
    table = to_table(arrow, schema.to_arrow(schema.parse(ddl)), "d")
    assert table.to_pylist()[0] == {"t": dt.time(12, 30), "i": dt.timedelta(seconds=1)}


def test_the_message_about_a_value_of_any_size_or_depth_is_short() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for value in (deep, "9" * 10_000, {f"n{number}": 1 for number in range(10_000)}):
        with pytest.raises(AppendRefused) as refused:
            rows_of("BIGINT", value)
        assert len(refused.value.message) < 200
    with pytest.raises(AppendRefused, match="n4 and 95 more") as wide:
        to_table([{f"n{number}": 1 for number in range(100)}], pa.schema([("x", pa.int64())]), "d")
    assert len(str(wide.value)) < 300
