"""The janitor: deletes results in object storage that nobody needs any more, from a thread of its own.

Names of such objects are in the store (`garbage`), written by the transaction that let go of them. They are
read, the objects deleted, and only then the names cleared: a crash in between deletes nothing twice that
matters, because no name is used again. Only the leader's worker does it; a second one would do no harm.
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
    """Deletes garbage while `leads` says so, until it is closed.

    Args:
        store: where the names are.
        keys: of the cluster.
        objects: gives the object storage; called when there is something to delete.
        leads: whether this worker leads now.
        clock: for the pauses.
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
                continue  # what is there is there the next time too

    def sweep(self) -> int:
        """Delete a page; how many there were."""
        names = self._store.run(self._read)
        if names:
            self._objects().delete_many(names)
            self._store.run(lambda tx: self._clear(tx, names))
        return len(names)

    def _read(self, tx: Tx) -> list[str]:
        found = tx.range(*self._keys.garbage.all(), limit=PAGE, snapshot=True)
        return [str(self._keys.garbage.unpack(row.key)[0]) for row in found]

    def _clear(self, tx: Tx, names: list[str]) -> None:
        for name in names:
            tx.clear(self._keys.garbage[name])

    def close(self) -> None:
        """End; a deletion under way is not waited for long."""
        self._over.set()
        self._thread.join(1.0)

    def __enter__(self) -> "Janitor":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
