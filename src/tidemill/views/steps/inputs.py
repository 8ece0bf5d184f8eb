"""Inputs: from a dataset and a position to exactly the objects that are its rows there (DBSP-8, DBSP-26).

What a dataset holds at a position is decided by the store: of each lot the newest generation whose event lies
at or below it, whatever was published since. Rows of the store are read in pages; manifests never change, so
they are read from object storage once and kept, as long as there is room.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from tidemill.lots import events, lots, manifest
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import Manifest, StoredObject
from tidemill.lots.states import LotState
from tidemill.objects.port import Objects
from tidemill.store import Store, Tx

PAGE = 500
LOTS = 100
KEPT = 4096
READERS = 8


class LotSlice(msgspec.Struct, frozen=True):
    """One generation of a lot, by the position of its event, and its objects."""

    position: int
    lot: str
    generation: int
    objects: tuple[StoredObject, ...]


class InputChange(msgspec.Struct, frozen=True):
    """What a range of positions brings and takes back (DBSP-8).

    Of each lot with an event in the range: `plus` is its newest generation at the end of it, `minus` the one
    that was current at its beginning, at the position of the event that took its place.
    """

    plus: tuple[LotSlice, ...]
    minus: tuple[LotSlice, ...]


class ManifestReader:
    """Manifests by key, each read once while there is room. Safe to share between threads."""

    def __init__(self, objects: Objects, *, kept: int = KEPT) -> None:
        self._objects = objects
        self._most = kept
        self._kept: OrderedDict[str, Manifest] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, key: str) -> Manifest:
        """One manifest."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = manifest.decode(self._objects.get(key)[0], key)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found

    def load_all(self, keys: Sequence[str]) -> list[Manifest]:
        """Several manifests, in the order given; many of them are fetched at once."""
        if len(keys) < READERS:
            return [self.load(key) for key in keys]
        with ThreadPoolExecutor(READERS, thread_name_prefix="manifests") as pool:
            return list(pool.map(self.load, keys))

    def leaves(self, key: str) -> list[Manifest]:
        """The manifests that list objects: the parts' of a root, else the one itself."""
        found = self.load(key)
        return [self.load(part) for part in found.parts] if found.parts else [found]

    def objects(self, key: str) -> tuple[StoredObject, ...]:
        """Every object that a manifest lists, by itself or through its parts."""
        return tuple(item for leaf in self.leaves(key) for item in leaf.objects)


class InputReader:
    """What datasets hold at positions."""

    def __init__(self, store: Store, keys: LotKeys, manifests: ManifestReader) -> None:
        self._store = store
        self._keys = keys
        self.manifests = manifests

    def at(self, dataset: DatasetId, position: int) -> list[LotSlice]:
        """All of a dataset as of a position; lots that are empty or removed there are left out."""
        found: list[LotRow] = []
        after = ""
        while True:
            last, page = self._store.run(lambda tx, after=after: self._page(tx, dataset, after, position))  # type: ignore[misc]
            found += page
            if not last:
                return self._slices(found)
            after = last

    def between(self, dataset: DatasetId, after: int, to: int) -> InputChange:
        """What changed of a dataset behind one position, up to another."""
        plus: list[LotRow] = []
        minus: list[LotRow] = []
        for page in self._events(dataset, after, to):
            here = {event.position for event in page}
            names = list(dict.fromkeys(event.lot for event in page))
            for new, old in self._ends(dataset, names, after, to):
                if new is not None and new.position in here:  # else a later page has it
                    plus.append(new)
                    minus += [] if old is None else [msgspec.structs.replace(old, position=new.position)]
        return InputChange(tuple(self._slices(plus)), tuple(self._slices(minus)))

    def _ends(
        self, dataset: DatasetId, names: Sequence[str], after: int, to: int
    ) -> Iterator[tuple[LotRow | None, LotRow | None]]:
        """Of each lot the generation that is current at the end, and at the beginning."""
        for first in range(0, len(names), LOTS):
            page = names[first : first + LOTS]
            yield from self._store.run(
                lambda tx, page=page: [  # type: ignore[misc]
                    tuple(_newest(tx, self._keys, dataset, lot, at) for at in (to, after)) for lot in page
                ]
            )

    def _page(self, tx: Tx, dataset: DatasetId, after: str, position: int) -> tuple[str, list[LotRow]]:
        page = lots.listed(tx, self._keys, dataset, after, PAGE)
        rows = [
            row if row.position <= position else _newest(tx, self._keys, dataset, row.lot, position)
            for row in page
        ]
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
        there = [row for row in rows if row.state is LotState.COMPLETE]
        keys = [row.manifest for row in there]
        if len(keys) < READERS:
            listed = [self.manifests.objects(key) for key in keys]
        else:
            with ThreadPoolExecutor(READERS, thread_name_prefix="manifests") as pool:
                listed = list(pool.map(self.manifests.objects, keys))
        return [
            LotSlice(row.position, row.lot, row.generation, objects)
            for row, objects in zip(there, listed, strict=True)
        ]


def _newest(tx: Tx, keys: LotKeys, dataset: DatasetId, lot: str, position: int) -> LotRow | None:
    """The newest generation of a lot at or below a position; None before its first."""
    row = lots.current(tx, keys, dataset, lot)
    while row is not None and row.position > position:
        row = None if row.generation == 0 else lots.resolve(tx, keys, dataset, lot, row.generation - 1)
    return row
