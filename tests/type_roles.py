"""How a view handles a column of each type, by the role of the column (DBSP-21).

    payload      a column of rows that are stored, compared and deleted
    key          GROUP BY
    joined       equality between rows
    ordered      min and max
    aggregated   sum

Values are *native*, if a view uses them as they are; *encoded*, if it converts them to a form in which equal
values have equal bytes; or *refused*, if plain Spark refuses them or a view cannot store or compare them.

The facts about types are in `tidemill.schemas.type_table`. docs/reference/types.md is generated from both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tidemill.schemas.columns import Array, Map, Simple, Struct, Type
from tidemill.schemas.type_table import (
    Family,
    collation_of,
    family_of,
    holds_map,
    row_of,
    why_not_kept,
    why_not_native,
)
from tidemill.views.circuit.rungs import Rung


class How(Enum):
    """How a view handles the values of a column."""

    NATIVE = "native"
    ENCODED = "encoded"
    REFUSED = "refused"


class Role(Enum):
    """What a column is used for."""

    PAYLOAD = "payload"
    KEY = "key"
    JOINED = "joined"
    ORDERED = "ordered"
    AGGREGATED = "aggregated"


@dataclass(frozen=True)
class TypeRole:
    """How a view handles a type in a role, with the best rung (None if it is refused) and the reason."""

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
"""A view in which the column `v` has the role. It reads a table `d` of `k INT` and `v`."""

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
"""Every type of Spark, and nested types with the special ones."""

_NO_SUM = TypeRole(
    How.REFUSED, why="plain Spark sums only numbers, intervals and values that it casts to numbers"
)


def role_of(kind: Type, role: Role) -> TypeRole:
    """Return how a view handles a type in a role."""
    why = why_not_kept(kind)
    if role is Role.AGGREGATED:
        return _summed(kind)
    if why and role is not Role.JOINED:
        return TypeRole(How.REFUSED, why=why)
    if why and _is_void(kind):
        return TypeRole(How.NATIVE, Rung.FULL, "only NULL, which equals nothing; no kernel supports void")
    if why:
        return TypeRole(How.REFUSED, why="plain Spark does not compare it")
    if role in {Role.ORDERED, Role.JOINED} and holds_map(kind):
        return TypeRole(How.REFUSED, why="plain Spark cannot compare maps, but can group by them")
    how, why = _form(kind)
    if role is Role.PAYLOAD and collation_of(kind):
        how, why = How.NATIVE, "stored as written: strings that the collation treats as equal stay different"
    not_native = why_not_native(kind)
    if not_native:
        return TypeRole(how, Rung.FULL, "; ".join(filter(None, (why, f"no kernel supports {not_native}"))))
    if role is Role.ORDERED and isinstance(kind, Array | Struct):
        return TypeRole(how, Rung.KEYED, f"{why}; Spark computes min and max of nested values")
    return TypeRole(how, Rung.NATIVE, why)


def _is_void(kind: Type) -> bool:
    return isinstance(kind, Simple) and kind.name == "void"


def _summed(kind: Type) -> TypeRole:
    if isinstance(kind, Array | Map | Struct):
        return _NO_SUM
    match row_of(kind).family:
        case Family.INTEGER | Family.DECIMAL:
            return TypeRole(How.NATIVE, Rung.NATIVE)
        case Family.FLOAT:
            return TypeRole(How.NATIVE, Rung.NATIVE, "summed exactly and rounded once")
        case Family.INTERVAL if not why_not_kept(kind):
            return TypeRole(How.NATIVE, Rung.FULL, f"no kernel supports {why_not_native(kind)}")
        case Family.TEXT:
            rung = Rung.FULL if collation_of(kind) else Rung.KEYED
            why = "Spark casts strings to double, and raises an error for a string that is not a number"
            return TypeRole(How.NATIVE, rung, why)
    if kind.name == "timestamp":
        return TypeRole(How.NATIVE, Rung.KEYED, "Spark casts it to double: seconds since 1970")
    if _is_void(kind):
        return TypeRole(How.NATIVE, Rung.FULL, "Spark casts it to double: the sum is NULL")
    return _NO_SUM


def _form(kind: Type) -> tuple[How, str]:
    if holds_map(kind):
        return How.ENCODED, "maps as entries in the order of their keys"
    if isinstance(kind, Array | Struct):
        return How.ENCODED, "includes the NULLs and lengths inside the value"
    if family_of(kind) is Family.FLOAT:
        return How.ENCODED, "NaN equals itself, -0.0 equals 0.0"
    if collation_of(kind):
        return How.ENCODED, "equal if the collation treats them as equal"
    if isinstance(kind, Simple) and kind.name.startswith(("char(", "varchar(")):
        return How.NATIVE, "a string in queries"
    return How.NATIVE, ""
