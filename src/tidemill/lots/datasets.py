"""Datasets: the stored declaration of each dataset (LOT-1, LOT-4, LOT-41).

Every process that imports the pipeline declares its datasets, so repeating an equal declaration changes
nothing. A different declaration is refused with a list of differences, because published lots follow the
first declaration. Only two things may change: `drift`, and the columns, as long as old lots can be read with
the new columns. So a column may be added, and a type may become wider. The store keeps the earlier columns
under their revision number (LOT-34).
"""

import hashlib
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

import msgspec

from tidemill.errors import BadDataset, BadLotId, DatasetChanged, DatasetUnknown
from tidemill.lots import ids, layout
from tidemill.lots.ids import AnyLotId, AppendId, Unit
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx


class Kind(StrEnum):
    """What the lots of a dataset contain."""

    ROWS = "rows"  # rows of the table
    CHANGES = "changes"  # inserted and deleted rows, each with its weight
    KEYED = "keyed"  # upserts and deletions by key, as received (LOT-40)


class Drift(StrEnum):
    """What to do with data that does not fit the declared columns (LOT-34)."""

    FREEZE = "freeze"  # drop and count unknown columns, quarantine records that do not fit
    EVOLVE = "evolve"  # add new columns, widen types
    RESCUE = "rescue"  # keep what does not fit as JSON, in a separate column


class DatasetRow(msgspec.Struct, frozen=True, kw_only=True):
    """The stored declaration of a dataset.

    - unit: the length of its intervals; None for one lot per append.
    - key: the key columns of a keyed dataset.
    - order_by: in a keyed dataset, the columns that decide which of two writes with the same key is newer.
      Without these columns, or if their values are equal, the later write wins (LOT-40).
    - deletes: whether producers may delete rows. Datasets are append-only by default (LOT-41).
    - schema: the text that the user wrote. To compare two schemas, their fingerprints are compared.
    - drift: what to do with data that does not fit the columns.
    - revision: how often its columns have changed.
    """

    name: str
    version: str = "1"
    unit: Unit | None = None
    kind: Kind = Kind.ROWS
    key: tuple[str, ...] = ()
    deletes: bool = False
    schema: str = ""
    fingerprint: str = ""
    drift: Drift = Drift.FREEZE
    revision: int = 0
    order_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        layout.quote(self.name)  # raises BadName
        layout.quote(self.version)
        if (self.kind is Kind.KEYED) != bool(self.key):
            raise BadDataset(
                f"{self.name!r} has kind {self.kind.value!r} and key {self.key}, which cannot be combined",
                hint="use kind 'keyed' with key columns, or another kind without a key",
            )
        if self.kind is Kind.KEYED and not self.deletes:
            raise BadDataset(
                f"{self.name!r} has kind 'keyed', but does not allow deletes",
                hint="set deletes=True for kind 'keyed'",
            )
        if self.kind is Kind.ROWS and self.deletes:
            raise BadDataset(
                f"{self.name!r} allows deletes, but has kind 'rows'",
                hint="use kind 'changes', or kind 'keyed' with a key",
            )
        if self.order_by and not self.key:
            raise BadDataset(
                f"{self.name!r} has order_by={', '.join(self.order_by)} but no key",
                hint="declare a key, or omit order_by (it selects the newest row of each key)",
            )
        for parameter, names in (("key", self.key), ("order_by", self.order_by)):
            repeated = [name for number, name in enumerate(names) if name in names[:number]]
            if repeated:
                raise BadDataset(
                    f"{self.name!r} lists column {repeated[0]} twice in {parameter}", hint="list it once"
                )
        both = [name for name in self.order_by if name in self.key]
        if both:
            raise BadDataset(
                f"{self.name!r} lists column {both[0]} in key and in order_by",
                hint="use a time or version column in order_by; a key column is the same in all writes of"
                " a row, so it cannot order them",
            )

    @property
    def id(self) -> DatasetId:
        return DatasetId(self.name, self.version)

    def parse_lot(self, text: str) -> AnyLotId:
        """Parse the id of a lot in this dataset; raise `BadLotId` if the id has a different unit."""
        lot = ids.parse(text)
        unit = None if isinstance(lot, AppendId) else lot.unit
        if unit != self.unit:
            expected = "an append" if self.unit is None else f"an interval of {self.unit}"
            raise BadLotId(
                f"{text} is not a valid lot id for {self.name!r}", hint=f"use the id of {expected}"
            )
        return lot


_decoder = msgspec.msgpack.Decoder(DatasetRow)


def fingerprint(schema: str) -> str:
    """Hash the text of a schema, ignoring extra blanks; used when the schema was not parsed."""
    return hashlib.sha256(" ".join(schema.split()).encode()).hexdigest()[:32]


Evolve: TypeAlias = Callable[[DatasetRow, DatasetRow], DatasetRow]
"""Takes the stored and the newly declared dataset; returns the stored one with the new columns and drift.

It raises `DatasetChanged` if the columns cannot be combined. The caller passes this function in, because this
package does not parse columns.
"""


