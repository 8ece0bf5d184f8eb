"""The table of column types. Each simple Spark type has a row with everything that depends on the type.

To add a type, add a row. The code for schema parsing, files, drift, hashing, views and certification reads
this table. The properties of nested types (arrays, maps, structs) follow from the types inside them.

Kernels and run files need no columns in this table. They work on Arrow arrays, and choose an algorithm by the
layout of an array in memory. So if kernels already support the Arrow type of a new type, they need no change.

The file is long because all types are in one table.
"""

import datetime as dt
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import pyarrow as pa

from tidemill.schemas.columns import Array, Map, Simple, Struct, Type


class Family(Enum):
    """Groups of similar types.

    Within a family, a type that comes later in the table has all values of the earlier types.
    """

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIME = "time"
    INTERVAL = "interval"
    OTHER = "other"


AS_TEXT: Final = "CAST({} AS STRING)"
CAST: Final = "CAST({0} AS {1})"

_START: Final = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
_NAN: Final = float("nan")
_INFINITY: Final = float("inf")


_TEXTS: Final = ("", "a", "b", "A", "x y", "1", "ü", "long " * 40)
_MINUTES: Final = (0, 3, 7, -2, 60, 30 * 60)
"""Timestamps for certification: the first ones are a few minutes apart, the last ones lie on other days."""


def _at(*, minutes: int) -> dt.datetime:
    return _START + dt.timedelta(minutes=minutes)


def _point(x: float, y: float) -> bytes:
    """Encode a point in WKB, the binary format of geometries."""
    return struct.pack("<BIdd", 1, 1, x, y)


@dataclass(frozen=True)
class TypeRow:
    """What Tidemill does with one simple type.

    Args:
        name: Spark's short name, without length, precision or collation.
        spark: the class in `pyspark.sql.types`.
        family: the group of similar types that this type belongs to.
        aliases: other names of the type, which the text of a schema may use.
        arrow: its Arrow type; None if there is none, or if the Arrow type depends on parameters.
        read_from: other Arrow types whose values are read as this type.
        native: whether kernels support this type. Spark recomputes operators over other types.
        not_kept: why views cannot store or compare this type, as text that can follow the words "it is";
            empty if views can.
        hashed: the SQL expression whose value is hashed with `xxhash64`.
        wider: other types that Spark can use to read a file of this type without loss.
        digits: how many digits before the decimal point a DECIMAL needs for every value of this type; 0 if
            no DECIMAL has all its values.
        file_bytes: the approximate size of a value in a file.
        carried: for a type that Spark cannot read from Arrow: the type that is used instead, and the SQL that
            restores the value ({0}: the value, {1}: the type).
        samples: values for certification, including special cases. There are only a few, so that generated
            rows often have equal values.
        extremes: the lowest and highest values, with which arithmetic can overflow. The highest comes last.
    """

    name: str
    spark: str
    family: Family = Family.OTHER
    aliases: tuple[str, ...] = ()
    arrow: pa.DataType | None = None
    read_from: tuple[pa.DataType, ...] = ()
    native: bool = False
    not_kept: str = ""
    hashed: str = "{}"
    wider: tuple[str, ...] = ()
    digits: int = 0
    file_bytes: int = 32
    carried: tuple[str, str] | None = None
    samples: tuple[Any, ...] = (None,)
    extremes: tuple[Any, ...] = ()


