"""Projections: what the store says, once more as names in object storage, for people and other tools.

    datasets/name=D/version=V/lot=L/state=S/manifest.json                         which manifest is the lot
    arcs/project=P/version=V/arc=A/lot=L/{running|complete|partial|missing}.arc   how an arc stands with a lot

They are written after the commit and may be behind; nothing in Tidemill reads them, and they can be rebuilt
from the store at any time (LOT-22, LOT-23). Each is written from a fresh read of the store and looked at
again afterwards, so that of two writers the later state stays.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from tidemill import crash
from tidemill.errors import ObjectMissing, TidemillError
from tidemill.lots import layout, lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import ManifestState
from tidemill.publish.keys import PublishKeys
from tidemill.scope import Scope
from tidemill.store import Tx

ROUNDS = 5
PAGE = 500

ReadState: TypeAlias = Callable[[Tx], str | None]


class Showing(Protocol):
    """Shows how things stand, now or a little later."""

    def lot(self, dataset: DatasetId, lot: str) -> None: ...

    def arc(self, project: str, version: str, arc: str, lot: str, read: ReadState) -> None: ...


class Projections:
    """Writes them."""

    def __init__(self, scope: Scope) -> None:
        self._store = scope.store
        self._keys = PublishKeys(scope.cluster)
        self._objects = scope.objects

    def lot(self, dataset: DatasetId, lot: str) -> None:
        """Show which manifest is a lot."""

        def current() -> LotRow | None:
            return self._store.run(lambda tx: lots.current(tx, self._keys.lots, dataset, lot))

        row = current()
        for _ in range(ROUNDS):
            self._show_lot(dataset, lot, row)
            seen, row = row, current()
            if row == seen:
                return

    def _show_lot(self, dataset: DatasetId, lot: str, row: LotRow | None) -> None:
        names = {
            state.value: layout.projected_manifest_key(*dataset.parts, lot, state) for state in ManifestState
        }
        body = None
        if row is not None:
            with contextlib.suppress(ObjectMissing):  # no name then: it would promise what is not there
                body, _ = self._objects.get(row.manifest)
        there = {info.key for info in self._objects.list(layout.lot_prefix(*dataset.parts, lot))}
        crash.point("publish.project-lot.before")
        if row is not None and body is not None:
            self._objects.put(names.pop(row.state.value), body)
        self._objects.delete_many(name for name in names.values() if name in there)
        crash.point("publish.project-lot.after")

    def mend_lot(self, dataset: DatasetId, lot: str) -> None:
        """Show a lot once more if its names are not what the store says: somebody died before they were."""
        row = self._store.run(lambda tx: lots.current(tx, self._keys.lots, dataset, lot))
        prefix = layout.lot_prefix(*dataset.parts, lot)
        there = {info.key for info in self._objects.list(prefix)}
        names = {layout.projected_manifest_key(*dataset.parts, lot, state) for state in ManifestState} & there
        wanted = set()
        if row is not None and row.manifest in there:
            wanted = {layout.projected_manifest_key(*dataset.parts, lot, ManifestState(row.state.value))}
        if names != wanted or (row is not None and wanted and not self._same(row.manifest, *wanted)):
            self.lot(dataset, lot)

    def _same(self, one: str, other: str) -> bool:
        with contextlib.suppress(ObjectMissing):
            return self._objects.get(one)[0] == self._objects.get(other)[0]
        return False

    def mend_arc(self, project: str, version: str, arc: str, lot: str, read: ReadState) -> None:
        """Show once more how an arc stands with a lot, if its names are not what the store says."""
        state = self._store.run(read)
        names = {layout.arc_key(project, version, arc, lot, one): one for one in layout.ARC_STATES}
        folder = next(iter(names)).rpartition("/")[0] + "/"
        there = {names[info.key] for info in self._objects.list(folder) if info.key in names}
        if there != {state} & set(layout.ARC_STATES):
            self.arc(project, version, arc, lot, read)

    def arc(self, project: str, version: str, arc: str, lot: str, read: ReadState) -> None:
        """Show how an arc stands with a lot; `read` asks the store."""
        state = self._store.run(read)
        for _ in range(ROUNDS):
            self._show_arc(project, version, arc, lot, state)
            seen, state = state, self._store.run(read)
            if state == seen:
                return

    def _show_arc(self, project: str, version: str, arc: str, lot: str, state: str | None) -> None:
        names = {one: layout.arc_key(project, version, arc, lot, one) for one in layout.ARC_STATES}
        folder = names["running"].rpartition("/")[0] + "/"
        there = {info.key for info in self._objects.list(folder)}
        crash.point("publish.project-arc.before")
        if state in names:
            self._objects.put(names.pop(state), b"")
        self._objects.delete_many(name for name in names.values() if name in there)
        crash.point("publish.project-arc.after")

    # --- on demand

    def rebuild_lots(self, dataset: DatasetId) -> int:
        """Show every lot of a dataset anew, and remove names of lots that are not there; how many lots."""
        known: set[str] = set()
        after = ""
        while page := self._page(dataset, after):
            for row in page:
                self.lot(dataset, row.lot)
                known.add(row.lot)
            after = page[-1].lot
        name, version = (layout.quote(part) for part in dataset.parts)
        stray = []
        for info in self._objects.list(f"datasets/name={name}/version={version}/"):
            parsed = layout.parse_key(info.key)
            if "attempt" not in parsed and parsed["lot"] not in known:
                stray.append(info.key)
        self._objects.delete_many(stray)
        return len(known)

    def _page(self, dataset: DatasetId, after: str) -> list[LotRow]:
        return self._store.run(lambda tx: lots.listed(tx, self._keys.lots, dataset, after, PAGE))

    def rebuild_arc(self, project: str, version: str, arc: str, states: Mapping[str, str]) -> None:
        """Show an arc anew: how it stands with each lot; names of other lots and states are removed."""
        wanted = {layout.arc_key(project, version, arc, lot, state) for lot, state in states.items()}
        folder = layout.arc_key(project, version, arc, "x", "complete").rpartition("/lot=")[0] + "/"
        there = {info.key for info in self._objects.list(folder)}
        for key in sorted(wanted - there):
            self._objects.put(key, b"")
        self._objects.delete_many(sorted(there - wanted))


MOST_WAITING = 1000
DROP_S = 2.0
"""How long `end(drop=True)` waits for the write that is under way."""


class ProjectionThread:
    """Writes projections in a thread, a little later; several writes of one name are one.

    Nothing waits for projections. A state that has passed when its turn comes is not written at all. What is
    lost when the process dies is corrected by the cleaner.
    """

    def __init__(self, projections: Projections) -> None:
        self._projections = projections
        self._waiting: dict[tuple[str, ...], Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = False
        self._broken: BaseException | None = None

    def check(self) -> None:
        """Raise the error that means that this process is dead, if there was one."""
        if self._broken is not None:
            raise self._broken

    def lot(self, dataset: DatasetId, lot: str) -> None:
        """Show which manifest is a lot."""
        self._later(("lot", *dataset.parts, lot), lambda: self._projections.lot(dataset, lot))

    def arc(self, project: str, version: str, arc: str, lot: str, read: ReadState) -> None:
        """Show how an arc stands with a lot."""
        self._later(
            ("arc", project, version, arc, lot),
            lambda: self._projections.arc(project, version, arc, lot, read),
        )

    def _later(self, key: tuple[str, ...], show: Callable[[], None]) -> None:
        with self._changed:
            if self._over or len(self._waiting) >= MOST_WAITING:
                return  # the cleaner corrects it
            self._waiting[key] = show
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="projections", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._over:
                    self._changed.wait()
                if not self._waiting:
                    return
                show = self._waiting.pop(next(iter(self._waiting)))
            try:
                with contextlib.suppress(TidemillError):  # the cleaner corrects it
                    show()
            except BaseException as error:  # noqa: BLE001 - a crash point: raised by `check`
                self._broken = error
                return

    def end(self, *, drop: bool = False) -> None:
        """Write what waits, and end; with `drop`, do not write it: the cleaner corrects it."""
        with self._changed:
            self._over = True
            if drop:
                self._waiting.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(DROP_S if drop else None)