def declare(tx: Tx, keys: LotKeys, dataset: DatasetRow, evolve: Evolve | None = None) -> DatasetRow:
    """Store a dataset's declaration and return what is stored.

    If an earlier declaration is stored, the two are combined. Raise `DatasetChanged` if they contradict each
    other.

    - evolve: combines the columns of both declarations. Without it, their columns must be equal.
    """
    if not dataset.fingerprint:
        dataset = msgspec.structs.replace(dataset, fingerprint=fingerprint(dataset.schema))
    key = keys.dataset[dataset.id.parts]
    raw = tx.get(key)
    if raw is None:
        refuse_dropped(tx, keys, dataset.id)
        tx.set(key, msgspec.msgpack.encode(dataset))
        return dataset
    stored = _decoder.decode(raw)
    return _revise(tx, keys, stored, combine(stored, dataset, evolve))


def refuse_dropped(tx: Tx, keys: LotKeys, dataset: DatasetId) -> None:
    """Raise `DatasetChanged` if a dataset with this name and version was dropped."""
    if tx.get(keys.dropped[dataset.parts]) is not None:
        raise DatasetChanged(
            f"dataset {dataset} was dropped, so its name and version cannot be used again",
            hint="use another name; if you declare the table with dataset(), you can set another version"
            " instead, such as version='2'",
        )


def drop(tx: Tx, keys: LotKeys, dataset: DatasetId) -> None:
    """Delete a declaration, and record that the dataset was dropped. Its lots cannot be read any more."""
    tx.clear(keys.dataset[dataset.parts])
    tx.set(keys.dropped[dataset.parts], msgspec.msgpack.encode(tx.now()), quiet=True)


def dropped(tx: Tx, keys: LotKeys, limit: int = 1000) -> dict[DatasetId, int]:
    """Return the dropped datasets whose files and rows are not deleted yet, with the times of the drops."""
    datasets = {}
    for row in tx.range(*keys.dropped.all(), limit=limit, snapshot=True):
        name, version = keys.dropped.unpack(row.key)
        if at := msgspec.msgpack.decode(row.value, type=int):
            datasets[DatasetId(str(name), str(version))] = at
    return datasets


def forget_dropped(tx: Tx, keys: LotKeys, dataset: DatasetId) -> None:
    """Record that all files and rows of a dropped dataset are deleted."""
    tx.set(keys.dropped[dataset.parts], msgspec.msgpack.encode(0), quiet=True)


def combine(stored: DatasetRow, new: DatasetRow, evolve: Evolve | None = None) -> DatasetRow:
    """Combine the stored declaration of a dataset with a new one.

    Raise `DatasetChanged` if they contradict each other. `drift` may always change, because it only affects
    data that arrives later.
    """
    same_columns = msgspec.structs.replace(new, schema=stored.schema, fingerprint=stored.fingerprint)
    changes = differences(stored, new if evolve is None else same_columns)
    if changes:
        raise DatasetChanged(
            f"dataset {new.id} was already declared with a different definition: {'; '.join(changes)}"
        )
    if evolve is not None and stored.fingerprint != new.fingerprint:
        stored = evolve(stored, new)
    return msgspec.structs.replace(stored, drift=new.drift)


def _revise(tx: Tx, keys: LotKeys, stored: DatasetRow, new: DatasetRow) -> DatasetRow:
    if new.fingerprint == stored.fingerprint and new.drift is stored.drift:
        return stored  # equal, or declared by a process that has not seen columns that a source added
    if new.fingerprint != stored.fingerprint:
        tx.set(keys.columns[(*stored.id.parts, stored.revision)], stored.schema.encode())
        new = msgspec.structs.replace(new, revision=stored.revision + 1)
    tx.set(keys.dataset[stored.id.parts], msgspec.msgpack.encode(new))
    return new


def differences(stored: DatasetRow, new: DatasetRow) -> list[str]:
    """List the differences between two declarations of a dataset, as text for the user."""
    changes = []
    for name in ("unit", "kind", "key", "order_by", "deletes"):
        old_value, new_value = getattr(stored, name), getattr(new, name)
        label = "lots" if name == "unit" else name
        if old_value != new_value:
            changes.append(f"{label} was {_format(old_value)}, now {_format(new_value)}")
    if stored.fingerprint != new.fingerprint:
        changes.append(f"schema was {stored.schema!r}, now {new.schema!r}")
    return changes


def _format(value: object) -> str:
    if value is None:
        return "one per append"
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def read(tx: Tx, keys: LotKeys, dataset: DatasetId) -> DatasetRow:
    """Read a declaration; raise `DatasetUnknown` if there is none.

    Callers may cache everything except the columns and `drift`, which can change.
    """
    raw = tx.get(keys.dataset[dataset.parts], lock=tx.mode == "take")
    if raw is None:
        raise DatasetUnknown(f"there is no dataset {dataset}")
    return _decoder.decode(raw)


def listed(tx: Tx, keys: LotKeys, after: DatasetId | None = None, limit: int = 100) -> list[DatasetRow]:
    """Return a page of declarations, ordered by name."""
    lo, hi = keys.dataset.all()
    if after is not None:
        lo = keys.dataset[after.parts] + b"\x00"
    return [_decoder.decode(row.value) for row in tx.range(lo, hi, limit=limit, snapshot=True)]
