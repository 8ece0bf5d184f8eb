"""What views do with each of Spark's types (DBSP-21): carry it, key by it, order by it, add it up.

How a value is taken:

native    the value itself, as Spark's own operators take it
encoded   through a form that makes equal values equal: floats with one zero and one NaN, maps as entries in
          the order of their keys, nested values with what is NULL in them and their lengths
refused   with the reason; what plain Spark refuses is refused

Where it is computed is the rung (`circuit.rungs`): kernels over traces, Spark for the keys that changed, or
Spark for everything. Nobody else decides what is kept and what is traced: `rows.check_columns` asks `unkept`,
`arrow.arrow_of` asks `untraced`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tidemill.spark.schema import Array, Map, Simple, Struct, Type
from tidemill.views.circuit.rungs import Rung


class How(Enum):
    """What becomes of a type in a role."""

    NATIVE = "native"
    ENCODED = "encoded"
    REFUSED = "refused"


class Role(Enum):
    """What a column of the type is used for."""

    PAYLOAD = "payload"
    KEY = "key"
    JOINED = "joined"
    ORDERED = "ordered"
    AGGREGATED = "aggregated"


@dataclass(frozen=True)
class Cell:
    """One place of the table: how, on which rung (None where it is refused), and why so."""

    how: How
    rung: Rung | None = None
    why: str = ""


QUERIES: Mapping[Role, str] = {
    Role.PAYLOAD: "SELECT x.v FROM d x JOIN d y ON x.k = y.k",
    Role.KEY: "SELECT v, count(*) AS n FROM d GROUP BY v",
    Role.JOINED: "SELECT x.k, y.k AS l FROM d x JOIN d y ON x.v = y.v",
    Role.ORDERED: "SELECT k, min(v) AS lo, max(v) AS hi FROM d GROUP BY k",
    Role.AGGREGATED: "SELECT k, sum(v) AS s FROM d GROUP BY k",
}
"""A view of a table of `k INT` and `v` in which `v` has the role."""

TYPES: tuple[str, ...] = (
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(10,2)",
    "DECIMAL(38,0)",
    "DECIMAL(38,18)",
    "STRING",
    "STRING COLLATE UTF8_LCASE",
    "STRING COLLATE UNICODE_CI",
    "CHAR(3)",
    "VARCHAR(5)",
    "BINARY",
    "DATE",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "TIME(6)",
    "INTERVAL YEAR TO MONTH",
    "INTERVAL MONTH",
    "INTERVAL DAY TO SECOND",
    "INTERVAL HOUR",
    "INTERVAL",
    "VARIANT",
    "VOID",
    "GEOMETRY(4326)",
    "GEOGRAPHY(4326)",
    "ARRAY<INT>",
    "ARRAY<DOUBLE>",
    "ARRAY<STRING COLLATE UTF8_LCASE>",
    "STRUCT<f: INT, g: STRING>",
    "MAP<STRING, INT>",
    "ARRAY<MAP<STRING, INT>>",
    "STRUCT<v: VARIANT>",
)
"""Every type of Spark's once, and nested ones with what is special inside."""

_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_FLOATS = frozenset({"float", "double"})
_TEXTS = frozenset({"string", "char", "varchar"})
_TRACED = frozenset({"boolean", "decimal", "binary", "date", "timestamp", "timestamp_ntz"})
_UNKEPT: Mapping[str, str] = {
    "void": "of no type (void), which no file can hold",
    "interval": "an interval of months, days and time at once, which no file can hold",
    "variant": "a variant, which Spark does not compare",
    "geometry": "a geometry, which Spark does not compare",
    "geography": "a geography, which Spark does not compare",
}
_SUMS = Cell(How.REFUSED, why="plain Spark adds up numbers, intervals and what it takes for a number")


def unkept(kind: Type) -> str:
    """Why rows with a column of this type can't be kept: it is "…"; empty if they can."""
    match kind:
        case Array():
            return unkept(kind.element)
        case Map():
            return unkept(kind.key) or unkept(kind.value)
        case Struct():
            if not kind.fields:
                return "a struct without fields, which no file can hold"
            return next(filter(None, (unkept(one.type) for one in kind.fields)), "")
        case Simple():
            return _UNKEPT.get(_word(kind), "")


