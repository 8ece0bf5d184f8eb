"""Projections beside the work: names that show states are written by a thread of their own.

Nothing waits for them: they are for people and other tools, may be behind, and can be rebuilt. A state that
has passed by the time its turn comes is not shown at all. What is lost when the process dies is put right by
the next cleaner (`leftovers`).
"""

import contextlib
import threading
from collections.abc import Callable

from tidemill.errors import TidemillError
from tidemill.lots.keys import DatasetId
from tidemill.publish.projections import Projections, ReadState

MOST_WAITING = 1000
DROP_S = 2.0
"""How long an end at once waits for what is being shown."""


class Projecting:
    """Shows lots and arcs as `Projections` does, a little later; several shows of one thing are one."""

    def __init__(self, projections: Projections) -> None:
        self._projections = projections
        self._waiting: dict[tuple[str, ...], Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = False
        self._broken: BaseException | None = None

    def check(self) -> None:
        """Raise what stands for the death of this process, if anything does."""
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
                return  # the cleaner looks at it anyway
            self._waiting[key] = show
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="projecting", daemon=True)
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
                with contextlib.suppress(TidemillError):  # the cleaner looks at it again
                    show()
            except BaseException as error:  # noqa: BLE001 - a crash point: told by `check`
                self._broken = error
                return

    def end(self, *, drop: bool = False) -> None:
        """Show what waits, and no more; or, to end at once, not even that: the cleaner looks at it."""
        with self._changed:
            self._over = True
            if drop:
                self._waiting.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(DROP_S if drop else None)
