"""Datasets: what is declared of a table before its first lot (LOT-1, LOT-4, LOT-41).

A declaration is made by every process that imports the pipeline, so an equal one is a no-op; a different one
is refused with what changed, because lots that are published already were made under the first. Columns alone
may change, where the dataset is declared so (`Drift.EVOLVE`): the columns before are kept, each under its
revision, and old lots are read with the new ones (LOT-34).
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
    """What the rows of a dataset's lots are."""

    ROWS = "rows"  # rows that are there
    CHANGES = "changes"  # rows that come and go, each with its weight
    KEYED = "keyed"  # raw operations, upsert or delete by key (LOT-40)


class Drift(StrEnum):
    """What becomes of data whose columns are not the declared ones (LOT-34)."""

    FREEZE = "freeze"  # columns are what they are: others are left out and counted, unfit records set aside
    EVOLVE = "evolve"  # new columns are added, types may become wider
    RESCUE = "rescue"  # what does not fit is kept beside the row, as JSON in a column of its own


class DatasetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A declaration.

    - unit: the length of its intervals; None for one lot per append.
    - key: the key columns of a keyed dataset.
    - order_by: of a keyed dataset, columns that say which of two writes of a key is the newer one, instead of
      which came later; of two that are equal there the later one counts (LOT-40).
    - deletes: may producers delete? Append-only is the default (LOT-41).
    - schema: as the user wrote it; the fingerprint is what is compared.
    - drift: what becomes of data with other columns.
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
        layout.quote(self.name)  # BadName: a name that no key could carry
        layout.quote(self.version)
        if (self.kind is Kind.KEYED) != bool(self.key):
            raise BadDataset(f"{self.name!r} is {self.kind.value} with the key {self.key}", hint="give a key")
        if self.kind is Kind.KEYED and not self.deletes:
            raise BadDataset(f"{self.name!r} has a key, but no deletes", hint="a key brings deletes with it")
        if self.kind is Kind.ROWS and self.deletes:
            raise BadDataset(
                f"{self.name!r} takes deletes, but its lots hold rows", hint="deletes need lots of changes"
            )
        if self.order_by and not self.key:
            raise BadDataset(
                f"{self.name!r} is ordered by {', '.join(self.order_by)}, and has no key",
                hint="order_by= says which write of a key is the newest: give a key",
            )
        for what, names in (("key", self.key), ("order_by", self.order_by)):
            twice = [name for number, name in enumerate(names) if name in names[:number]]
            if twice:
                raise BadDataset(f"{self.name!r} has {twice[0]} twice in {what}", hint="name it once")
        both = [name for name in self.order_by if name in self.key]
        if both:
            raise BadDataset(
                f"{self.name!r} is ordered by {both[0]}, which is in its key",
                hint="all writes of a key are equal there: order them by a time or a version",
            )

    @property
    def id(self) -> DatasetId:
        return DatasetId(self.name, self.version)

    def parse_lot(self, text: str) -> AnyLotId:
        """A lot of this dataset; `BadLotId` for one of another unit."""
        lot = ids.parse(text)
        unit = None if isinstance(lot, AppendId) else lot.unit
        if unit != self.unit:
            usual = "one lot per append" if self.unit is None else f"lots of {self.unit}"
            raise BadLotId(f"{text} is no lot of {self.name!r}", hint=f"{self.name!r} has {usual}")
        return lot


_decoder = msgspec.msgpack.Decoder(DatasetRow)


def fingerprint(schema: str) -> str:
    """Of a schema's text, whatever its blanks; used where no analysis of it is at hand."""
    return hashlib.sha256(" ".join(schema.split()).encode()).hexdigest()[:32]


Evolve: TypeAlias = Callable[[DatasetRow, DatasetRow], DatasetRow]
"""From a dataset as it is known, and as it is declared now, to the known one with the columns of both;
`DatasetChanged` when there is no such thing. Columns are understood by a room above."""


def declare(tx: Tx, keys: LotKeys, dataset: DatasetRow, evolve: Evolve | None = None) -> DatasetRow:
    """Enter a dataset, or find it as it was declared; `DatasetChanged` says what is different.

    - evolve: for one that may have other columns than before; what is returned has them all.
    """
    if not dataset.fingerprint:
        dataset = msgspec.structs.replace(dataset, fingerprint=fingerprint(dataset.schema))
    key = keys.dataset[dataset.id.parts]
    raw = tx.get(key)
    if raw is None:
        tx.set(key, msgspec.msgpack.encode(dataset))
        return dataset
    known = _decoder.decode(raw)
    same_columns = msgspec.structs.replace(dataset, schema=known.schema, fingerprint=known.fingerprint)
    evolves = dataset.drift is Drift.EVOLVE and evolve is not None
    changes = differences(known, same_columns if evolves else dataset)
    if changes:
        raise DatasetChanged(f"dataset {dataset.id} is declared differently: {'; '.join(changes)}")
    if evolves and evolve is not None and known.fingerprint != dataset.fingerprint:
        return _revised(tx, keys, known, evolve(known, dataset))
    if known.drift is not dataset.drift:  # a policy for what comes, not about what is there
        known = msgspec.structs.replace(known, drift=dataset.drift)
        tx.set(key, msgspec.msgpack.encode(known))
    return known


def _revised(tx: Tx, keys: LotKeys, known: DatasetRow, new: DatasetRow) -> DatasetRow:
    if new.fingerprint == known.fingerprint and new.drift is known.drift:
        return known  # whoever declares less has not seen what was added
    if new.fingerprint != known.fingerprint:
        tx.set(keys.columns[(*known.id.parts, known.revision)], known.schema.encode())
        new = msgspec.structs.replace(new, revision=known.revision + 1)
    tx.set(keys.dataset[known.id.parts], msgspec.msgpack.encode(new))
    return new


def columns(tx: Tx, keys: LotKeys, dataset: DatasetId) -> list[str]:
    """The columns a dataset had and has, by revision."""
    found = [row.value.decode() for row in tx.range(*keys.columns.under(*dataset.parts), limit=1000)]
    return [*found, read(tx, keys, dataset).schema]


def differences(known: DatasetRow, new: DatasetRow) -> list[str]:
    """What two declarations of one dataset disagree about, for people."""
    found = []
    for name in ("unit", "kind", "key", "order_by", "deletes"):
        old, now = getattr(known, name), getattr(new, name)
        label = "lots" if name == "unit" else name
        if old != now:
            found.append(f"{label} was {_shown(old)}, now {_shown(now)}")
    if known.fingerprint != new.fingerprint:
        found.append(f"schema was {known.schema!r}, now {new.schema!r}")
    return found


def _shown(value: object) -> str:
    if value is None:
        return "one per append"
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def read(tx: Tx, keys: LotKeys, dataset: DatasetId) -> DatasetRow:
    """A declaration; `DatasetUnknown` when there is none. Only its columns ever change, and only where they
    may; everything else of it any process may keep.
    """
    raw = tx.get(keys.dataset[dataset.parts], lock=tx.mode == "take")
    if raw is None:
        raise DatasetUnknown(f"there is no dataset {dataset}")
    return _decoder.decode(raw)


def listed(tx: Tx, keys: LotKeys, after: DatasetId | None = None, limit: int = 100) -> list[DatasetRow]:
    """A page of declarations by name."""
    lo, hi = keys.dataset.all()
    if after is not None:
        lo = keys.dataset[after.parts] + b"\x00"
    return [_decoder.decode(row.value) for row in tx.range(lo, hi, limit=limit, snapshot=True)]