_ROWS: Final = (
    TypeRow(
        "boolean",
        "BooleanType",
        Family.BOOLEAN,
        arrow=pa.bool_(),
        native=True,
        file_bytes=1,
        samples=(True, False),
    ),
    TypeRow(
        "tinyint",
        "ByteType",
        Family.INTEGER,
        aliases=("byte",),
        arrow=pa.int8(),
        native=True,
        wider=("smallint", "int", "bigint", "double"),
        digits=10,
        file_bytes=1,
        samples=(0, 1, 2, -1, 3),
        extremes=(-128, 127),
    ),
    TypeRow(
        "smallint",
        "ShortType",
        Family.INTEGER,
        aliases=("short",),
        arrow=pa.int16(),
        read_from=(pa.uint8(),),
        native=True,
        wider=("int", "bigint", "double"),
        digits=10,
        file_bytes=4,
        samples=(0, 1, 2, -1, 3),
        extremes=(-(2**15), 2**15 - 1),
    ),
    TypeRow(
        "int",
        "IntegerType",
        Family.INTEGER,
        aliases=("integer",),
        arrow=pa.int32(),
        read_from=(pa.uint16(),),
        native=True,
        wider=("bigint", "double"),
        digits=10,
        file_bytes=4,
        samples=(0, 1, 2, 3, -1, 5),
        extremes=(-(2**31), 2**31 - 1),
    ),
    TypeRow(
        "bigint",
        "LongType",
        Family.INTEGER,
        aliases=("long",),
        arrow=pa.int64(),
        read_from=(pa.uint32(),),
        native=True,
        digits=20,
        file_bytes=8,
        samples=(0, 1, 2, 3, -1, 5),
        extremes=(-(2**63), 2**63 - 1),
    ),
    TypeRow(
        "float",
        "FloatType",
        Family.FLOAT,
        aliases=("real",),
        arrow=pa.float32(),
        read_from=(pa.float16(),),
        native=True,
        wider=("double",),
        file_bytes=4,
        samples=(0.0, -0.0, 1.5, 2.0, _NAN, -2.5),
        extremes=(_INFINITY, -_INFINITY),
    ),
    TypeRow(
        "double",
        "DoubleType",
        Family.FLOAT,
        arrow=pa.float64(),
        native=True,
        file_bytes=8,
        samples=(0.0, -0.0, 1.5, 2.0, _NAN, -2.5),
        extremes=(_INFINITY, -_INFINITY, 1e300),
    ),
    TypeRow("decimal", "DecimalType", Family.DECIMAL, aliases=("dec", "numeric"), native=True),
    TypeRow(
        "string",
        "StringType",
        Family.TEXT,
        arrow=pa.string(),
        read_from=(pa.large_string(), pa.string_view()),
        native=True,
        file_bytes=16,
        samples=_TEXTS,
    ),
    TypeRow(
        "char",
        "CharType",
        Family.TEXT,
        aliases=("character",),
        native=True,
        samples=_TEXTS,
    ),
    TypeRow("varchar", "VarcharType", Family.TEXT, native=True, samples=_TEXTS),
    TypeRow(
        "binary",
        "BinaryType",
        Family.BINARY,
        arrow=pa.binary(),
        read_from=(pa.large_binary(), pa.binary_view()),
        native=True,
        file_bytes=16,
        samples=(b"", b"\x00", b"a"),
    ),
    TypeRow(
        "date",
        "DateType",
        Family.DATE,
        arrow=pa.date32(),
        read_from=(pa.date64(),),
        native=True,
        wider=("timestamp_ntz",),
        file_bytes=4,
        samples=tuple(_at(minutes=24 * 60 * days).date() for days in (0, 1, 31, -1)),
        extremes=(dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    ),
    TypeRow(
        "timestamp",
        "TimestampType",
        Family.TIMESTAMP,
        aliases=("timestamp_ltz",),
        arrow=pa.timestamp("us", "UTC"),
        native=True,
        file_bytes=8,
        samples=tuple(_at(minutes=minutes) for minutes in _MINUTES),
    ),
    TypeRow(
        "timestamp_ntz",
        "TimestampNTZType",
        Family.TIMESTAMP,
        arrow=pa.timestamp("us"),
        native=True,
        file_bytes=8,
        samples=tuple(_at(minutes=minutes).replace(tzinfo=None) for minutes in _MINUTES),
    ),
    TypeRow(
        "time",
        "TimeType",
        Family.TIME,
        arrow=pa.time64("us"),
        hashed=AS_TEXT,
        carried=("string", CAST),
        samples=(dt.time(0), dt.time(12, 30), dt.time(23, 59, 59)),
    ),
    TypeRow(
        "interval year to month",
        "YearMonthIntervalType",
        Family.INTERVAL,
        carried=("string", CAST),
        samples=("0-0", "1-2", "-0-3"),
    ),
    TypeRow(
        "interval month",
        "YearMonthIntervalType",
        Family.INTERVAL,
        aliases=("interval year",),
        carried=("string", CAST),
        samples=("0", "1", "-3"),
    ),
    TypeRow(
        "interval day to second",
        "DayTimeIntervalType",
        Family.INTERVAL,
        arrow=pa.duration("us"),
        samples=(dt.timedelta(0), dt.timedelta(hours=1), dt.timedelta(days=-1)),
    ),
    TypeRow(
        "interval day",
        "DayTimeIntervalType",
        Family.INTERVAL,
        aliases=("interval hour",),
        carried=("string", CAST),
        samples=("0", "1", "-3"),
    ),
    TypeRow("interval second", "DayTimeIntervalType", Family.INTERVAL, carried=("string", CAST)),
    TypeRow(
        "interval",
        "CalendarIntervalType",
        Family.INTERVAL,
        not_kept="an interval of months, days and time at once, which no file can hold",
        hashed=AS_TEXT,
        carried=("string", CAST),
        samples=("0 days", "1 month", "30 days", "1 month 2 days 3 seconds"),
    ),
    TypeRow(
        "variant",
        "VariantType",
        not_kept="a variant, which Spark does not compare",
        hashed=AS_TEXT,
        carried=("string", "parse_json({0})"),
        samples=("1", "1.0", '"a"', "null", '{"a": 1, "b": [true, null]}', '{"b": [], "a": 2}'),
    ),
    TypeRow(
        "void",
        "NullType",
        arrow=pa.null(),
        not_kept="of no type (void), which no file can hold",
        file_bytes=1,
    ),
    TypeRow(
        "geometry",
        "GeometryType",
        not_kept="a geometry, which Spark does not compare",
        hashed="ST_AsBinary({})",
        carried=("binary", "ST_GeomFromWKB({0}, 4326)"),
        samples=(_point(0.0, 0.0), _point(1.0, 2.0)),
    ),
    TypeRow(
        "geography",
        "GeographyType",
        not_kept="a geography, which Spark does not compare",
        hashed="ST_AsBinary({})",
        carried=("binary", "ST_GeogFromWKB({0})"),
        samples=(_point(0.0, 0.0), _point(1.0, 2.0)),
    ),
)

TYPE_TABLE: Final[Mapping[str, TypeRow]] = {row.name: row for row in _ROWS}
"""Every simple type, by its name."""

UNKNOWN: Final = TypeRow("unknown", "DataType", hashed=AS_TEXT)
"""A type that is not in the table, for example one from a later version of Spark."""

BY_NAME: Final[Mapping[str, TypeRow]] = {name: row for row in _ROWS for name in (row.name, *row.aliases)}
"""Every simple type, by its name and its aliases."""


def row_of(kind: Simple | str) -> TypeRow:
    """Return the row of a simple type. A name may have parameters. Return `UNKNOWN` if there is no row.

    >>> row_of("decimal(10,2)").name, row_of("string collate UNICODE").name, row_of("interval hour").name
    ('decimal', 'string', 'interval day')
    """
    name = kind.name if isinstance(kind, Simple) else kind
    word = name.partition("(")[0].partition(" collate ")[0]
    if word in BY_NAME:
        return BY_NAME[word]
    if word.startswith(("interval year", "interval month")):
        return TYPE_TABLE["interval month"]
    return TYPE_TABLE["interval second"] if word.startswith("interval ") else UNKNOWN


def family_of(kind: Type | str) -> Family:
    """Return the family of a type; `OTHER` for a nested type."""
    return row_of(kind).family if isinstance(kind, Simple | str) else Family.OTHER


def numbers_of(name: str) -> list[int]:
    """Return the numbers in parentheses after a type's name: length, or precision and scale.

    >>> numbers_of("decimal(10,2)"), numbers_of("string")
    ([10, 2], [])
    """
    inside = name.partition("(")[2].removesuffix(")")
    return [int(part) for part in inside.split(",") if part.strip().isdigit()]


def collation_of(kind: Type) -> str:
    """Return the collation of a text type; empty if texts are compared byte by byte."""
    name = kind.name.partition(" collate ")[2] if isinstance(kind, Simple) else ""
    return "" if name.upper() == "UTF8_BINARY" else name


def parts_of(kind: Type) -> tuple[Type, ...]:
    """Return the types inside a nested type; an empty tuple for a simple type."""
    match kind:
        case Simple():
            return ()
        case Array():
            return (kind.element,)
        case Map():
            return (kind.key, kind.value)
        case Struct():
            return tuple(column.type for column in kind.fields)


MOST_FILE_LEVELS: Final = 98
"""How deep the columns of a Parquet file may be nested. Arrow reads no deeper files."""


def file_levels(kind: Type) -> int:
    """Return how deep a column of this type is nested in a Parquet file: an array or a map has two levels."""
    inner = max(map(file_levels, parts_of(kind)), default=0)
    return inner + (2 if isinstance(kind, Array | Map) else 1)


def holds_map(kind: Type) -> bool:
    """Return whether the type is a map or contains one."""
    return isinstance(kind, Map) or any(map(holds_map, parts_of(kind)))


def why_not_kept(kind: Type) -> str:
    """Return why views cannot store this type, as text that can follow "it is"; empty if they can."""
    if isinstance(kind, Struct) and not kind.fields:
        return "a struct without fields, which no file can hold"
    if isinstance(kind, Simple):
        return row_of(kind).not_kept
    return next(filter(None, map(why_not_kept, parts_of(kind))), "")


def why_not_native(kind: Type) -> str:
    """Return the part of the type that no kernel supports; empty if kernels support all of it."""
    if not isinstance(kind, Simple):
        return next(filter(None, map(why_not_native, parts_of(kind))), "")
    if collation_of(kind):
        return f"a text with the collation {collation_of(kind)}"
    return "" if row_of(kind).native else f"{'an' if kind.name[0] in 'aeiou' else 'a'} {kind.name}"


def is_compared_by_spark_only(kind: Type) -> bool:
    """Return whether only Spark can compare values of this type, as for maps and texts with a collation."""
    if isinstance(kind, Simple):
        return " collate " in kind.name.lower()
    return isinstance(kind, Map) or any(map(is_compared_by_spark_only, parts_of(kind)))


def is_wider(old: Type, new: Type) -> bool:
    """Return whether Spark can read files with the old type as the new type without loss.

    A type is not wider than itself.

    >>> is_wider(Simple("int"), Simple("decimal(12,2)")), is_wider(Simple("int"), Simple("int"))
    (True, False)
    """
    if not isinstance(old, Simple) or not isinstance(new, Simple) or old == new:
        return False
    if new.name in row_of(old).wider:
        return True
    if family_of(new) is not Family.DECIMAL:
        return False
    precision, scale = numbers_of(new.name)
    if family_of(old) is Family.DECIMAL:
        old_precision, old_scale = numbers_of(old.name)
        return scale >= old_scale and precision - scale >= old_precision - old_scale
    digits = row_of(old).digits
    return bool(digits) and precision - scale >= digits


def common_type(left: str, right: str) -> str | None:
    """Return the type to which Spark's ANSI mode converts both types to compare them; None if there is none.

    >>> common_type("int", "bigint"), common_type("int", "decimal(10,2)"), common_type("date", "string")
    ('bigint', 'decimal(12,2)', 'date')
    """
    if left == right:
        return left
    families = {family_of(left), family_of(right)}
    if families <= _NUMBERS:
        return _common_number(left, right)
    if "string" in (left, right):
        return _compared_with_text(right if left == "string" else left)
    return _COMMON_TIMES.get(frozenset((left, right)))


_NUMBERS: Final = frozenset({Family.INTEGER, Family.FLOAT, Family.DECIMAL})
_INTEGER_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_MOST_DIGITS: Final = 38
_COMMON_TIMES: Final = {
    frozenset(("date", "timestamp")): "timestamp",
    frozenset(("date", "timestamp_ntz")): "timestamp_ntz",
    frozenset(("timestamp", "timestamp_ntz")): "timestamp",
}


def _common_number(left: str, right: str) -> str:
    families = {family_of(left), family_of(right)}
    if Family.FLOAT in families:
        return "double"
    if families == {Family.INTEGER}:
        return max(left, right, key=list(_INTEGER_DIGITS).index)
    (precision, scale), (other, other_scale) = (
        (_INTEGER_DIGITS[kind], 0) if kind in _INTEGER_DIGITS else numbers_of(kind) for kind in (left, right)
    )
    whole, fraction = max(precision - scale, other - other_scale), max(scale, other_scale)
    fraction = min(fraction, _MOST_DIGITS - whole)  # Spark drops digits after the point
    return f"decimal({whole + fraction},{fraction})"


def _compared_with_text(other: str) -> str | None:
    """Return the type of a comparison with a text, which is cast to it."""
    match family_of(other):
        case Family.INTEGER:
            return "bigint"
        case Family.FLOAT | Family.DECIMAL:
            return "double"
        case _:
            return other if other in {"date", "timestamp", "timestamp_ntz", "boolean", "binary"} else None


def file_bytes(kind: Type) -> int:
    """Return the approximate size of a value in a file."""
    match kind:
        case Array() | Map():
            return 4 * sum(map(file_bytes, parts_of(kind)))
        case Struct():
            return max(1, sum(map(file_bytes, parts_of(kind))))
        case Simple():
            if family_of(kind) is not Family.DECIMAL:
                return row_of(kind).file_bytes
            precision = numbers_of(kind.name)[0]
            return 4 if precision <= 9 else 8 if precision <= 18 else 16