def untraced(kind: Type) -> str:
    """What of a type no kernel takes, so that operators over it are recomputed; empty if kernels take it."""
    match kind:
        case Array():
            return untraced(kind.element)
        case Map():
            return untraced(kind.key) or untraced(kind.value)
        case Struct():
            return next(filter(None, (untraced(one.type) for one in kind.fields)), "")
        case Simple():
            if _collation(kind):
                return f"a text with the collation {_collation(kind)}"
            taken = _TRACED | _WHOLE | _FLOATS | _TEXTS
            return "" if _word(kind) in taken else f"{'an' if kind.name[0] in 'aeiou' else 'a'} {kind.name}"


def cell(kind: Type, role: Role) -> Cell:
    """What becomes of a type in a role."""
    why = unkept(kind)
    if role is Role.AGGREGATED:
        return _added(kind)
    if why and role is not Role.JOINED:
        return Cell(How.REFUSED, why=why)
    if why and _is_void(kind):
        return Cell(How.NATIVE, Rung.FULL, "NULL alone, which equals nothing; no kernel takes a void")
    if why:
        return Cell(How.REFUSED, why="plain Spark does not compare it")
    if role in {Role.ORDERED, Role.JOINED} and _holds_map(kind):
        return Cell(How.REFUSED, why="plain Spark compares no maps, but groups by them")
    how, why = _form(kind)
    if role is Role.PAYLOAD and _collation(kind):
        how, why = How.NATIVE, "as it is written: texts that are equal are still two"
    lost = untraced(kind)
    if lost:
        return Cell(how, Rung.FULL, "; ".join(filter(None, (why, f"no kernel takes {lost}"))))
    if role is Role.ORDERED and isinstance(kind, Array | Struct):
        return Cell(how, Rung.KEYED, f"{why}; min and max of nested values are Spark's")
    return Cell(how, Rung.NATIVE, why)


def _is_void(kind: Type) -> bool:
    return isinstance(kind, Simple) and kind.name == "void"


def _added(kind: Type) -> Cell:
    if isinstance(kind, Array | Map | Struct):
        return _SUMS
    word = _word(kind)
    if word in _WHOLE or word == "decimal":
        return Cell(How.NATIVE, Rung.NATIVE)
    if word in _FLOATS:
        return Cell(How.NATIVE, Rung.NATIVE, "added up exactly, and rounded once")
    if kind.name.startswith("interval "):
        return Cell(How.NATIVE, Rung.FULL, f"no kernel takes {untraced(kind)}")
    if word in _TEXTS:
        said = "Spark takes texts for doubles, and raises where one is no number"
        return Cell(How.NATIVE, Rung.FULL if _collation(kind) else Rung.KEYED, said)
    if word == "timestamp":
        return Cell(How.NATIVE, Rung.KEYED, "Spark takes it for seconds since 1970, a double")
    if _is_void(kind):
        return Cell(How.NATIVE, Rung.FULL, "Spark takes it for a double: the sum is NULL")
    return _SUMS


def _form(kind: Type) -> tuple[How, str]:
    if _holds_map(kind):
        return How.ENCODED, "maps as their entries in the order of their keys"
    if isinstance(kind, Array | Struct):
        return How.ENCODED, "with what is NULL inside, and lengths"
    if _word(kind) in _FLOATS:
        return How.ENCODED, "NaN is equal to itself, -0.0 to 0.0"
    if _collation(kind):
        return How.ENCODED, "equal as the collation compares"
    if _word(kind) in {"char", "varchar"}:
        return How.NATIVE, "a string, once it is read"
    return How.NATIVE, ""


def _word(kind: Type) -> str:
    return kind.name.partition("(")[0].partition(" collate ")[0] if isinstance(kind, Simple) else ""


def _collation(kind: Type) -> str:
    """The collation of a text; empty where that is the order of bytes."""
    found = kind.name.partition(" collate ")[2] if isinstance(kind, Simple) else ""
    return "" if found.upper() == "UTF8_BINARY" else found


def _holds_map(kind: Type) -> bool:
    match kind:
        case Map():
            return True
        case Array():
            return _holds_map(kind.element)
        case Struct():
            return any(_holds_map(one.type) for one in kind.fields)
        case Simple():
            return False
