"""The base lot of a dataset: the rows of its expired lots, merged (LOT-39).

A dataset that keeps the rows of expired lots has a base lot. A reader that needs all rows reads the base lot,
then the lots after it. So a view can be built, and a keyed dataset can be read, after its first lots have
expired.

An expired lot first becomes a *part* of the base: a row that names its manifest. This is cheap, and happens
in the transaction that removes the lot. Later, a runner merges the base and its parts into new files. A
merged base has one row per key of a keyed dataset, and adds up the weights of a dataset of changes.

    base lot     the merged rows up to `BaseLot.position`
    parts        the lots that expired after it, each under the position of its event
    lots         everything after the last expired event

The transaction of a merge replaces the row of the base. From then on, readers ignore the parts up to its
position. `forget_merged` deletes their rows afterwards, in pages, and retires their files: those stay for the
grace period of readers.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from tidemill.errors import LotConflict
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.lots import LotRow
from tidemill.store import Tx

LOT = "base"
"""The name of the base lot in the keys of its objects. No other lot can have this id."""

PAGE = 100


class BaseLot(msgspec.Struct, frozen=True, kw_only=True):
    """The merged rows of a dataset at a position. Generation 0 means that nothing was merged yet.

    - lots: how many expired lots the base and its parts have, in all.
    - last: the lot that has expired last; rows of earlier versions lack it.
    """

    lots: int = 0
    position: int = 0
    generation: int = 0
    manifest: str = ""
    rows: int = 0
    size: int = 0
    last: str | UnsetType = UNSET


class BasePart(msgspec.Struct, frozen=True, kw_only=True):
    """An expired lot that is not merged into the base yet; see `LotRow`."""

    position: int
    lot: str
    generation: int
    revision: int
    manifest: str
    rows: int
    size: int


_base = msgspec.msgpack.Decoder(BaseLot)
_part = msgspec.msgpack.Decoder(BasePart)


def read(tx: Tx, keys: LotKeys, dataset: DatasetId) -> BaseLot:
    """Return the base lot of a dataset; generation 0 if there is none."""
    raw = tx.get(keys.base_lot[dataset.parts])
    return BaseLot() if raw is None else _base.decode(raw)


def parts(
    tx: Tx, keys: LotKeys, dataset: DatasetId, after: int, to: int | None = None, limit: int = PAGE
) -> list[BasePart]:
    """Return a page of the parts after a position, up to another position."""
    space, name = keys.base_part, dataset.parts
    _, end = space.under(*name)
    stop = end if to is None else space[(*name, to)] + b"\x00"
    rows = tx.range(space[(*name, after)] + b"\x00", stop, limit=limit)
    return [_part.decode(row.value) for row in rows]


def add_lots(tx: Tx, keys: LotKeys, dataset: DatasetId, expired: Sequence[str]) -> None:
    """Count the lots that have expired, with or without rows, in the transaction that removes them."""
    base = read(tx, keys, dataset)
    _write(tx, keys, dataset, msgspec.structs.replace(base, lots=base.lots + len(expired), last=expired[-1]))


def add_part(tx: Tx, keys: LotKeys, row: LotRow) -> None:
    """Make an expired lot a part of the base, in the transaction that removes its row."""
    part = BasePart(
        position=row.position,
        lot=row.lot,
        generation=row.generation,
        revision=row.revision,
        manifest=row.manifest,
        rows=row.rows,
        size=row.size,
    )
    tx.set(keys.base_part[(*row.dataset.parts, part.position)], msgspec.msgpack.encode(part), quiet=True)


def replace(tx: Tx, keys: LotKeys, dataset: DatasetId, expected: BaseLot, merged: BaseLot) -> None:
    """Store a merged base, and retire the one before.

    Raise `LotConflict` if another process has replaced the base since `expected` was read. Lots that have
    expired since then are parts of the new base.
    """
    base = read(tx, keys, dataset)
    if not base.lots or base.generation != expected.generation:
        raise LotConflict(f"the base lot of {dataset} was changed by another process")
    _retire(tx, keys, dataset, base)
    _write(tx, keys, dataset, msgspec.structs.replace(merged, lots=base.lots, last=base.last))


def forget_merged(tx: Tx, keys: LotKeys, dataset: DatasetId, limit: int = PAGE) -> bool:
    """Delete a page of the parts that the base contains, and retire their files.

    Return True if there are more.
    """
    page = parts(tx, keys, dataset, 0, read(tx, keys, dataset).position, limit)
    _forget(tx, keys, dataset, page)
    return len(page) == limit


def remove(tx: Tx, keys: LotKeys, dataset: DatasetId, position: int) -> bool:
    """Remove the rows up to a position, because the dataset no longer keeps them.

    Return True if there are more. An empty base at this position stays, so no reader sees a part of the rows.
    """
    base = read(tx, keys, dataset)
    if base.lots:
        _retire(tx, keys, dataset, base)
        _write(tx, keys, dataset, BaseLot(position=position, generation=base.generation + 1))
    return forget_merged(tx, keys, dataset)


def _forget(tx: Tx, keys: LotKeys, dataset: DatasetId, page: list[BasePart]) -> None:
    for part in page:
        tx.clear(keys.base_part[(*dataset.parts, part.position)], quiet=True)
        key = (tx.now(), *dataset.parts, part.lot, part.generation, part.revision)
        tx.set(keys.retired[key], part.manifest.encode(), quiet=True)


def _write(tx: Tx, keys: LotKeys, dataset: DatasetId, base: BaseLot) -> None:
    tx.set(keys.base_lot[dataset.parts], msgspec.msgpack.encode(base), quiet=True)


def _retire(tx: Tx, keys: LotKeys, dataset: DatasetId, base: BaseLot) -> None:
    if base.manifest:
        key = keys.retired[(tx.now(), *dataset.parts, LOT, base.generation, 0)]
        tx.set(key, base.manifest.encode(), quiet=True)
