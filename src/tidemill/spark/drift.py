"""Schema drift: how the columns of a dataset may change (LOT-34).

A column may be added. A type may be widened if Spark can read existing files as the wider type. Any other
change would make published lots unreadable. A column that is no longer declared stays in the dataset, and is
NULL in later lots.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from tidemill.errors import DatasetChanged
from tidemill.lots.datasets import DatasetRow, Drift
from tidemill.schemas.columns import Array, Column, Map, Schema, Simple, Struct, Type
from tidemill.schemas.ddl import parse
from tidemill.schemas.type_table import is_wider

RESCUED: Final = "_rescued"
"""The column that keeps values that did not fit, under `Drift.RESCUE`."""

MOST_SCHEMA_BYTES: Final = 48 << 10
"""How much text the columns of a dataset may have after it gained some. The store limits the row of a dataset
to 64 KiB."""

VOID: Final = Simple("void")
"""The type of a column that is NULL everywhere."""


def merged(current: Schema, new: Schema) -> tuple[Schema, list[str]]:
    """Merge two schemas, the current columns first; return the result and the problems."""
    by_name = {column.name: column for column in new.columns}
    folded = {column.name.casefold(): column.name for column in current.columns}
    columns: list[Column] = []
    problems: list[str] = []
    for column in current.columns:
        now = by_name.get(column.name)
        if now is None or now.type == column.type or is_wider(now.type, column.type):
            columns.append(column)
        elif is_wider(column.type, now.type):
            columns.append(Column(column.name, now.type, column.nullable, now.comment))
        else:
            problems.append(f"{column.name} was {column.type} and cannot become {now.type}")
    for column in new.columns:
        other = folded.get(column.name.casefold())
        if other == column.name:
            continue
        if other is not None:
            problems.append(f"{column.name} differs from {other} only by its case")
            continue
        folded[column.name.casefold()] = column.name
        columns.append(Column(column.name, column.type, True, column.comment))  # noqa: FBT003 - old lots lack it
    return Schema(tuple(columns)), problems


def evolved(current: DatasetRow, new: DatasetRow) -> DatasetRow:
    """Return the current dataset with the columns of both; raise `DatasetChanged` if they do not fit."""
    schema, problems = merged(parse(current.schema), parse(new.schema))
    if problems:
        raise DatasetChanged(
            f"the columns of dataset {current.id} cannot change in this way: {'; '.join(problems)}",
            hint="only add columns and widen types; for other changes declare a new version: version='2'",
        )
    return msgspec.structs.replace(
        current, schema=str(schema), fingerprint=schema.fingerprint, drift=Drift.EVOLVE
    )


def effective(dataset: DatasetRow) -> DatasetRow:
    """Normalize a declaration, to compare and store it; add `_rescued` if the dataset rescues values."""
    columns = parse(dataset.schema)
    if dataset.drift is Drift.RESCUE and RESCUED not in columns.names:
        columns = Schema((*columns.columns, Column(RESCUED, Simple("string"))))
    return msgspec.structs.replace(dataset, schema=str(columns), fingerprint=columns.fingerprint)


def added(schema: Schema, new: Sequence[Column], *, most_bytes: int | None = MOST_SCHEMA_BYTES) -> Schema:
    """Add columns to a schema; skip names that are in use, empty or reserved.

    - most_bytes: also skip columns that would make the text of the schema longer; None for no limit.
    """
    used = {name.casefold() for name in schema.names}
    columns = list(schema.columns)
    size = len(str(schema).encode())
    for column in new:
        name = column.name.casefold()
        if name in used or not name or name.startswith("_"):
            continue
        size += len(column.text().encode()) + 2
        if most_bytes is not None and size > most_bytes:
            break
        used.add(name)
        columns.append(Column(column.name, column.type))
    return Schema(tuple(columns))


def storable(column_type: Type) -> Type:
    """Return a type that files can hold: VOID (always NULL) and structs without fields become STRING."""
    match column_type:
        case Array():
            return Array(storable(column_type.element))
        case Map():
            return Map(storable(column_type.key), storable(column_type.value))
        case Struct() if not column_type.fields:
            return Simple("string")
        case Struct():
            return Struct(tuple(Column(field.name, storable(field.type)) for field in column_type.fields))
        case Simple():
            return Simple("string") if column_type == VOID else column_type
