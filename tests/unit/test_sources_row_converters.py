"""Rows that come in no files, convert_rows to fit a table that lets them drift (LOT-34), without Spark."""

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemill as tm
from tidemill.errors import AppendRefused, BadSource
from tidemill.lots.checks import expect, not_null
from tidemill.lots.datasets import DatasetRow, Drift, Kind
from tidemill.sources.json_objects import MOST_LEVELS, split_items
from tidemill.sources.records import ParsedRecords, SourceRecord, parse
from tidemill.sources.row_converters import converter, evolving_converter
from tidemill.sources.source import Source, SourceTarget
from tidemill.spark import schema
from tidemill.spark.drift import MOST_SCHEMA_BYTES, added, effective
from tidemill.spark.table_checks import check_table

DDL = "id bigint, name string"


def dataset(drift: Drift) -> DatasetRow:
    return effective(DatasetRow(name="orders", schema=DDL, drift=drift))


def convert_rows(drift: Drift, rows: Any) -> list[dict[str, Any]]:
    converted: list[dict[str, Any]] = converter(dataset(drift))(rows).to_pylist()
    return converted


@pytest.mark.rule("LOT-34")
def test_values_that_do_not_fit_are_rescued_as_text_and_the_rest_of_the_row_stays():
    rows = [{"id": 1, "name": "a"}, {"id": "x", "name": "b", "more": [1, 2]}, {"id": 3, "extra": None}]
    assert convert_rows(Drift.RESCUE, rows) == [
        {"id": 1, "name": "a", "_rescued": None},
        {"id": None, "name": "b", "_rescued": json.dumps({"more": "[1, 2]", "id": "x"})},
        {"id": 3, "name": None, "_rescued": None},
    ]
    arrow = pa.table({"id": [1, 2], "other": [None, 2.5]})
    assert [row["_rescued"] for row in convert_rows(Drift.RESCUE, arrow)] == [None, '{"other": "2.5"}']
    assert convert_rows(Drift.RESCUE, []) == []


@pytest.mark.rule("LOT-34")
def test_new_names_become_columns_with_a_type_that_fits_all_values():
    grown = evolving_converter(dataset(Drift.EVOLVE))
    assert grown is not None
    rows = [
        {"id": 1, "n": 1, "f": 1, "t": "x", "mixed": 1, "deep": {"a": [1]}, "nothing": None},
        {"id": 2, "f": 2.5, "mixed": "two", "deep": {"a": []}},
    ]
    columns = grown.columns(rows, DDL)
    assert columns == (f"{DDL}, n bigint, f double, t string, mixed string, deep struct<a: array<bigint>>")
    table = grown.convert(rows, columns)
    assert table.column("mixed").to_pylist() == ["1", "two"]
    assert table.column("deep").to_pylist() == [{"a": [1]}, {"a": []}]
    assert grown.columns(rows, columns) == columns
    # what came first has the column: the next one fits it, or does not fit the table
    assert grown.convert([{"id": 3, "mixed": 7}], columns).column("mixed").to_pylist() == ["7"]
    with pytest.raises(AppendRefused, match="column n"):
        grown.convert([{"id": 3, "n": "seven"}], columns)
    # unusable names do not become columns, and such a record is refused, not truncated
    odd = [{"id": 4, "_weight": 1}, {"id": 5, "ID": 1}]
    assert grown.columns(odd, DDL) == DDL
    for record in odd:
        with pytest.raises(AppendRefused, match="has the unknown column"):
            grown.convert([record], DDL)
    arrow = pa.table({"id": [1], "when": pa.array([0], pa.timestamp("us", "UTC"))})
    assert grown.columns(arrow, DDL) == f"{DDL}, when timestamp"


@pytest.mark.rule("LOT-34")
def test_a_batch_is_converted_with_all_columns_that_it_adds():
    grown = evolving_converter(dataset(Drift.EVOLVE))
    texts = [b'{"id": 1}', b'{"id": 2, "n": 5}', b"[]", b'{"id": "x", "n": 6}']
    records = [SourceRecord("t/0", number, text) for number, text in enumerate(texts)]
    parsed = parse(records, converter(dataset(Drift.EVOLVE)), evolving=grown, columns=DDL)
    assert parsed.columns == f"{DDL}, n bigint"
    assert parsed.rows.to_pylist() == [
        {"id": 1, "name": None, "n": None},
        {"id": 2, "name": None, "n": 5},
    ]
    assert parsed.bad.column("line").to_pylist() == [2, 3]
    again = parse(records[:2], converter(dataset(Drift.EVOLVE)), evolving=grown, columns=parsed.columns)
    assert again.columns == ""
    assert again.rows.num_rows == 2


