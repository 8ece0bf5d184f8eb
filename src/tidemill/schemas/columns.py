"""Columns and their types as plain values, independent of Spark and Arrow.

A simple type is represented by its short name in Spark (`bigint`, `decimal(10,2)`, `string collate UNICODE`).
"""

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Final

from tidemill.errors import BadSchema

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Simple:
    """A type that contains no other types, such as `bigint`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Array:
    """An array. A DataFrame can say that the elements are never NULL; the text of a schema cannot."""

    element: "Type"
    nullable: bool = True

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True)
class Map:
    """A map. Keys are never NULL; `nullable` is about the values."""

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
        """Return the column as schema text. Set `colon` for a field of a struct."""
        text = f"{quoted(self.name)}{':' if colon else ''} {self.type}"
        text += "" if self.nullable else " NOT NULL"
        if self.comment and comments:
            text += f" COMMENT '{_escaped(self.comment)}'"
        return text


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order. No two names are equal when upper and lower case are ignored."""

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
        """A hash of the columns that ignores blanks, type aliases and comments."""
        return hashlib.sha256(str(_without_comments(Struct(self.columns))).encode()).hexdigest()[:32]

    def stored(self) -> "Schema":
        """Return the columns with the types that they have in files: nullable, and texts of any length."""
        struct = _nullable(_unlimited(Struct(self.columns)))
        assert isinstance(struct, Struct)
        return Schema(struct.fields)

    def unlimited(self) -> "Schema":
        """Return the columns with texts of any length, because no DataFrame has CHAR or VARCHAR columns."""
        struct = _unlimited(Struct(self.columns))
        assert isinstance(struct, Struct)
        return Schema(struct.fields)


def quoted(name: str) -> str:
    """Quote a name for a schema or SQL with backquotes, if it needs them.

    >>> quoted("id"), quoted("a `b`")
    ('id', '`a ``b```')
    """
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


def check_columns(columns: tuple[Column, ...]) -> None:
    """Raise `BadSchema` unless a table or struct can have these columns."""
    names: dict[str, str] = {}
    for column in columns:
        if not column.name:
            raise BadSchema("a column has no name", hint="add a name to every column")
        other = names.get(column.name.lower())
        names[column.name.lower()] = column.name
        if other is not None:
            raise BadSchema(
                f"two columns are called {column.name!r}"
                if other == column.name
                else f"the columns {other!r} and {column.name!r} have the same name in Spark",
                hint="rename one of them",
            )


def _without_comments(kind: Type) -> Type:
    match kind:
        case Simple():
            return kind
        case Array():
            return replace(kind, element=_without_comments(kind.element))
        case Map():
            return replace(kind, key=_without_comments(kind.key), value=_without_comments(kind.value))
        case Struct():
            return Struct(tuple(replace(c, type=_without_comments(c.type), comment="") for c in kind.fields))


def _unlimited(kind: Type) -> Type:
    match kind:
        case Simple():
            return Simple("string") if kind.name.startswith(("char(", "varchar(")) else kind
        case Array():
            return replace(kind, element=_unlimited(kind.element))
        case Map():
            return replace(kind, key=_unlimited(kind.key), value=_unlimited(kind.value))
        case Struct():
            return Struct(tuple(replace(c, type=_unlimited(c.type)) for c in kind.fields))


def _nullable(kind: Type) -> Type:
    match kind:
        case Simple():
            return kind
        case Array():
            return Array(_nullable(kind.element))
        case Map():
            return Map(_nullable(kind.key), _nullable(kind.value))
        case Struct():
            return Struct(tuple(replace(c, type=_nullable(c.type), nullable=True) for c in kind.fields))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
