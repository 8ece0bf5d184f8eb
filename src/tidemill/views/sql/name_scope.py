"""Name scope: the columns of a FROM clause by qualifier and name, with their positions in an operator."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidemill.views.circuit.operators import Operator


@dataclass(frozen=True)
class NamedColumn:
    """A column with its name. If USING hides it (`shown` is False), the qualifier is required."""

    qualifier: str | None
    name: str | None
    index: int
    shown: bool = True


@dataclass(frozen=True)
class Relation:
    """An operator and the names of its columns; None for a column without a name."""

    operator: Operator
    names: tuple[str | None, ...]


@dataclass(frozen=True)
class NameScope:
    """The columns that expressions can name, in the order of `SELECT *`."""

    columns: tuple[NamedColumn, ...] = ()
    case_sensitive: bool = False

    @staticmethod
    def of(relation: Relation, qualifier: str | None, case_sensitive: bool = False) -> "NameScope":
        return NameScope(
            tuple(NamedColumn(qualifier, name, i) for i, name in enumerate(relation.names)), case_sensitive
        )

    def combined_with(self, other: "NameScope", width: int) -> "NameScope":
        """Append the columns of another scope; their positions start at `width`."""
        moved = tuple(replace(column, index=column.index + width) for column in other.columns)
        return NameScope(self.columns + moved, self.case_sensitive)

    def same_name(self, name: str | None, other: str) -> bool:
        if name is None:
            return False
        return name == other if self.case_sensitive else name.lower() == other.lower()

    def resolve(self, parts: Sequence[str]) -> tuple[list[NamedColumn], int]:
        """Find the columns that a dotted name can mean, and how many of its parts name the column.

        The remaining parts are fields of a struct.
        """
        if len(parts) > 1:
            qualified = [
                column
                for column in self.columns
                if self.same_name(column.qualifier, parts[0]) and self.same_name(column.name, parts[1])
            ]
            if qualified:
                return distinct_columns(qualified), 2
        unqualified = [
            column for column in self.columns if column.shown and self.same_name(column.name, parts[0])
        ]
        return distinct_columns(unqualified), 1

    def star(self, qualifier: str | None = None) -> list[NamedColumn]:
        """List the columns of a star. `t.*` includes the hidden columns of t, at their original positions."""
        if qualifier is None:
            return [column for column in self.columns if column.shown]
        columns = [column for column in self.columns if self.same_name(column.qualifier, qualifier)]
        return sorted(columns, key=lambda column: column.index)

    def qualifiers(self) -> list[str]:
        return list(dict.fromkeys(c.qualifier for c in self.columns if c.qualifier is not None))

    def names(self) -> list[str]:
        return [column.name for column in self.columns if column.name is not None]


def distinct_columns(columns: Iterable[NamedColumn]) -> list[NamedColumn]:
    """Remove duplicates: columns with the same position are the same column."""
    return list({column.index: column for column in columns}.values())
