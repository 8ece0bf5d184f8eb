"""Schema drift: how the columns of a dataset may change (LOT-34).

A column may be added. A type may be widened if Spark can read existing files as the wider type. Any other
change would make published lots unreadable, or lose columns.

With `Drift.EVOLVE`, sources add columns too. So a declaration with fewer columns or narrower types changes
nothing. A column that it leaves out stays in the dataset, and is NULL in later lots. With the other policies
only declarations change the columns, so a declaration with fewer columns or narrower types is refused.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from tidemill.errors import DatasetChanged
from tidemill.lots.datasets import DatasetRow, Drift
from tidemill.schemas.columns import Array, Column, Map, Schema, Simple, Struct, Type
from tidemill.schemas.ddl import parse
from tidemill.schemas.type_table import MOST_FILE_LEVELS, file_levels, is_wider

RESCUED: Final = "_rescued"
"""The column that keeps values that did not fit, under `Drift.RESCUE`."""

MOST_SCHEMA_BYTES: Final = 48 << 10
"""How many bytes the text of a schema may have after columns are added. The store limits the row of a dataset
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
    """Add the columns of a new declaration to the current dataset, and apply the new drift policy.

    Raise `DatasetChanged` if the columns cannot change in this way.
    """
    before, after = parse(current.schema), parse(new.schema)
    schema, problems = merged(before, after)
    if new.drift is not Drift.EVOLVE:
        problems += _lost(before, after)
    if problems:
        raise DatasetChanged(
            f"the columns of dataset {current.id} cannot change in this way: {'; '.join(problems)}"
        )
    return msgspec.structs.replace(
        current, schema=str(schema), fingerprint=schema.fingerprint, drift=new.drift
    )


def _lost(current: Schema, new: Schema) -> list[str]:
    """List the changes that a declaration must not make, such as a missing column or a narrower type."""
    before = {column.name: column for column in current.columns}
    after = {column.name: column for column in new.columns}
    problems = [f"column {name} is no longer declared" for name in before if name not in after]
    for name, column in after.items():
        old = before.get(name)
        if old is None:
            if not column.nullable:
                problems.append(f"column {name} is NOT NULL, but existing lots have no value for it")
        elif is_wider(column.type, old.type):
            problems.append(f"{name} was {old.type} and cannot become {column.type}")
        elif column.nullable is not old.nullable:
            kinds = {True: "nullable", False: "NOT NULL"}
            problems.append(f"{name} was {kinds[old.nullable]} and cannot become {kinds[column.nullable]}")
    return problems


def effective(dataset: DatasetRow) -> DatasetRow:
    """Normalize a declaration before it is compared or stored; add `_rescued` for `Drift.RESCUE`."""
    columns = parse(dataset.schema)
    if dataset.drift is Drift.RESCUE and RESCUED not in columns.names:
        columns = Schema((*columns.columns, Column(RESCUED, Simple("string"))))
    return msgspec.structs.replace(dataset, schema=str(columns), fingerprint=columns.fingerprint)


def added(schema: Schema, new: Sequence[Column], *, most_bytes: int | None = MOST_SCHEMA_BYTES) -> Schema:
    """Add columns to a schema; skip names that are in use, empty or reserved.

    - most_bytes: skip columns that would make the text of the schema longer than this; None for no limit.
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
    """Return a type that files can store.

    VOID (always NULL), structs without fields, and types that are nested too deeply become STRING.
    """
    return Simple("string") if file_levels(column_type) > MOST_FILE_LEVELS else _storable(column_type)


def _storable(column_type: Type) -> Type:
    match column_type:
        case Array():
            return Array(_storable(column_type.element))
        case Map():
            return Map(_storable(column_type.key), _storable(column_type.value))
        case Struct() if not column_type.fields:
            return Simple("string")
        case Struct():
            return Struct(tuple(Column(field.name, _storable(field.type)) for field in column_type.fields))
        case Simple():
            return Simple("string") if column_type == VOID else column_type
