"""Count how many handles a client has to each future, and release them in batches (FUT-34, FUT-64).

The store records which clients *hold* a future, which means that they have a handle to it. A future that the
client itself submits is recorded with the submission. Other futures are recorded here.

The garbage collector may drop a handle at any time, in any thread. So a dropped handle only adds its id to a
queue, and the client's thread does the rest. A small result is stored in the future's row and needs no
release: dropping its handle costs a read and no write. If a future has not ended, the client waits some time
before it changes the future's row, because a changed row makes it slower for the worker to write the result.

A pickled handle may be on its way to another process, which counts it after it arrives. So this client keeps
counting the handle for a grace period.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from tidemill.clock import Clock
from tidemill.errors import StoreError
from tidemill.futures.client.completions import Completions
from tidemill.futures.protocol import results
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, Realized
from tidemill.futures.protocol.states import ENDED
from tidemill.store import Store, Tx

IN_TRANSIT_S = 600.0
UNENDED_S = 30.0
READ_PAGE, READ_PAGES, RELEASE_PAGE, HOLD_PAGE = 500, 4, 50, 100


class HandleCounts:
    """Counts the handles of one client.

    Args:
        store: the store.
        keys: the keys of futures.
        owner: the id of the client's node, which holds the handles.
        completions: reads the states of futures.
        clock: the source of time.
    """

    def __init__(
        self, store: Store, keys: FutureKeys, owner: str, completions: Completions, clock: Clock
    ) -> None:
        self.store = store
        self.keys = keys
        self.owner = owner
        self.clock = clock
        self._completions = completions
        self._lock = threading.Lock()
        self._counts: dict[bytes, int] = {}
        self._arrived: dict[bytes, None] = {}  # submitted by other clients, and not recorded as held yet
        self._held: set[bytes] = set()  # submitted by other clients, and recorded as held
        self._in_transit: dict[bytes, float] = {}  # pickled handles, and until when they count here
        self._dropped: deque[bytes] = deque()
        self._unreferenced: dict[bytes, float] = {}  # futures without a handle, and since when

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, ids: Iterable[bytes], *, own: bool) -> None:
        """Count one more handle to each future.

        If other clients submitted the futures (`own` is False), the next tick records that we hold them.
        """
        with self._lock:
            counts = self._counts
            for future_id in ids:
                counts[future_id] = counts.get(future_id, 0) + 1
                if not own and future_id not in self._held:
                    self._arrived[future_id] = None

    def drop(self, future_id: bytes) -> None:
        """Record a dropped handle. Takes no lock, because the dropping thread may hold any lock."""
        self._dropped.append(future_id)

    def sent(self, future_id: bytes) -> None:
        """Record that a handle was pickled: it may be on its way to another process."""
        with self._lock:
            self._in_transit[future_id] = self.clock.monotonic() + IN_TRANSIT_S

    def tick(self, *, last: bool = False) -> None:
        """Record which new futures we hold, and release some that we no longer hold.

        If `last` is set, release everything that can be released now. If the store does not answer, the next
        tick tries again.
        """
        try:
            self._hold()
            self._count_dropped()
            self._release(last=last)
        except StoreError:
            return

    def hold_again(self) -> None:
        """Record again all futures that we hold: our lease had expired, so they may have been released."""
        with self._lock:
            self._arrived.update(dict.fromkeys(self._counts))

    def _hold(self) -> None:
        while True:
            with self._lock:
                page = list(self._arrived)[:HOLD_PAGE]
            if not page:
                return
            self.store.run(lambda tx, page=page: results.hold(tx, self.keys, self.owner, page))  # type: ignore[misc]
            with self._lock:
                self._held.update(page)
                for future_id in page:
                    self._arrived.pop(future_id, None)

    def _count_dropped(self) -> None:
        now = self.clock.monotonic()
        with self._lock:
            for future_id, until in list(self._in_transit.items()):
                if until <= now:
                    del self._in_transit[future_id]
            for _ in range(len(self._dropped)):
                future_id = self._dropped.popleft()
                left = self._counts.get(future_id, 1) - 1
                if left > 0:
                    self._counts[future_id] = left
                elif future_id in self._in_transit:
                    self._dropped.append(future_id)
                else:
                    self._counts.pop(future_id, None)
                    self._unreferenced[future_id] = now
            for future_id in self._counts.keys() & self._unreferenced.keys():
                del self._unreferenced[future_id]  # there is a handle again

    def _release(self, *, last: bool) -> None:
        now = self.clock.monotonic()
        ids = list(self._unreferenced) if last else list(islice(self._unreferenced, READ_PAGES * READ_PAGE))
        for at in range(0, len(ids), READ_PAGE):
            page = ids[at : at + READ_PAGE]
            to_release = []
            for future_id, row in zip(page, self._completions.read(page), strict=True):
                if future_id in self._held or _is_outside(row):
                    to_release.append(future_id)
                elif row is None or row.state in ENDED:
                    self._unreferenced.pop(future_id, None)
                elif now - self._unreferenced[future_id] > UNENDED_S:
                    to_release.append(future_id)
                else:
                    self._unreferenced[future_id] = self._unreferenced.pop(future_id)  # move it to the end
            for start in range(0, len(to_release), RELEASE_PAGE):
                self._release_page(to_release[start : start + RELEASE_PAGE])

    def _release_page(self, page: Sequence[bytes]) -> None:
        def release(tx: Tx) -> None:
            results.release(tx, self.keys, self.owner, page)

        self.store.run(release)
        with self._lock:
            for future_id in page:
                self._unreferenced.pop(future_id, None)
                self._held.discard(future_id)


def _is_outside(row: AnyRow | None) -> bool:
    """Return whether the result is stored outside of the future's row."""
    return isinstance(row, Realized) and row.result.location.kind in ("segment", "object", "actor")
