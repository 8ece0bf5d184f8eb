"""Lots: rows in the store that name the manifest of each lot (LOT-20).

A lot's row names the manifest of its newest published generation. `add` writes the row together with the
event, so a lot and its event always exist together. A replaced generation keeps a row under its generation
number, so a reader that started with that generation still finds its files. Only `publish` calls `add` and
`revise`.
"""

from collections.abc import Sequence

import msgspec

from tidemill.errors import HistoryExpired, LotConflict, LotUnknown
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
    digest: str = ""  # of the content; independent of files and layout
    position: int = 0  # of its event; set by `add`
    revision: int = 0  # how often its layout was revised (LOT-37)
    files: int = 0  # listed in the manifest; 0 if they were not counted

    @property
    def fragmented(self) -> bool:
        """Return whether the lot has so many small files that compaction may help."""
        return self.files >= MANY_FILES and self.size < self.files * SMALL_BYTES


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    """A replaced layout. Its files stay for a grace period, for readers that started with them."""

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
    """Publish a generation of a lot: write its row and its event, and return the event's position.

    Raises `LotConflict` unless `new` is the lot's next generation (0 for a new lot). So only one of two
    attempts at a generation succeeds. Each lot of a keyed dataset has only one generation: there, a
    correction is another upsert (LOT-40).
    """
    dataset = datasets.read(tx, keys, new.dataset)
    dataset.parse_lot(new.lot)
    key = keys.lot[(*new.dataset.parts, new.lot)]
    raw = tx.get(key, lock=True)
    old = None if raw is None else _decoder.decode(raw)
    if old is None and new.generation and tx.get(keys.expired[new.dataset.parts]) is not None:
        raise HistoryExpired(
            f"lot {new.lot} of {new.dataset} has expired, so it cannot be replaced",
            hint="append the corrected rows to a new lot",
        )
    expected = 0 if old is None else old.generation + 1
    if new.generation != expected:
        raise LotConflict(
            f"lot {new.lot} of {new.dataset}: expected generation {expected}, got {new.generation}"
        )
    if old is None and new.state is LotState.REMOVED:
        raise LotConflict(
            f"lot {new.lot} of {new.dataset} does not exist, so it cannot be removed",
            hint="check the lot id; to list the lots, run: tidemill lots TABLE",
        )
    if old is not None:
        if dataset.kind is Kind.KEYED:
            raise LotConflict(
                f"lot {new.lot} cannot be replaced: {new.dataset} has a key",
                hint="correct the rows with another upsert",
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


def set_digest(tx: Tx, keys: LotKeys, expected: LotRow, digest: str) -> LotRow:
    """Record the digest of a generation's content, after all of it was read."""
    return _swap(tx, keys, expected, msgspec.structs.replace(expected, digest=digest))


def revise(tx: Tx, keys: LotKeys, expected: LotRow, layout: LotRow) -> LotRow:
    """Replace the layout of a generation, with the same content and without an event (LOT-37).

    The old layout is retired. Raises `LotConflict` if the lot changed since `expected` was read, or if the
    new layout has another digest or number of rows. Only the manifest, the size and the number of files are
    taken from `layout`.
    """
    if not expected.digest or layout.digest != expected.digest or layout.rows != expected.rows:
        raise LotConflict(
            f"the compacted files of lot {expected.lot} of {expected.dataset} do not contain the same rows as"
            " before; nothing was changed",
            hint="run the compaction again, and report the error if it repeats",
        )
    row = msgspec.structs.replace(
        expected,
        manifest=layout.manifest,
        size=layout.size,
        files=layout.files,
        revision=expected.revision + 1,
    )
    row = _swap(tx, keys, expected, row)
    old = keys.retired[
        (tx.now(), *expected.dataset.parts, expected.lot, expected.generation, expected.revision)
    ]
    tx.set(old, expected.manifest.encode(), quiet=True)
    tx.clear(keys.fragmented[(*expected.dataset.parts, expected.lot)], quiet=True)
    return row


def _swap(tx: Tx, keys: LotKeys, expected: LotRow, row: LotRow) -> LotRow:
    key = keys.lot[(*expected.dataset.parts, expected.lot)]
    raw = tx.get(key, lock=True)
    if raw is None or _decoder.decode(raw) != expected:
        raise LotConflict(f"lot {expected.lot} of {expected.dataset} was changed by another process")
    tx.set(key, msgspec.msgpack.encode(row), quiet=True)
    return row


def _mark(tx: Tx, keys: LotKeys, old: LotRow | None, row: LotRow) -> None:
    mark = keys.fragmented[(*row.dataset.parts, row.lot)]
    if row.fragmented:
        tx.set(mark, b"", quiet=True)
    elif old is not None and old.fragmented:
        tx.clear(mark, quiet=True)


def fragmented(tx: Tx, keys: LotKeys, dataset: DatasetId, limit: int = 100) -> list[str]:
    """Return a page of the fragmented lots of a dataset."""
    rows = tx.range(*keys.fragmented.under(*dataset.parts), limit=limit, snapshot=True)
    return [str(keys.fragmented.unpack(row.key)[2]) for row in rows]


def unmark_fragmented(tx: Tx, keys: LotKeys, expected: LotRow) -> None:
    """Remove a lot from the list of fragmented lots, because compaction cannot reduce its files.

    Do nothing if the lot has changed since `expected` was read.
    """
    if current(tx, keys, expected.dataset, expected.lot) == expected:
        tx.clear(keys.fragmented[(*expected.dataset.parts, expected.lot)], quiet=True)


def retired(tx: Tx, keys: LotKeys, until: int, limit: int = 100) -> list[Retired]:
    """Return a page of the layouts replaced at or before a store time, oldest first."""
    layouts = []
    # Starts at time 0, because retired views have rows in the same space, under the name of their pipeline.
    for row in tx.range(keys.retired[0,], keys.retired[until + 1,], limit=limit, snapshot=True):
        at, name, version, lot, generation, revision = keys.retired.unpack(row.key)
        layouts.append(
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
    return layouts


def forget_retired(tx: Tx, keys: LotKeys, old: Retired) -> None:
    """Delete the row of a replaced layout, after its files were removed."""
    key = (old.at, *old.dataset.parts, old.lot, old.generation, old.revision)
    tx.clear(keys.retired[key], quiet=True)


def current(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: str) -> LotRow | None:
    """Return the newest published generation of a lot."""
    raw = tx.get(keys.lot[(*dataset.parts, lot)])
    return None if raw is None else _decoder.decode(raw)


def current_of(tx: Tx, keys: LotKeys, dataset: DatasetId, names: Sequence[str]) -> list[LotRow | None]:
    """Return the newest published generation of several lots of a dataset, in the order of their names."""
    raws = tx.get_many([keys.lot[(*dataset.parts, name)] for name in names]) if names else []
    return [None if raw is None else _decoder.decode(raw) for raw in raws]


def exists(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: str) -> bool:
    """Return whether a lot has a current or a replaced generation."""
    if current(tx, keys, dataset, lot) is not None:
        return True
    return bool(tx.range(*keys.replaced.under(*dataset.parts, lot), limit=1))


def resolve(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: str, generation: int) -> LotRow:
    """Return one generation of a lot, current or replaced. Readers use it to find the files of an event."""
    row = current(tx, keys, dataset, lot)
    if row is not None and row.generation == generation:
        return row
    raw = tx.get(keys.replaced[(*dataset.parts, lot, generation)])
    if raw is None:
        raise LotUnknown(f"lot {lot} of {dataset} has no generation {generation}")
    return _decoder.decode(raw)


def listed(tx: Tx, keys: LotKeys, dataset: DatasetId, after: str = "", limit: int = 100) -> list[LotRow]:
    """Return a page of a dataset's lots, ordered by id and therefore by time."""
    lo, hi = keys.lot.under(*dataset.parts)
    if after:
        lo = keys.lot[(*dataset.parts, after)] + b"\x00"
    return [_decoder.decode(row.value) for row in tx.range(lo, hi, limit=limit, snapshot=True)]


def newest(tx: Tx, keys: LotKeys, dataset: DatasetId, before: str = "", limit: int = 100) -> list[LotRow]:
    """Return a page of a dataset's lots, the last lot first, beginning before `before`."""
    lo, hi = keys.lot.under(*dataset.parts)
    if before:
        hi = keys.lot[(*dataset.parts, before)]
    return [_decoder.decode(row.value) for row in tx.range(lo, hi, limit=limit, reverse=True, snapshot=True)]


class LotBrief(msgspec.Struct, frozen=True):
    """The fields of a lot's row that a report over many lots needs."""

    lot: str
    state: LotState
    rows: int = 0
    size: int = 0


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
    """Return a large page of the lots from `first` to `last`, ordered by id, beginning after `after`."""
    lo, hi = keys.lot.under(*dataset.parts)
    if first:
        lo = keys.lot[(*dataset.parts, first)]
    if after:
        lo = keys.lot[(*dataset.parts, after)] + b"\x00"
    if last:
        hi = keys.lot[(*dataset.parts, last)] + b"\x00"
    return [_brief.decode(row.value) for row in tx.range(lo, hi, limit=limit, snapshot=True)]


def next_append(tx: Tx, keys: LotKeys, dataset: DatasetId) -> AppendId:
    """Return the number of a new append. It is assigned early, because the folder name contains it (LOT-4).

    An append that is never published leaves a gap in these numbers. That is harmless: consumers follow
    positions.
    """
    raw = tx.get(keys.append_number[dataset.parts], lock=True)
    number = (0 if raw is None else msgspec.msgpack.decode(raw, type=int)) + 1
    tx.set(keys.append_number[dataset.parts], msgspec.msgpack.encode(number), quiet=True)
    return AppendId(number)
