"""Waiting for futures: a window of them is watched and read at a time, by the thread that waits.

A handle that nobody waits for costs nothing here, and a wait for a hundred thousand futures costs a window:
the oldest five hundred that have not ended are watched, read in one transaction that only reads, and the
window moves on. A wake-up for many brings many ends, so a wide window is read a little later instead of once
per commit; a wait for a few is read at once. Where no watch speaks, polling does (STO-8).

Rejected: one thread that waits for everybody. Each wake-up would pass through it to whoever waits, and two
threads taking turns cost more than the read itself; a watch that was made cannot be widened, so that every
new wait would have to interrupt it.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tidemill.clock import Clock
from tidemill.errors import FutureTimeout
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow
from tidemill.futures.protocol.states import ENDED
from tidemill.store import Store, Tx, Watch

WINDOW = 500
FIRST_POLL_S, LAST_POLL_S, SLOWER = 0.05, 1.0, 1.5
NARROW = 50
FIRST_GATHER_S, LAST_GATHER_S = 0.003, 0.05
"""How long a window that is not narrow is left alone after a wake-up, so that one read finds many ends."""

LOOK_AFTER_S, LOOK_AFTER = 5.0, 3
"""How long nothing may end before some of the oldest are looked after, and how many."""


class EndedFuture(NamedTuple):
    """A future that has ended; `row` is None when there is no such future (any more)."""

    id: bytes
    row: AnyRow | None


class Completions:
    """Waits for futures of one cluster.

    Args:
        store: where they are.
        keys: of the cluster.
        clock: of whoever waits.
    """

    def __init__(
        self,
        store: Store,
        keys: FutureKeys,
        clock: Clock,
    ) -> None:
        self.store = store
        self.keys = keys
        self.clock = clock
        self.look_after: Callable[[Sequence[bytes]], None] = _leave_alone
        """Told of some that are awaited while nothing ends (FUT-49); what it raises ends the wait."""

    def read(self, ids: Sequence[bytes]) -> list[AnyRow | None]:
        """The state rows of some futures as they are now."""
        return self.read_keys([self.keys.future[one] for one in ids])

    def read_keys(self, keys: Sequence[bytes]) -> list[AnyRow | None]:
        """The same, by the keys of the rows."""

        def read_rows(tx: Tx) -> list[bytes | None]:
            return tx.get_many(keys)

        return [None if raw is None else rows.decode_row(raw) for raw in self.store.run(read_rows)]

    def ended(self, ids: Iterable[bytes], timeout_s: float | None = None) -> Iterator[list[EndedFuture]]:
        """Those that have ended, in the order in which it is noticed; `FutureTimeout` when the time is over.

        Every future is given once. The iterator may be left at any time.
        """
        return iter(_Wait(self, dict.fromkeys(ids), timeout_s))


class _Wait:
    """One wait: what is outstanding, and the window of it that is watched."""

    def __init__(self, waiting: Completions, outstanding: dict[bytes, None], timeout_s: float | None) -> None:
        self._all = waiting
        self._clock = waiting.clock
        self._outstanding = outstanding
        self._total = len(outstanding)
        self._timeout_s = timeout_s
        self._looked_at = self._quiet_since = self._clock.monotonic()
        self._end_at = None if timeout_s is None else self._looked_at + timeout_s
        self._window: dict[bytes, bytes] = {}  # ids and their keys
        self._watch: Watch | None = None
        self._poll_s = FIRST_POLL_S
        self._per_s = 0.0  # how many ended lately

    def __iter__(self) -> Iterator[list[EndedFuture]]:
        try:
            while self._outstanding:
                self._move_window()
                ended = self._look()
                if ended:
                    yield ended
                if self._window and self._end_at is not None and self._clock.monotonic() >= self._end_at:
                    raise FutureTimeout(self._said())
                if not ended:
                    self._wait()
                elif len(ended) < len(self._window):
                    self._gather()
        finally:
            if self._watch is not None:
                self._watch.close()

    def _move_window(self) -> None:
        """Fill the window up when it is half empty; watch it before it is read."""
        wanted = min(WINDOW, len(self._outstanding))
        if self._watch is not None and len(self._window) >= min(wanted, WINDOW // 2):
            return
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        space = self._all.keys.future
        self._window = {one: space[one] for one in itertools.islice(self._outstanding, wanted)}
        self._watch = self._all.store.watch(self._window.values())

    def _look(self) -> list[EndedFuture]:
        ended = []
        for one, row in zip(
            list(self._window), self._all.read_keys(list(self._window.values())), strict=True
        ):
            if row is None or row.state in ENDED:
                ended.append(EndedFuture(one, row))
                del self._window[one], self._outstanding[one]
        now = self._clock.monotonic()
        if ended:
            self._per_s = len(ended) / max(1e-3, now - self._looked_at)
            self._poll_s = FIRST_POLL_S
            self._quiet_since = now
        elif now - self._quiet_since > LOOK_AFTER_S:
            self._quiet_since = now
            self._all.look_after(list(itertools.islice(self._window, LOOK_AFTER)))
        self._looked_at = now
        return ended

    def _wait(self) -> None:
        """Until the window has news, or it is time to poll: the same window, or the next if there is more."""
        assert self._watch is not None
        poll_s = self._poll_s
        if self._end_at is not None:
            poll_s = min(poll_s, max(0.0, self._end_at - self._clock.monotonic()))
        if self._watch.wait(poll_s):
            self._gather()
            return
        self._poll_s = min(LAST_POLL_S, self._poll_s * SLOWER)
        if len(self._outstanding) > len(self._window):  # these take long: perhaps others are done
            for one in self._window:
                del self._outstanding[one]
                self._outstanding[one] = None
            self._window.clear()

    def _gather(self) -> None:
        """Some of many have ended: let more of them end before the window is read again.

        Half a window more, but not longer than a small part of what the rest will take.
        """
        if len(self._window) <= NARROW:
            return
        pause_s = FIRST_GATHER_S
        if self._per_s:
            pause_s = min(LAST_GATHER_S, min(WINDOW // 2, len(self._outstanding) / 8) / self._per_s)
        self._clock.sleep(pause_s)

    def _said(self) -> str:
        one = next(iter(self._outstanding))
        if self._total == 1:
            return f"future {one.hex()} has not ended within {self._timeout_s:.3g} s"
        left = len(self._outstanding)
        return f"{left:,} of {self._total:,} futures have not ended within {self._timeout_s:.3g} s"


def _leave_alone(ids: Sequence[bytes]) -> None:
    """For whoever cannot do anything for them."""
