"""Columns that change: what a dataset may become, and what it may not (LOT-34).

A column may be added, and a type become wider where Spark reads files of the narrower one as the wider one by
itself; everything else would make lots unreadable that are published already. A column that is not declared
any more stays, and is NULL from then on.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from tidemill.errors import DatasetChanged
from tidemill.lots.datasets import Dataset, Drift
from tidemill.schemas.columns import Column, Schema, Simple
from tidemill.schemas.ddl import parse
from tidemill.schemas.type_table import is_wider

RESCUED: Final = "_rescued"
"""The column of what did not fit, under `Drift.RESCUE`."""


def merged(known: Schema, new: Schema) -> tuple[Schema, list[str]]:
    """The columns of both, those that are known first, and what is in the way of it."""
    by_name = {column.name: column for column in new.columns}
    folded = {column.name.casefold(): column.name for column in known.columns}
    columns: list[Column] = []
    problems: list[str] = []
    for column in known.columns:
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


def evolved(known: Dataset, new: Dataset) -> Dataset:
    """The known dataset with the columns of both; `DatasetChanged` says what cannot be."""
    schema, problems = merged(parse(known.schema), parse(new.schema))
    if problems:
        raise DatasetChanged(
            f"dataset {known.id} cannot evolve so: {'; '.join(problems)}",
            hint="columns may be added and types become wider; for anything else declare another version",
        )
    return msgspec.structs.replace(
        known, schema=str(schema), fingerprint=schema.fingerprint, drift=Drift.EVOLVE
    )


def effective(dataset: Dataset) -> Dataset:
    """A declaration in the one spelling that is compared and stored, with the columns that are ours."""
    columns = parse(dataset.schema)
    if dataset.drift is Drift.RESCUE and RESCUED not in columns.names:
        columns = Schema((*columns.columns, Column(RESCUED, Simple("string"))))
    return msgspec.structs.replace(dataset, schema=str(columns), fingerprint=columns.fingerprint)


def added(schema: Schema, found: Sequence[Column]) -> Schema:
    """A schema with columns that were found in files; those whose names nobody could use are left out."""
    taken = {name.casefold() for name in schema.names}
    columns = list(schema.columns)
    for column in found:
        name = column.name.casefold()
        if name in taken or not name or name.startswith("_"):
            continue
        taken.add(name)
        columns.append(Column(column.name, column.type))
    return Schema(tuple(columns))
