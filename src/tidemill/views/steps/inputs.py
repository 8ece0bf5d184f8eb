"""Inputs: find the objects that hold the rows of a dataset at a position (DBSP-8, DBSP-26).

The store determines what a dataset contains at a position: for each lot, the newest generation with an event
at or before that position. Later publications do not change this. Lots that have expired are in the base lot,
if the dataset keeps their rows. The store's rows are read in pages. Manifests never change, so they are read
from object storage once and cached.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TypeVar

import msgspec

from tidemill.errors import HistoryExpired, LotUnknown
from tidemill.lots import base_lot, events, expiry, lots, manifest
from tidemill.lots.base_lot import BaseLot
from tidemill.lots.expiry import Expired
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import Manifest, StoredObject
from tidemill.lots.states import LotState
from tidemill.objects.port import Objects
from tidemill.publish.manifests import attempt_in
from tidemill.store import Store, Tx
from tidemill.views.steps.failed_views import PassedLot

PAGE = 500
LOTS = 100
CACHED_MANIFESTS = 4096
READERS = 8

T = TypeVar("T")


class LotSlice(msgspec.Struct, frozen=True):
    """One generation of a lot: the position of its event, and its objects."""

    position: int
    lot: str
    generation: int
    objects: tuple[StoredObject, ...]


def appends(slices: Iterable[LotSlice]) -> list[list[StoredObject]]:
    """Return the objects of each append to a keyed dataset, in the order of the appends.

    The lot for an interval can contain several appends. The names of objects contain the attempt that wrote
    them, and each append has its own attempt. Manifests list the appends in order.
    """
    return [
        list(objects)
        for lot in sorted(slices, key=lambda lot: lot.position)
        for _, objects in groupby(lot.objects, key=lambda item: attempt_in(item.uri))
    ]


class InputChange(msgspec.Struct, frozen=True):
    """What a range of positions adds and removes (DBSP-8).

    For each lot with an event in the range, `plus` has its newest generation at the end of the range. `minus`
    has the generation that was current at the beginning, with the position of the event that replaced it.
    """

    plus: tuple[LotSlice, ...]
    minus: tuple[LotSlice, ...]


class ManifestReader:
    """Reads manifests by key, and caches the ones used last. Safe to share between threads."""

    def __init__(self, objects: Objects, *, limit: int = CACHED_MANIFESTS) -> None:
        self._objects = objects
        self._limit = limit
        self._cached: OrderedDict[str, Manifest] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, key: str) -> Manifest:
        """Return one manifest."""
        with self._lock:
            if key in self._cached:
                self._cached.move_to_end(key)
                return self._cached[key]
        loaded = manifest.decode(self._objects.get(key)[0], key)
        with self._lock:
            self._cached[key] = loaded
            while len(self._cached) > self._limit:
                self._cached.popitem(last=False)
        return loaded

    def load_all(self, keys: Sequence[str]) -> list[Manifest]:
        """Return several manifests, in the order of the keys."""
        return _read_all(self.load, keys)

    def leaves(self, key: str) -> list[Manifest]:
        """Return the manifests that list objects: the parts of a root, otherwise the manifest itself."""
        top = self.load(key)
        return [self.load(part) for part in top.parts] if top.parts else [top]

    def objects(self, key: str) -> tuple[StoredObject, ...]:
        """Return every object that a manifest lists, directly or through its parts."""
        return tuple(item for leaf in self.leaves(key) for item in leaf.objects)


class InputReader:
    """Reads what datasets contain at a position, and what changed between two positions."""

    def __init__(self, store: Store, keys: LotKeys, manifests: ManifestReader) -> None:
        self._store = store
        self._keys = keys
        self.manifests = manifests

    def at(self, dataset: DatasetId, position: int, *, complete: bool = True) -> list[LotSlice]:
        """Return the lots in a dataset at a position, except lots that are empty or removed there.

        The first slice is the base lot, if the dataset has one, followed by expired lots that are not merged
        yet.

        - complete: raise `HistoryExpired` if rows of expired lots are removed (LOT-39). If False, return the
          lots that are left. If lots expire while this reads, it reads again, so the result never has some of
          them.
        """
        return self._at(dataset, position, all_lots=complete, all_generations=complete)

    def remaining_at(self, dataset: DatasetId, position: int) -> list[LotSlice]:
        """Return the lots in a dataset at a position, except lots that have expired until now.

        Raises `HistoryExpired` if lots after this position have expired, or rows that were replaced after it.
        """
        slices = self._at(dataset, position, all_lots=False, all_generations=True)
        self._store.run(lambda tx: expiry.check_position(tx, self._keys, dataset, position, dataset.name))
        return slices

    def _at(
        self, dataset: DatasetId, position: int, *, all_lots: bool, all_generations: bool
    ) -> list[LotSlice]:
        while True:
            expired, base = before = self._expired(dataset)
            if all_lots and expired.lots != base.lots:
                self._store.run(lambda tx: expiry.check_complete(tx, self._keys, dataset))
            if position < base.position:
                raise HistoryExpired(
                    f"{dataset} can no longer be read at position {position}: its lots up to position"
                    f" {base.position} are merged",
                    hint="read the table at its current position",
                )
            merged = self._base_slices(dataset, base, position)
            slices = self._slices(self._lots_at(dataset, position, complete=all_generations))
            if self._expired(dataset) == before:
                return [*merged, *slices]

    def passing_over(
        self, dataset: DatasetId, slices: Sequence[LotSlice], passed: Iterable[PassedLot]
    ) -> list[LotSlice]:
        """Return these lots without the generations that a view passes over, or with others instead."""
        used = {(lot.lot, lot.generation): lot.used for lot in passed if lot.dataset == dataset}
        kept: list[LotSlice] = []
        for lot in slices:
            generation = used.get((lot.lot, lot.generation), lot.generation)
            if generation == lot.generation:
                kept.append(lot)
            elif generation >= 0:
                row = self._store.run(
                    lambda tx, lot=lot, generation=generation: lots.resolve(  # type: ignore[misc]
                        tx, self._keys, dataset, lot.lot, generation
                    )
                )
                kept += self._slices([msgspec.structs.replace(row, position=lot.position)])
        return kept

    def _expired(self, dataset: DatasetId) -> tuple[Expired, BaseLot]:
        return self._store.run(
            lambda tx: (expiry.read(tx, self._keys, dataset), base_lot.read(tx, self._keys, dataset))
        )

    def is_complete(self, datasets: Iterable[DatasetId]) -> bool:
        """Return whether all rows of these datasets can be read."""
        return all(expired.lots == base.lots for expired, base in map(self._expired, datasets))

    def _base_slices(self, dataset: DatasetId, base: BaseLot, position: int) -> list[LotSlice]:
        """Return the base lot, and the expired lots that are not merged yet."""
        expired = [(base.position, base_lot.LOT, base.generation, base.manifest)] if base.manifest else []
        after = base.position
        while after < position:
            page = self._store.run(
                lambda tx, after=after: base_lot.parts(tx, self._keys, dataset, after, position, PAGE)  # type: ignore[misc]
            )
            expired += [(part.position, part.lot, part.generation, part.manifest) for part in page]
            after = page[-1].position if len(page) == PAGE else position
        listed = _read_all(self.manifests.objects, [manifest for *_, manifest in expired])
        return [
            LotSlice(at, lot, generation, objects)
            for (at, lot, generation, _), objects in zip(expired, listed, strict=True)
        ]

    def _lots_at(self, dataset: DatasetId, position: int, *, complete: bool) -> list[LotRow]:
        rows: list[LotRow] = []
        after = ""
        while True:
            last, page = self._store.run(
                lambda tx, after=after: self._page(tx, dataset, after, position, complete)  # type: ignore[misc]
            )
            rows += page
            if not last:
                return rows
            after = last

    def between(self, dataset: DatasetId, after: int, to: int) -> InputChange:
        """Return what changed in a dataset after one position, up to another position.

        Raises `HistoryExpired` if lots after the first position have expired. From position 0 on, the base
        lot replaces them.
        """
        if not after:
            expired, base = self._expired(dataset)
            if expired.position and expired.lots == base.lots:
                return InputChange(tuple(self.at(dataset, to)), ())
        plus: list[LotRow] = []
        minus: list[LotRow] = []
        for page in self._events(dataset, after, to):
            positions = {event.position for event in page}
            names = list(dict.fromkeys(event.lot for event in page))
            for new, old in self._ends(dataset, names, after, to):
                if new is not None and new.position in positions:  # otherwise it is on a later page
                    plus.append(new)
                    minus += [] if old is None else [msgspec.structs.replace(old, position=new.position)]
        change = InputChange(tuple(self._slices(plus)), tuple(self._slices(minus)))
        self._store.run(lambda tx: expiry.check_position(tx, self._keys, dataset, after, dataset.name))
        return change

    def _ends(
        self, dataset: DatasetId, names: Sequence[str], after: int, to: int
    ) -> Iterator[tuple[LotRow | None, LotRow | None]]:
        """Yield for each lot the generations that are current at `to` and at `after`."""
        for first in range(0, len(names), LOTS):
            page = names[first : first + LOTS]
            try:
                yield from self._store.run(
                    lambda tx, page=page: [  # type: ignore[misc]
                        tuple(_newest(tx, self._keys, dataset, lot, at) for at in (to, after)) for lot in page
                    ]
                )
            except LotUnknown as error:
                raise HistoryExpired(
                    f"lots of {dataset} that were replaced after position {after} have expired",
                    hint="read the complete table with df(), note its position, and continue from there",
                ) from error

    def _page(
        self, tx: Tx, dataset: DatasetId, after: str, position: int, complete: bool
    ) -> tuple[str, list[LotRow]]:
        page = lots.listed(tx, self._keys, dataset, after, PAGE)
        rows: list[LotRow | None] = []
        for row in page:
            try:
                newer = row.position > position
                rows.append(_newest(tx, self._keys, dataset, row.lot, position) if newer else row)
            except LotUnknown:
                if complete:
                    raise HistoryExpired(
                        f"lot {row.lot} of {dataset} was replaced after position {position}, and the rows"
                        " that it had before have expired",
                        hint="read the table at its current position",
                    ) from None
        last = page[-1].lot if len(page) == PAGE else ""
        return last, [row for row in rows if row is not None]

    def _events(self, dataset: DatasetId, after: int, to: int) -> Iterator[list[events.LotEvent]]:
        while after < to:
            page = self._store.run(
                lambda tx, after=after: events.read(tx, self._keys, dataset, after, min(PAGE, to - after))  # type: ignore[misc]
            )
            if not page:
                return
            yield page
            after = page[-1].position

    def _slices(self, rows: Sequence[LotRow]) -> list[LotSlice]:
        complete = [row for row in rows if row.state is LotState.COMPLETE]
        listed = _read_all(self.manifests.objects, [row.manifest for row in complete])
        return [
            LotSlice(row.position, row.lot, row.generation, objects)
            for row, objects in zip(complete, listed, strict=True)
        ]


def _read_all(read: Callable[[str], T], keys: Sequence[str]) -> list[T]:
    """Read each key, in order; many keys are read in parallel."""
    if len(keys) < READERS:
        return [read(key) for key in keys]
    with ThreadPoolExecutor(READERS, thread_name_prefix="manifests") as pool:
        return list(pool.map(read, keys))


def _newest(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: str, position: int) -> LotRow | None:
    """Return the newest generation of a lot at or before a position; None if the lot had none yet."""
    row = lots.current(tx, keys, dataset, lot)
    while row is not None and row.position > position:
        row = None if row.generation == 0 else lots.resolve(tx, keys, dataset, lot, row.generation - 1)
    return row
