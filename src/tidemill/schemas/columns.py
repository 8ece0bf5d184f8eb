"""Columns and their types as values: no Spark and no Arrow needed to know what a table holds.

A simple type is its name in Spark's one short spelling (`bigint`, `decimal(10,2)`, `string collate UNICODE`).
"""

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Final

from tidemill.errors import BadSchema

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Simple:
    """A type without parts."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Array:
    """An array; Spark's text cannot say that elements are never NULL, its frames can."""

    element: "Type"
    nullable: bool = True

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True)
class Map:
    """A map; its keys are never NULL."""

    key: "Type"
    value: "Type"
    nullable: bool = True

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True)
class Struct:
    """A struct."""

    fields: tuple["Column", ...]

    def __str__(self) -> str:
        return f"struct<{','.join(field.text(colon=True) for field in self.fields)}>"


Type = Simple | Array | Map | Struct


@dataclass(frozen=True)
class Column:
    """One column, or one field of a struct."""

    name: str
    type: Type
    nullable: bool = True
    comment: str = ""

    def text(self, *, colon: bool = False, comments: bool = True) -> str:
        """As in a schema's text; fields of a struct have a colon."""
        text = f"{quoted(self.name)}{':' if colon else ''} {self.type}"
        text += "" if self.nullable else " NOT NULL"
        if self.comment and comments:
            text += f" COMMENT '{_escaped(self.comment)}'"
        return text


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order; no two have one name, whatever the case of its letters."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        check_columns(self.columns)

    def __str__(self) -> str:
        return ", ".join(column.text() for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def fingerprint(self) -> str:
        """Equal for equal columns, whatever the blanks, the spelling of types and the comments."""
        return hashlib.sha256(str(_uncommented(Struct(self.columns))).encode()).hexdigest()[:32]

    def stored(self) -> "Schema":
        """The columns as a file has them and Spark reads them: any may be NULL, and no text has a length."""
        struct = _loosened(Struct(self.columns))
        assert isinstance(struct, Struct)
        return Schema(struct.fields)


def quoted(name: str) -> str:
    """A name as it may stand in a schema or in SQL: in back quotes unless it needs none.

    >>> quoted("id"), quoted("a `b`")
    ('id', '`a ``b```')
    """
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


def check_columns(columns: tuple[Column, ...]) -> None:
    """Raise `BadSchema` unless a table or a struct can have these."""
    seen: dict[str, str] = {}
    for column in columns:
        if not column.name:
            raise BadSchema("a column without a name")
        other = seen.get(column.name.lower())
        seen[column.name.lower()] = column.name
        if other is not None:
            raise BadSchema(
                f"two columns are called {column.name!r}"
                if other == column.name
                else f"the columns {other!r} and {column.name!r} are one name to Spark",
                hint="rename one of them",
            )


def _uncommented(kind: Type) -> Type:
    match kind:
        case Simple():
            return kind
        case Array():
            return replace(kind, element=_uncommented(kind.element))
        case Map():
            return replace(kind, key=_uncommented(kind.key), value=_uncommented(kind.value))
        case Struct():
            return Struct(tuple(replace(c, type=_uncommented(c.type), comment="") for c in kind.fields))


def _loosened(kind: Type) -> Type:
    match kind:
        case Simple():
            return Simple("string") if kind.name.startswith(("char(", "varchar(")) else kind
        case Array():
            return Array(_loosened(kind.element))
        case Map():
            return Map(_loosened(kind.key), _loosened(kind.value))
        case Struct():
            return Struct(tuple(replace(c, type=_loosened(c.type), nullable=True) for c in kind.fields))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
