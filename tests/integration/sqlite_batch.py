"""Calls of a SQLite store that are certain to share a batch."""

import threading
from collections.abc import Callable
from typing import Any

from tidemill.clock import SYSTEM, poll
from tidemill.store import Tx
from tidemill.store.sqlite import SqliteStore
from tidemill.testing.threads import STUCK_S, Racer


def eventually(ready: Callable[[], bool]) -> None:
    assert poll(ready, SYSTEM, every_s=0.001, timeout_s=STUCK_S)


class Batch:
    """Calls that are certain to share a batch: they queue up behind one that waits for them all."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._go = threading.Event()

    def run(self, *fns: Callable[[Tx], Any]) -> list[Racer[Any]]:
        """The racers of the functions, in their order, all answered."""
        inside = threading.Event()

        def hold(tx: Tx) -> None:
            tx.set(b"held", b"")  # from here on it is on the writer
            inside.set()
            assert self._go.wait(STUCK_S)

        holder = Racer(lambda: self._store.run(hold))
        holder.start()
        assert inside.wait(STUCK_S)
        racers = []
        for n, fn in enumerate(fns):
            racers.append(Racer(lambda fn=fn: self._store.run(fn)))
            racers[-1].start()
            eventually(lambda n=n: self._store._writer._queue.qsize() + self._store._writer._gathering > n)
        self._go.set()
        holder.outcome()
        for racer in racers:
            racer.join(STUCK_S)
        return racers
