"""Schemas without Spark: DDL, Arrow types, and errors that point at the text."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import BadSchema
from tidemill.schemas.columns import Array, Column, Map, Schema, Simple, Struct, Type, quoted
from tidemill.spark.ingest.formats import Format, why_not_read
from tidemill.spark.schema import of_arrow, of_spark, parse, to_arrow, to_spark

WORDS = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date"]
MORE = ["timestamp", "timestamp_ntz", "variant", "void", "char(3)", "varchar(255)", "time(0)", "time(6)"]
MOST = ["interval day to second", "interval year", "interval", "string collate UNICODE_CI", "decimal(38,38)"]
SIMPLE = st.sampled_from([*WORDS, *MORE, *MOST]).map(Simple)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


def columns(types: st.SearchStrategy[Type]) -> st.SearchStrategy[tuple[Column, ...]]:
    column = st.builds(Column, NAMES, types, st.booleans(), st.text(st.characters(codec="utf-8"), max_size=5))
    return st.lists(column, min_size=1, max_size=4, unique_by=lambda c: c.name.lower()).map(tuple)


TYPES: st.SearchStrategy[Type] = st.recursive(
    SIMPLE,
    lambda inner: st.builds(Array, inner) | st.builds(Map, inner, inner) | st.builds(Struct, columns(inner)),
    max_leaves=5,
)
SCHEMAS = st.builds(Schema, columns(TYPES))


@given(SCHEMAS)
def test_a_schema_is_restored_from_its_text_and_from_sparks_types(schema: Schema) -> None:
    assert parse(str(schema)) == schema
    assert of_spark(to_spark(schema)) == schema


def test_spellings_of_one_schema_have_one_fingerprint() -> None:
    schema = parse("id BIGINT, s STRUCT<a: INT, b: DEC(10)> NOT NULL, t TIMESTAMP_LTZ")
    for text in (
        "`id`  long,\n s struct<a integer COMMENT 'x', b numeric(10,0)> not null comment 'y',t timestamp--",
        "/* all */ struct<id:bigint, s:struct<a:int,b:decimal>not null, t:timestamp>",
    ):
        assert parse(text).fingerprint == schema.fingerprint
    for text in (
        "id BIGINT, s STRUCT<a: INT, b: DEC(10)>, t TIMESTAMP",
        "id BIGINT, s STRUCT<a: INT, b: DEC(11)> NOT NULL, t TIMESTAMP",
        "ID BIGINT, s STRUCT<a: INT, b: DEC(10)> NOT NULL, t TIMESTAMP",
        "id BIGINT, t TIMESTAMP, s STRUCT<a: INT, b: DEC(10)> NOT NULL",
    ):
        assert parse(text).fingerprint != schema.fingerprint


def test_a_file_stores_neither_not_null_nor_the_length_of_a_string() -> None:
    strict = parse("a VARCHAR(3) NOT NULL, s STRUCT<b: INT NOT NULL> NOT NULL COMMENT 'kept'")
    assert str(strict.stored()) == "a string, s struct<b: int> COMMENT 'kept'"
    assert strict.names == ("a", "s")


@pytest.mark.parametrize("name", ["id", "a b", "`", "a``b", "été", "1a", "select", "a.b", 'q"', "x'y", "=/%"])
def test_names_of_any_kind_survive_quoting(name: str) -> None:
    assert parse(f"{quoted(name)} INT").names == (name,)


@pytest.mark.parametrize(
    ("text", "why", "mark"),
    [
        ("id BIGIN", "'BIGIN' is not a type", "BIGIN"),
        ("id BIGINT name STRING", "expected ',' or the end", "name"),
        ("a ARRAY<INT", "expected '>'", None),
        ("a MAP<INT>", "expected ','", ">"),
        ("id", "expected a type", None),
        ("id INT,", "expected a column name", None),
        ("id INT NOT", "expected NOT NULL", None),
        ("a DECIMAL(50,2)", "precision <= 38", "DECIMAL"),
        ("a DECIMAL(x)", "expected a number", "x"),
        ("a-b INT", "backquotes", "-"),
        ("été INT", "backquotes", "é"),
        ("`` INT", "has no name", "`"),
        ("a INT COMMENT b", "in quotes", "b"),
        ("a INTERVAL DAY TO YEAR", "an interval cannot go from day to 'YEAR'", "YEAR"),
        ("a TIME(9)", "the maximum is 6", "9"),
        ("a STRING,\n\n b FOO", "line 3", "FOO"),
    ],
)
def test_an_error_marks_its_place_in_the_text(text: str, why: str, mark: str | None) -> None:
    with pytest.raises(BadSchema) as caught:
        parse(text)
    message, shown, arrow = caught.value.message.split("\n")
    assert why in message
    assert shown[arrow.index("^") :].startswith(mark or "")
    assert mark or len(arrow) == len(shown) + 1


def test_columns_that_spark_cannot_distinguish_are_refused() -> None:
    for text, why in [
        ("a INT, A INT", "'a' and 'A' have the same name"),
        ("a INT, a INT", "two columns are called 'a'"),
        ("s STRUCT<x: INT, X: INT>", "'x' and 'X' have the same name"),
        ("", "has no columns"),
    ]:
        with pytest.raises(BadSchema, match=why):
            parse(text)


def test_arrow_types_hold_the_declared_values() -> None:
    schema = parse(
        "a BIGINT NOT NULL, b DECIMAL(10,2), c TIMESTAMP, d TIMESTAMP_NTZ, e ARRAY<STRUCT<x: DATE>>,"
        " f MAP<STRING, DOUBLE>, g VARCHAR(3), h BINARY, i INTERVAL DAY TO SECOND, j TIME(3)"
    )
    arrow = to_arrow(schema)
    assert arrow.field("a") == pa.field("a", pa.int64(), nullable=False)
    assert arrow.field("c").type == pa.timestamp("us", "UTC")
    assert arrow.field("e").type.value_type == pa.struct([pa.field("x", pa.date32())])
    again = of_arrow(arrow)
    assert str(again) == str(schema).replace("varchar(3)", "string").replace("time(3)", "time(6)")
    with pytest.raises(BadSchema, match="'v' has the type variant, which only Spark can write"):
        to_arrow(parse("v VARIANT"))


def test_arrow_types_that_spark_lacks_are_widened_or_refused() -> None:
    arrow = pa.schema(
        {
            "a": pa.uint64(),
            "b": pa.uint32(),
            "c": pa.large_list(pa.dictionary(pa.int8(), pa.large_string())),
            "d": pa.timestamp("ns", "Europe/Berlin"),
            "e": pa.date64(),
        }
    )
    assert str(of_arrow(arrow)) == "a decimal(20,0), b bigint, c array<string>, d timestamp, e date"
    with pytest.raises(BadSchema, match=r"'s\.x' has the Arrow type decimal256"):
        of_arrow(pa.schema({"s": pa.struct({"x": pa.decimal256(50, 2)})}))


def test_texts_of_limited_length_are_plain_texts_in_a_frame() -> None:
    strict = parse(
        "a CHAR(3) NOT NULL COMMENT 'kept', s STRUCT<b: ARRAY<VARCHAR(5)> NOT NULL>, m MAP<CHAR(1),INT>"
    )
    assert str(strict.unlimited()) == (
        "a string NOT NULL COMMENT 'kept', s struct<b: array<string> NOT NULL>, m map<string,int>"
    )


@pytest.mark.parametrize(
    ("file_format", "column_type", "is_read"),
    [
        ("json", "MAP<STRING,INT>", True),
        ("json", "ARRAY<STRUCT<a: MAP<INT,INT>>>", False),
        ("json", "MAP<STRING,MAP<DATE,INT>>", False),
        ("csv", "ARRAY<INT>", False),
        ("csv", "DECIMAL(10,2)", True),
        ("parquet", "MAP<INT,ARRAY<INT>>", True),
    ],
)
def test_which_types_files_of_a_format_can_have(file_format: str, column_type: str, is_read: bool) -> None:
    (column,) = parse(f"c {column_type}").columns
    assert (why_not_read(Format(file_format), column.type) == "") is is_read
