"""The janitor: a thread that deletes unreferenced results from object storage.

The transaction that removes the last reference to an object writes the object's name to the store
(`garbage`). The janitor reads the names, deletes the objects and then clears the names. After a crash between
the last two steps, it deletes some objects again. This is harmless, because no name is reused. Only the
janitor of the leader deletes objects, but two janitors at the same time would do no harm.
"""

import threading
from collections.abc import Callable

from tidemill.clock import Clock
from tidemill.errors import ObjectError, StoreError
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.objects import Objects
from tidemill.store import Store, Tx

EVERY_S = 2.0
PAGE = 100


class Janitor:
    """Deletes unreferenced objects while `leads` returns True, until it is closed.

    Args:
        store: contains the names.
        keys: the keys of the cluster.
        objects: opens the object storage; called when there is something to delete.
        leads: returns whether this worker is the leader.
        clock: the source of time.
    """

    def __init__(
        self,
        store: Store,
        keys: FutureKeys,
        objects: Callable[[], Objects],
        leads: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._store = store
        self._keys = keys
        self._objects = objects
        self._leads = leads
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._clock.wait(self._over, EVERY_S):
            try:
                while self._leads() and self.sweep() == PAGE and not self._over.is_set():
                    pass
            except (StoreError, ObjectError):
                continue  # the names are still there the next time

    def sweep(self) -> int:
        """Delete one page of objects and return how many were deleted."""
        names = self._store.run(self._read)
        if names:
            self._objects().delete_many(names)
            self._store.run(lambda tx: self._clear(tx, names))
        return len(names)

    def _read(self, tx: Tx) -> list[str]:
        page = tx.range(*self._keys.garbage.all(), limit=PAGE, snapshot=True)
        return [str(self._keys.garbage.unpack(row.key)[0]) for row in page]

    def _clear(self, tx: Tx, names: list[str]) -> None:
        for name in names:
            tx.clear(self._keys.garbage[name])

    def close(self) -> None:
        """Stop the thread. Wait at most a second for a deletion in progress."""
        self._over.set()
        self._thread.join(1.0)

    def __enter__(self) -> "Janitor":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
