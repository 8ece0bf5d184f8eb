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
    files: int = 0  # that its manifest lists; 0 where nobody counted

    @property
    def fragmented(self) -> bool:
        """Has it many files that are small? Then it is worth a look whether they can be fewer."""
        return self.files >= MANY_FILES and self.size < self.files * SMALL_BYTES


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    """A layout that was replaced: its files stay for readers that have begun with them."""

    at: int  # store time, µs
    dataset: DatasetId
    lot: str
    generation: int
    revision: int
    manifest: str


MANY_FILES = 16
SMALL_BYTES = 8 * 1024 * 1024

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
    _mark(tx, keys, old, row)
    return event.position


def digested(tx: Tx, keys: LotKeys, seen: LotRow, digest: str) -> LotRow:
    """Write down the digest of a generation's content, by whoever has read all of it."""
    return _swap(tx, keys, seen, msgspec.structs.replace(seen, digest=digest))


def revise(tx: Tx, keys: LotKeys, seen: LotRow, layout: LotRow) -> LotRow:
    """Give a generation another layout of the same content: no event (LOT-37). The old one is retired.

    `LotConflict` when the lot is no longer as seen, or the content differs. Only the manifest, its size and
    its number of files are taken from `layout`; `digest` is what they hold.
    """
    if not seen.digest or layout.digest != seen.digest or layout.rows != seen.rows:
        raise LotConflict(f"another layout of lot {seen.lot} of {seen.dataset} has other content")
    row = msgspec.structs.replace(
        seen,
        manifest=layout.manifest,
        size=layout.size,
        files=layout.files,
        revision=seen.revision + 1,
    )
    row = _swap(tx, keys, seen, row)
    old = keys.retired[(tx.now(), *seen.dataset.parts, seen.lot, seen.generation, seen.revision)]
    tx.set(old, seen.manifest.encode(), quiet=True)
    tx.clear(keys.fragmented[(*seen.dataset.parts, seen.lot)], quiet=True)
    return row


def _swap(tx: Tx, keys: LotKeys, seen: LotRow, row: LotRow) -> LotRow:
    key = keys.lot[(*seen.dataset.parts, seen.lot)]
    raw = tx.get(key, lock=True)
    if raw is None or _decoder.decode(raw) != seen:
        raise LotConflict(f"lot {seen.lot} of {seen.dataset} changed meanwhile")
    tx.set(key, msgspec.msgpack.encode(row), quiet=True)
    return row


def _mark(tx: Tx, keys: LotKeys, old: LotRow | None, row: LotRow) -> None:
    mark = keys.fragmented[(*row.dataset.parts, row.lot)]
    if row.fragmented:
        tx.set(mark, b"", quiet=True)
    elif old is not None and old.fragmented:
        tx.clear(mark, quiet=True)


def fragmented(tx: Tx, keys: LotKeys, dataset: DatasetId, limit: int = 100) -> list[str]:
    """A page of the lots of a dataset that have many small files."""
    found = tx.range(*keys.fragmented.under(*dataset.parts), limit=limit, snapshot=True)
    return [str(keys.fragmented.unpack(row.key)[2]) for row in found]


def unmark_fragmented(tx: Tx, keys: LotKeys, seen: LotRow) -> None:
    """Its files cannot be fewer: look at it no more, unless it has changed meanwhile."""
    if current(tx, keys, seen.dataset, seen.lot) == seen:
        tx.clear(keys.fragmented[(*seen.dataset.parts, seen.lot)], quiet=True)


def retired(tx: Tx, keys: LotKeys, until: int, limit: int = 100) -> list[Retired]:
    """A page of the layouts that were replaced at or before a moment of the store's time, oldest first."""
    found = []
    # From time 0 on: retired views have rows under the same name, by their pipeline.
    for row in tx.range(keys.retired[0,], keys.retired[until + 1,], limit=limit, snapshot=True):
        at, name, version, lot, generation, revision = keys.retired.unpack(row.key)
        found.append(
            msgspec.convert(
                {
                    "at": at,
                    "dataset": (name, version),
                    "lot": lot,
                    "generation": generation,
                    "revision": revision,
                    "manifest": row.value.decode(),
                },
                Retired,
            )
        )
    return found


def forget_retired(tx: Tx, keys: LotKeys, old: Retired) -> None:
    """Its files are gone."""
    place = (old.at, *old.dataset.parts, old.lot, old.generation, old.revision)
    tx.clear(keys.retired[place], quiet=True)


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
    tx: Tx,
    keys: LotKeys,
    dataset: DatasetId,
    after: str = "",
    *,
    first: str = "",
    last: str = "",
    limit: int = 5000,
) -> list[LotBrief]:
    """A large page of a dataset's lots behind one id, from `first` to `last` if given: as time goes."""
    lo, hi = keys.lot.under(*dataset.parts)
    if first:
        lo = keys.lot[(*dataset.parts, first)]
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