@pytest.mark.rule("LOT-33")
def test_expressions_are_evaluated_by_spark_counted_and_quarantine_rows():
    table = pa.table({"id": [1, -2, None, 4], "name": ["a", "b", "c", None]})
    requests: list[list[str]] = []

    def evaluate(rows: pa.Table, expressions: list[str]) -> list[pa.Array]:
        requests.append(expressions)
        return [pa.array([value is not None and value > 0 for value in rows.column("id").to_pylist()])]

    checks = [expect("id > 0", name="positive", on_fail="drop"), not_null("name", on_fail="warn")]
    checked = check_table(table, checks, evaluate=evaluate)
    assert requests == [["id > 0"]]
    assert checked.counts == {"positive": 2, "not_null(name)": 1}
    assert checked.rows.column("id").to_pylist() == [1, 4]
    assert [row["check"] for row in checked.quarantined.to_pylist()] == ["positive", "positive"]
    assert check_table(table.slice(0, 0), checks, evaluate=evaluate).counts["positive"] == 0
    assert len(requests) == 1


def test_a_row_that_a_check_drops_may_hold_a_date_that_python_does_not_have() -> None:
    table = pa.table({"id": [None], "at": pa.array([2**62], pa.timestamp("us", "UTC"))})
    (row,) = check_table(table, [not_null("id", on_fail="drop")]).quarantined.to_pylist()
    assert json.loads(row["record"]) == {"id": None, "at": 2**62}


@pytest.mark.rule("LOT-34")
def test_a_record_whose_key_does_not_fit_is_quarantined_and_not_rescued():
    keyed = effective(
        DatasetRow(name="orders", schema=DDL, drift=Drift.RESCUE, key=("id",), kind=Kind.KEYED, deletes=True)
    )
    texts = [b'{"id": 1, "more": 2}', b'{"id": "x"}', b'{"name": "n"}', b'{"id": 4, "name": 4}']
    records = [SourceRecord("t/0", number, text) for number, text in enumerate(texts)]
    parsed = parse(records, converter(keyed), keyed.key)
    assert parsed.rows.column("id").to_pylist() == [1, 4]
    assert parsed.rows.column("_rescued").to_pylist() == ['{"more": "2"}', '{"name": "4"}']
    assert parsed.bad.column("line").to_pylist() == [1, 2]
    assert set(parsed.bad.column("error").to_pylist()) == {"the key column id is NULL"}


def parse_texts(drift: Drift, *texts: bytes) -> ParsedRecords:
    """Parse records as a poll and Kafka do."""
    evolving = evolving_converter(dataset(drift))
    records = [SourceRecord("t/0", number, text) for number, text in enumerate(texts)]
    return parse(records, converter(dataset(drift)), evolving=evolving, columns=DDL if evolving else "")


def nested(levels: int) -> bytes:
    return b'{"id": 3, "deep": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


@pytest.mark.rule("LOT-34")
@pytest.mark.parametrize("drift", list(Drift))
def test_a_record_that_cannot_be_stored_is_quarantined_and_the_others_are_converted(drift: Drift) -> None:
    parsed = parse_texts(
        drift,
        b'{"id": 1, "name": "\\ud83d\\ude00"}',
        b'{"id": 2, "name": "\\ud800"}',
        b'{"id": 2, "new": {"a": ["\\udfff"]}}',
        b'{"id": 2, "\\ud800": 1}',
        nested(MOST_LEVELS + 1),
        nested(900),
        b'{"id": 2, "name": "\xed\xa0\x80"}',
    )
    assert parsed.rows.column("name").to_pylist() == ["\U0001f600"]
    assert parsed.bad.column("line").to_pylist() == [1, 2, 3, 4, 5, 6]
    errors = parsed.bad.column("error").to_pylist()
    assert errors[0] == r"the text '\ud800' has half of a surrogate pair at character 1"
    assert errors[3] == "the record is nested more than 100 levels deep"
    assert parsed.columns == ""


def test_nesting_up_to_the_limit_is_stored() -> None:
    for drift in (Drift.RESCUE, Drift.EVOLVE):
        full = b'{"id": 3, "deep": ' + b'[{"a": ' * 49 + b"1" + b"}]" * 49 + b"}"
        parsed = parse_texts(drift, nested(MOST_LEVELS), full)
        assert (parsed.rows.num_rows, parsed.bad.num_rows) == (2, 0)
        pq.write_table(parsed.rows, sink := io.BytesIO())
        assert pq.read_table(sink).num_rows == 2, "Arrow reads no file that is nested more deeply"


