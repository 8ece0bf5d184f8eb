"""Lots: which manifest is the lot, by the store's word alone (LOT-20).

A lot's row names the manifest of its newest published generation. `add` writes it together with the event, so
there is no lot without its event and no event without its lot. A generation that is replaced keeps its row
under its number: whoever pinned it still finds its files. Only `publish` calls `add` and `revise`.
"""

import msgspec

from tidemill.errors import LotConflict, LotUnknown
from tidemill.lots import datasets, events
from tidemill.lots.datasets import Kind
from tidemill.lots.ids import AppendId
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.states import LotState
from tidemill.store import Tx


class LotRow(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of a lot."""

    dataset: DatasetId
    lot: str
    generation: int = 0
    state: LotState
    manifest: str  # its key in object storage
    attempt: str
    rows: int = 0
    size: int = 0
    digest: str = ""  # of the content, whatever the files
    position: int = 0  # of its event; given by `add`
    revision: int = 0  # how often its layout was revised (LOT-37)


_decoder = msgspec.msgpack.Decoder(LotRow)


def add(tx: Tx, keys: LotKeys, new: LotRow) -> int:
    """Publish a generation of a lot: its row, and the event at the position that is returned.

    `LotConflict` unless it is the lot's next generation: 0 for a new lot. Two attempts at one generation
    cannot both be the lot. A keyed dataset has no second generation: a correction is another upsert (LOT-40).
    """
    dataset = datasets.read(tx, keys, new.dataset)
    dataset.parse_lot(new.lot)
    key = keys.lot[(*new.dataset.parts, new.lot)]
    raw = tx.get(key, lock=True)
    old = None if raw is None else _decoder.decode(raw)
    due = 0 if old is None else old.generation + 1
    if new.generation != due:
        raise LotConflict(f"generation {new.generation} of lot {new.lot} of {new.dataset}: {due} is next")
    if old is None and new.state is LotState.REMOVED:
        raise LotConflict(f"lot {new.lot} of {new.dataset} is not there, so it cannot be removed")
    if old is not None:
        if dataset.kind is Kind.KEYED:
            raise LotConflict(
                f"lot {new.lot} of {new.dataset}, which has a key, cannot be replaced",
                hint="correct it by another upsert",
            )
        tx.set(keys.replaced[(*new.dataset.parts, new.lot, old.generation)], msgspec.msgpack.encode(old))
    event = events.write(
        tx,
        keys,
        new.dataset,
        lot=new.lot,
        generation=new.generation,
        state=new.state,
        attempt=new.attempt,
    )
    row = msgspec.structs.replace(new, position=event.position, revision=0)
    tx.set(key, msgspec.msgpack.encode(row), quiet=True)
    return event.position


def revise(tx: Tx, keys: LotKeys, seen: LotRow, manifest: str, digest: str) -> LotRow:
    """Give a generation another layout of the same content: no event (LOT-37).

    `LotConflict` when the lot is no longer as seen, or the content differs.
    """
    key = keys.lot[(*seen.dataset.parts, seen.lot)]
    if not seen.digest or digest != seen.digest:
        raise LotConflict(f"another layout of lot {seen.lot} of {seen.dataset} has other content")
    raw = tx.get(key, lock=True)
    if raw is None or _decoder.decode(raw) != seen:
        raise LotConflict(f"lot {seen.lot} of {seen.dataset} changed meanwhile")
    row = msgspec.structs.replace(seen, manifest=manifest, revision=seen.revision + 1)
    tx.set(key, msgspec.msgpack.encode(row), quiet=True)
    return row


def current(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: str) -> LotRow | None:
    """The newest published generation of a lot."""
    raw = tx.get(keys.lot[(*dataset.parts, lot)])
    return None if raw is None else _decoder.decode(raw)


def resolve(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: str, generation: int) -> LotRow:
    """One generation, the newest or a replaced one: how a reader gets from an event to its files."""
    row = current(tx, keys, dataset, lot)
    if row is not None and row.generation == generation:
        return row
    raw = tx.get(keys.replaced[(*dataset.parts, lot, generation)])
    if raw is None:
        raise LotUnknown(f"there is no generation {generation} of lot {lot} of {dataset}")
    return _decoder.decode(raw)


def listed(tx: Tx, keys: LotKeys, dataset: DatasetId, after: str = "", limit: int = 100) -> list[LotRow]:
    """A page of a dataset's lots, by id: as time goes."""
    lo, hi = keys.lot.under(*dataset.parts)
    if after:
        lo = keys.lot[(*dataset.parts, after)] + b"\x00"
    return [_decoder.decode(row.value) for row in tx.range(lo, hi, limit=limit, snapshot=True)]


class LotBrief(msgspec.Struct, frozen=True):
    """Of a lot's row what a report over many lots needs."""

    lot: str
    state: LotState


_brief = msgspec.msgpack.Decoder(LotBrief)


def briefs(
    tx: Tx, keys: LotKeys, dataset: DatasetId, after: str = "", *, last: str = "", limit: int = 5000
) -> list[LotBrief]:
    """A large page of a dataset's lots behind one id, up to `last` if it is given: as time goes."""
    lo, hi = keys.lot.under(*dataset.parts)
    if after:
        lo = keys.lot[(*dataset.parts, after)] + b"\x00"
    if last:
        hi = keys.lot[(*dataset.parts, last)] + b"\x00"
    return [_brief.decode(row.value) for row in tx.range(lo, hi, limit=limit, snapshot=True)]


def next_append(tx: Tx, keys: LotKeys, dataset: DatasetId) -> AppendId:
    """A number for one append, given when its attempt opens, because its folder bears it (LOT-4).

    One that is never published leaves a hole among the numbers, which means nothing: what consumers follow
    are positions.
    """
    raw = tx.get(keys.append_number[dataset.parts], lock=True)
    number = (0 if raw is None else msgspec.msgpack.decode(raw, type=int)) + 1
    tx.set(keys.append_number[dataset.parts], msgspec.msgpack.encode(number), quiet=True)
    return AppendId(number)
