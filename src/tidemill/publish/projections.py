"""Projections: objects whose names repeat the state in the store, for people and other tools.

There are two kinds: one for the current manifest of a lot, and one for the state of an arc's lot:

    datasets/name=D/version=V/lot=L/state=S/manifest.json
    arcs/project=P/version=V/arc=A/lot=L/{running|complete|partial|missing}.arc

Projections are written after the commit and may be late. Tidemill does not depend on them, and can write them
again from the store at any time (LOT-22, LOT-23). A writer reads the store before and after it writes a
projection. So if two writers run at the same time, the later state remains.
"""

import contextlib
import threading
from collections.abc import Callable
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

ReadState: TypeAlias = Callable[[Tx], str | None]


class ProjectionWriter(Protocol):
    """Writes projections, now or a little later."""

    def lot(self, dataset: DatasetId, lot: str) -> None: ...

    def arc(self, project: str, version: str, arc: str, lot: str, read: ReadState) -> None: ...


class Projections:
    """Writes projections at once, and corrects outdated ones."""

    def __init__(self, scope: Scope) -> None:
        self._store = scope.store
        self._keys = PublishKeys(scope.cluster)
        self._objects = scope.objects

    def lot(self, dataset: DatasetId, lot: str) -> None:
        """Write the projection of a lot's current manifest."""

        def current() -> LotRow | None:
            return self._store.run(lambda tx: lots.current(tx, self._keys.lots, dataset, lot))

        row = current()
        for _ in range(ROUNDS):
            self._write_lot(dataset, lot, row)
            before, row = row, current()
            if row == before:
                return

    def _write_lot(self, dataset: DatasetId, lot: str, row: LotRow | None) -> None:
        names = {
            state.value: layout.projected_manifest_key(*dataset.parts, lot, state) for state in ManifestState
        }
        body = None
        if row is not None:
            with contextlib.suppress(ObjectMissing):  # then no projection is written
                body, _ = self._objects.get(row.manifest)
        existing = {info.key for info in self._objects.list(layout.lot_prefix(*dataset.parts, lot))}
        crash.point("publish.project-lot.before")
        if row is not None and body is not None:
            self._objects.put(names.pop(row.state.value), body)
        self._objects.delete_many(name for name in names.values() if name in existing)
        crash.point("publish.project-lot.after")

    def repair_lot(self, dataset: DatasetId, lot: str) -> None:
        """Write the projection of a lot again if it is outdated, for example because its writer died."""
        row = self._store.run(lambda tx: lots.current(tx, self._keys.lots, dataset, lot))
        prefix = layout.lot_prefix(*dataset.parts, lot)
        existing = {info.key for info in self._objects.list(prefix)}
        names = {layout.projected_manifest_key(*dataset.parts, lot, state) for state in ManifestState}
        expected = set()
        if row is not None and row.manifest in existing:
            expected = {layout.projected_manifest_key(*dataset.parts, lot, ManifestState(row.state.value))}
        is_right = names & existing == expected
        if not is_right or (row is not None and expected and not self._is_copy(row.manifest, *expected)):
            self.lot(dataset, lot)

    def _is_copy(self, manifest: str, projection: str) -> bool:
        with contextlib.suppress(ObjectMissing):
            return self._objects.get(manifest)[0] == self._objects.get(projection)[0]
        return False

    def repair_arc(self, project: str, version: str, arc: str, lot: str, read: ReadState) -> None:
        """Write the projection of an arc's lot again if it is outdated."""
        current = self._store.run(read)
        names = {layout.arc_key(project, version, arc, lot, state): state for state in layout.ARC_STATES}
        folder = next(iter(names)).rpartition("/")[0] + "/"
        projected = {names[info.key] for info in self._objects.list(folder) if info.key in names}
        if projected != {current} & set(layout.ARC_STATES):
            self.arc(project, version, arc, lot, read)

    def arc(self, project: str, version: str, arc: str, lot: str, read: ReadState) -> None:
        """Write the projection of an arc's lot; `read` reads its state from the store."""
        state = self._store.run(read)
        for _ in range(ROUNDS):
            self._write_arc(project, version, arc, lot, state)
            before, state = state, self._store.run(read)
            if state == before:
                return

    def _write_arc(self, project: str, version: str, arc: str, lot: str, state: str | None) -> None:
        names = {name: layout.arc_key(project, version, arc, lot, name) for name in layout.ARC_STATES}
        folder = names["running"].rpartition("/")[0] + "/"
        existing = {info.key for info in self._objects.list(folder)}
        crash.point("publish.project-arc.before")
        if state in names:
            self._objects.put(names.pop(state), b"")
        self._objects.delete_many(key for key in names.values() if key in existing)
        crash.point("publish.project-arc.after")


MOST_WAITING = 1000
DROP_S = 2.0
"""How long `end(drop=True)` waits for a write in progress."""


class ProjectionThread:
    """Writes projections in a thread; pending writes of the same projection are merged.

    Nothing waits for projections. A state that is outdated when the thread reaches it is not written. The
    cleaner corrects projections that are lost when the process dies.
    """

    def __init__(self, projections: Projections) -> None:
        self._projections = projections
        self._waiting: dict[tuple[str, ...], Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = False
        self._broken: BaseException | None = None

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._broken is not None:
            raise self._broken

    def lot(self, dataset: DatasetId, lot: str) -> None:
        """Write the projection of a lot's current manifest."""
        self._enqueue(("lot", *dataset.parts, lot), lambda: self._projections.lot(dataset, lot))

    def arc(self, project: str, version: str, arc: str, lot: str, read: ReadState) -> None:
        """Write the projection of an arc's lot."""
        self._enqueue(
            ("arc", project, version, arc, lot),
            lambda: self._projections.arc(project, version, arc, lot, read),
        )

    def _enqueue(self, key: tuple[str, ...], write: Callable[[], None]) -> None:
        with self._changed:
            if self._over or len(self._waiting) >= MOST_WAITING:
                return  # the cleaner corrects it
            self._waiting[key] = write
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
                write = self._waiting.pop(next(iter(self._waiting)))
            try:
                with contextlib.suppress(TidemillError):  # the cleaner corrects it
                    write()
            except BaseException as error:  # noqa: BLE001 - a crash point: raised by `check`
                error.add_note("in the thread that writes projections")
                self._broken = error
                return

    def end(self, *, drop: bool = False) -> None:
        """Write the pending projections, and end the thread. With `drop`, leave them to the cleaner."""
        with self._changed:
            self._over = True
            if drop:
                self._waiting.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(DROP_S if drop else None)
