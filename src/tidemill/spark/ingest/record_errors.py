"""Build Spark expressions that tell why a record is bad."""

from functools import reduce
from typing import TYPE_CHECKING, Final

from tidemill.spark.ingest.foreign_files import MOST_LINE_BYTES
from tidemill.spark.ingest.formats import Format, FormatOptions
from tidemill.spark.queries import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

CORRUPT: Final = "_tidemill_corrupt"
_MOST_COLUMNS = 40
"""How many columns to test one by one, to find those that do not fit."""

_STRINGS: Final = r'"(?:[^"\\]++|\\.)*+"'
"""Matches a JSON string. The possessive quantifiers keep Java from calling itself once per character: a value
of some thousand characters would overflow the stack, and Java would end."""

_AFTER_BRACE: Final = r"\}\s*[^\s,\]\}]"
"""Matches trailing text. In valid JSON, outside of strings, only , ] } or nothing follows a closing brace."""

_ESCAPED_SURROGATE: Final = r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
HALF_SURROGATE: Final = "a text has half of a surrogate pair, which is not a character"
_ESCAPED_PAIR: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"


def json_options(format_options: FormatOptions) -> dict[str, str]:
    """Return options for Spark's JSON reader and for `from_json`."""
    return {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **_time_formats(format_options)}


def csv_options(format_options: FormatOptions) -> dict[str, str]:
    """Return options for Spark's CSV reader and for `from_csv`."""
    return {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
        "columnPruning": "false",
        "header": "true" if format_options.header else "false",
        "sep": format_options.separator,
        "quote": format_options.quote,
        "escape": format_options.escape,
        "nullValue": format_options.null,
        "multiLine": "true" if format_options.multiline else "false",
        **_time_formats(format_options),
    }


def _time_formats(format_options: FormatOptions) -> dict[str, str]:
    formats = {"dateFormat": format_options.date_format, "timestampFormat": format_options.timestamp_format}
    return {name: value for name, value in formats.items() if value}


def has_trailing_text(text: "Column") -> "Column":
    """Return whether text follows the JSON object on a line. Spark's reader would ignore that text.

    Two cheap tests are enough for nearly all lines. For the other lines, the expression removes all strings
    from the line and tests again.
    """
    from pyspark.sql import functions as sf

    without_strings = sf.regexp_replace(text, _STRINGS, '""')
    trailing = sf.when(text.rlike(_AFTER_BRACE), without_strings.rlike(_AFTER_BRACE)).otherwise(
        sf.expr("false")
    )
    return ~sf.endswith(sf.rtrim(text), sf.lit("}")) | trailing


def has_half_surrogate(text: "Column") -> "Column":
    r"""Return whether a text in a JSON line has the escape of half a surrogate pair, such as `\ud800`.

    This is not a character. Spark would replace it with a question mark. One cheap test is enough for nearly
    all lines. For the other lines, the expression removes escaped backslashes and whole pairs, and tests
    again.
    """
    from pyspark.sql import functions as sf

    unescaped = sf.replace(text, sf.lit("\\\\"), sf.lit(""))
    halves = sf.regexp_replace(unescaped, _ESCAPED_PAIR, "").rlike(_ESCAPED_SURROGATE)
    return sf.when(text.rlike(_ESCAPED_SURROGATE), halves).otherwise(sf.expr("false"))


def error_of(text: "Column", schema: "StructType", format_options: FormatOptions) -> "Column":
    """Return the reason why a record is bad, for people to read."""
    from pyspark.sql import functions as sf

    if format_options.format is Format.TEXT:
        return sf.lit("it is not UTF-8")
    if format_options.format is Format.CSV:
        parsed = sf.from_csv(text, _ddl(schema, set()), csv_options(format_options))
        reasons = [(parsed.getField(CORRUPT).isNotNull(), sf.lit(f"it does not have {len(schema)} columns"))]
    else:
        reasons = [
            (~sf.is_valid_utf8(text), sf.lit("it is not UTF-8")),
            (
                has_half_surrogate(text),
                sf.lit(HALF_SURROGATE),
            ),
            (
                sf.octet_length(text) > MOST_LINE_BYTES,
                sf.concat(sf.lit("it is too large: "), sf.octet_length(text), sf.lit(" bytes")),
            ),
            (sf.try_parse_json(text).isNull(), sf.lit("it is not JSON")),
            (~sf.startswith(sf.ltrim(text), sf.lit("{")), sf.lit("it is not a JSON object")),
            (has_trailing_text(text), sf.lit("there is text after the object")),
        ]
    otherwise = sf.concat(sf.lit("these columns do not fit: "), _misfits(text, schema, format_options))
    return reduce(lambda rest, case: sf.when(case[0], case[1]).otherwise(rest), reversed(reasons), otherwise)


def _misfits(text: "Column", schema: "StructType", format_options: FormatOptions) -> "Column":
    from pyspark.sql import functions as sf

    misfits = []
    for field in schema.fields[:_MOST_COLUMNS]:
        if format_options.format is Format.CSV:
            parsed = sf.from_csv(text, _ddl(schema, {field.name}), csv_options(format_options))
        else:
            columns = f"{quoted(field.name)} {field.dataType.simpleString()}, {CORRUPT} STRING"
            parsed = sf.from_json(text, columns, json_options(format_options))
        label = f"{field.name} {field.dataType.simpleString().upper()}"
        misfits.append(sf.when(parsed.getField(CORRUPT).isNotNull(), sf.lit(label)))
    return sf.concat_ws(", ", *misfits)


def _ddl(schema: "StructType", typed: set[str]) -> str:
    """Return the columns as DDL: those in `typed` with their own types, the others as STRING."""
    columns = [
        f"{quoted(field.name)} {field.dataType.simpleString() if field.name in typed else 'STRING'}"
        for field in schema.fields
    ]
    return ", ".join([*columns, f"{CORRUPT} STRING"])