@pytest.mark.rule("LOT-34")
def test_objects_that_no_file_can_hold_become_text_columns() -> None:
    parsed = parse_texts(Drift.EVOLVE, b'{"e": {}, "in": [{}], "twice": {"a": 1, "A": 2}, "no": {"": 1}}')
    assert parsed.columns == f"{DDL}, e string, in string, twice string, no string"
    assert parsed.rows.to_pylist()[0]["twice"] == '{"a": 1, "A": 2}'


@pytest.mark.rule("LOT-34")
def test_a_record_with_too_many_new_columns_is_quarantined_and_adds_none() -> None:
    wide = json.dumps({"id": 2, **{f"column_{number:06}": 1 for number in range(4000)}}).encode()
    deep = json.dumps({"id": 3, "new": {f"field_{number:06}": 1 for number in range(4000)}}).encode()
    parsed = parse_texts(Drift.EVOLVE, b'{"id": 1, "n": 1}', wide, b'{"id": 4, "m": 1, "n": 2}', deep)
    assert parsed.columns == f"{DDL}, n bigint, m bigint"
    assert parsed.rows.column("id").to_pylist() == [1, 4]
    assert parsed.bad.column("line").to_pylist() == [1, 3]
    assert all("cannot be added to" in error for error in parsed.bad.column("error").to_pylist())
    assert "4,000 new columns" in parsed.bad.column("error").to_pylist()[0]


def test_columns_of_files_stop_at_the_limit_of_a_dataset() -> None:
    new = [schema.Column(f"column_{number:06}", schema.Simple("string")) for number in range(4000)]
    grown = added(schema.parse(DDL), new)
    assert MOST_SCHEMA_BYTES - 30 < len(str(grown)) <= MOST_SCHEMA_BYTES


def test_an_arrow_value_that_python_does_not_have_is_refused() -> None:
    late = pa.table({"id": [1], "name": pa.array([2**62], pa.timestamp("us", "UTC"))})
    with pytest.raises(AppendRefused, match="out of range"):
        convert_rows(Drift.RESCUE, late)


@pytest.mark.parametrize(
    "text",
    [b"[]", b" [ ] ", b"{}", b"5", b'[1, "a,]", [2], {"a": [3]}]', "[1]".encode("utf-16"), b"[1\n,2 ]\n"],
    ids=repr,
)
def test_the_items_of_a_json_body_keep_their_text(text: bytes) -> None:
    value = json.loads(text)
    assert [json.loads(item) for item in split_items(text)] == (value if isinstance(value, list) else [value])


def test_an_item_of_any_depth_or_length_is_split_from_the_others() -> None:
    deep = b'["]\\"",' * 3000 + b"1" + b"]" * 3000
    long = b'{"a": %s}' % (b"9" * 5000)
    assert split_items(b"[1, %s , %s]" % (deep, long)) == [b"1", deep, long]
    parsed = parse_texts(Drift.RESCUE, *split_items(b'[{"id": 1}, {"x": %s}, %s]' % (deep, long)))
    assert (parsed.rows.num_rows, parsed.bad.num_rows) == (1, 2)
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        split_items(b"[1, %s" % deep[:-1])


@pytest.mark.parametrize(
    "text", [b"", b" ", b"[", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1] 2", b"[1 2]", b"{} {}", b"\xff"]
)
def test_a_body_that_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra data|decode"):
        split_items(text)


@pytest.mark.parametrize("source", [tm.http_push(), tm.http_poll("http://127.0.0.1/x"), tm.kafka("h:1", "t")])
@pytest.mark.parametrize("ddl", ["v VARIANT", "v INTERVAL YEAR TO MONTH", "v ARRAY<STRUCT<x: VARIANT>>"])
def test_types_that_only_spark_can_write_are_refused_when_the_source_is_planned(
    source: Source, ddl: str
) -> None:
    def target(columns: str) -> SourceTarget:
        row = DatasetRow(name="orders", schema=columns)
        return SourceTarget(pipeline="shop", dataset=row, schema=columns, where="here")

    source.check(target("v STRING, t TIME, i INTERVAL DAY TO SECOND"))
    with pytest.raises(BadSource, match=r"orders: column .* only Spark can write") as refused:
        source.check(target(ddl))
    assert "declare the column as STRING" in refused.value.hint
