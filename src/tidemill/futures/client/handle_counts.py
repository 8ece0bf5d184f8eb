"""Handles are counted per client, and released in batches when they are dropped (FUT-34, FUT-64).

A handle that is dropped only notes its id: it may be dropped anywhere, by the collector, in the middle of
anything. The client's own thread does the rest. What lies in the row needs no release, so that a dropped
handle of a small result costs a read and no write. One that has not ended is given some time to end before
its row is written: its worker would have to complete it the slow way.

A handle that was pickled may be on its way to another process, which holds it from its arrival on; until
then, for a grace, it counts here.
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

ON_ITS_WAY_S = 600.0
UNENDED_S = 30.0
READ_PAGE, READ_PAGES, RELEASE_PAGE, HOLD_PAGE = 500, 4, 50, 100


class HandleCounts:
    """The handles that one client has.

    Args:
        store: where their futures are.
        keys: of the cluster.
        owner: the id of the client's node, under which its handles are held.
        waiting: reads the futures' states.
        clock: of the client.
    """

    def __init__(
        self, store: Store, keys: FutureKeys, owner: str, waiting: Completions, clock: Clock
    ) -> None:
        self.store = store
        self.keys = keys
        self.owner = owner
        self.clock = clock
        self._waiting = waiting
        self._lock = threading.Lock()
        self._counts: dict[bytes, int] = {}
        self._arrived: dict[bytes, None] = {}  # of others, not held yet
        self._held: set[bytes] = set()  # of others
        self._on_their_way: dict[bytes, float] = {}
        self._dropped: deque[bytes] = deque()
        self._unwanted: dict[bytes, float] = {}  # no handle is left; since when

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, ids: Iterable[bytes], *, ours: bool) -> None:
        """There is one more handle of each; those that others submitted will be held by the next tick."""
        with self._lock:
            counts = self._counts
            for one in ids:
                counts[one] = counts.get(one, 0) + 1
                if not ours and one not in self._held:
                    self._arrived[one] = None

    def drop(self, future_id: bytes) -> None:
        """A handle is gone. Takes no lock: whoever drops it may hold any."""
        self._dropped.append(future_id)

    def sent(self, future_id: bytes) -> None:
        """A handle was pickled: it may be on its way to another process."""
        with self._lock:
            self._on_their_way[future_id] = self.clock.monotonic() + ON_ITS_WAY_S

    @property
    def busy(self) -> bool:
        """Is there something for `tick` to do soon?"""
        return bool(self._dropped or self._arrived)

    def tick(self, *, last: bool = False) -> None:
        """Hold what arrived and release what was dropped: some of it, or with `last` all that has ended.

        A store that does not answer leaves everything for the next time.
        """
        try:
            self._hold()
            self._count_off()
            self._release(last=last)
        except StoreError:
            return

    def hold_again(self) -> None:
        """Our lease had run out, and what we held may have been released: hold what is still there."""
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
                for one in page:
                    self._arrived.pop(one, None)

    def _count_off(self) -> None:
        now = self.clock.monotonic()
        with self._lock:
            for one, until in list(self._on_their_way.items()):
                if until <= now:
                    del self._on_their_way[one]
            for _ in range(len(self._dropped)):
                one = self._dropped.popleft()
                left = self._counts.get(one, 1) - 1
                if left > 0:
                    self._counts[one] = left
                elif one in self._on_their_way:
                    self._dropped.append(one)
                else:
                    self._counts.pop(one, None)
                    self._unwanted[one] = now
            for one in self._counts.keys() & self._unwanted.keys():
                del self._unwanted[one]  # it came back

    def _release(self, *, last: bool) -> None:
        now = self.clock.monotonic()
        ids = list(self._unwanted) if last else list(islice(self._unwanted, READ_PAGES * READ_PAGE))
        for at in range(0, len(ids), READ_PAGE):
            page = ids[at : at + READ_PAGE]
            kept_outside = []
            for one, row in zip(page, self._waiting.read(page), strict=True):
                if one in self._held or _is_outside(row):
                    kept_outside.append(one)
                elif row is None or row.state in ENDED:
                    self._unwanted.pop(one, None)
                elif now - self._unwanted[one] > UNENDED_S:
                    kept_outside.append(one)
                else:
                    self._unwanted[one] = self._unwanted.pop(one)  # its turn comes again after the others
            for start in range(0, len(kept_outside), RELEASE_PAGE):
                self._release_page(kept_outside[start : start + RELEASE_PAGE])

    def _release_page(self, page: Sequence[bytes]) -> None:
        def release(tx: Tx) -> None:
            results.release(tx, self.keys, self.owner, page)

        self.store.run(release)
        with self._lock:
            for one in page:
                self._unwanted.pop(one, None)
                self._held.discard(one)


def _is_outside(row: AnyRow | None) -> bool:
    return isinstance(row, Realized) and row.result.location.kind in ("segment", "object", "actor")
