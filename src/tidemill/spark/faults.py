"""What is wrong with a record: as expressions of Spark, for many records at once."""

from functools import reduce
from typing import TYPE_CHECKING, Final

from tidemill.spark.formats import Format, Reading

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

CORRUPT: Final = "_tidemill_corrupt"
_MOST_COLUMNS = 40
"""More columns than that are not tried one by one."""

_STRINGS: Final = r'"(?:\\.|[^"\\])*"'
_BEHIND: Final = r"\}\s*[^\s,\]\}]"
"""Outside of texts, a closing brace is followed by , ] } or nothing."""


def named(name: str) -> str:
    """A column's name in an expression."""
    return f"`{name.replace('`', '``')}`"


def json_options(reading: Reading) -> dict[str, str]:
    """Of Spark's reader of JSON, and of `from_json`."""
    return {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **_times(reading)}


def csv_options(reading: Reading) -> dict[str, str]:
    """Of Spark's reader of CSV, and of `from_csv`."""
    return {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
        "columnPruning": "false",
        "header": "true" if reading.header else "false",
        "sep": reading.separator,
        "quote": reading.quote,
        "escape": reading.escape,
        "nullValue": reading.null,
        "multiLine": "true" if reading.multiline else "false",
        **_times(reading),
    }


def _times(reading: Reading) -> dict[str, str]:
    found = {"dateFormat": reading.date_format, "timestampFormat": reading.timestamp_format}
    return {name: value for name, value in found.items() if value}


def is_wrong_json(text: "Column") -> "Column":
    """Is there anything behind the object on this line? Spark's reader stops at its end and does not look.

    Nearly all lines pass the first two tests, which are cheap; texts are taken out for the others only.
    """
    from pyspark.sql import functions as sf

    plain = sf.regexp_replace(text, _STRINGS, '""')
    behind = sf.when(text.rlike(_BEHIND), plain.rlike(_BEHIND)).otherwise(sf.expr("false"))
    return ~sf.endswith(sf.rtrim(text), sf.lit("}")) | behind


def what_is_wrong(text: "Column", schema: "StructType", reading: Reading) -> "Column":
    """Why a record that is known to be wrong is wrong, for people."""
    from pyspark.sql import functions as sf

    if reading.format is Format.TEXT:
        return sf.lit("it is not UTF-8")
    if reading.format is Format.CSV:
        whole = sf.from_csv(text, _ddl(schema, set()), csv_options(reading))
        reasons = [(whole.getField(CORRUPT).isNotNull(), sf.lit(f"it has not {len(schema)} columns"))]
    else:
        reasons = [
            (~sf.is_valid_utf8(text), sf.lit("it is not UTF-8")),
            (sf.try_parse_json(text).isNull(), sf.lit("it is not JSON")),
            (~sf.startswith(sf.ltrim(text), sf.lit("{")), sf.lit("it is no JSON object")),
            (is_wrong_json(text), sf.lit("there is something behind the object")),
        ]
    otherwise = sf.concat(sf.lit("these columns do not fit: "), _misfits(text, schema, reading))
    return reduce(lambda rest, case: sf.when(case[0], case[1]).otherwise(rest), reversed(reasons), otherwise)


def _misfits(text: "Column", schema: "StructType", reading: Reading) -> "Column":
    from pyspark.sql import functions as sf

    found = []
    for field in schema.fields[:_MOST_COLUMNS]:
        if reading.format is Format.CSV:
            parsed = sf.from_csv(text, _ddl(schema, {field.name}), csv_options(reading))
        else:
            columns = f"{named(field.name)} {field.dataType.simpleString()}, {CORRUPT} STRING"
            parsed = sf.from_json(text, columns, json_options(reading))
        label = f"{field.name} {field.dataType.simpleString().upper()}"
        found.append(sf.when(parsed.getField(CORRUPT).isNotNull(), sf.lit(label)))
    return sf.concat_ws(", ", *found)


def _ddl(schema: "StructType", typed: set[str]) -> str:
    """The columns as texts, but for some."""
    columns = [
        f"{named(field.name)} {field.dataType.simpleString() if field.name in typed else 'STRING'}"
        for field in schema.fields
    ]
    return ", ".join([*columns, f"{CORRUPT} STRING"])
