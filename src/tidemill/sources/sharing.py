"""Sharing: one node's part in a listing that several nodes share (`stretches`)."""

import random
from collections.abc import Callable
from typing import TypeVar

from tidemill import crash
from tidemill.clock import Clock
from tidemill.cluster import partitions
from tidemill.cluster.leases import SECOND_US, TTL_S
from tidemill.cluster.partitions import Partition
from tidemill.events import Emit, ignore
from tidemill.sources import stretches
from tidemill.sources.events import StretchesMade, StretchLooked
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import Listing
from tidemill.sources.looking import Looked, Looker
from tidemill.sources.stretches import Arranged
from tidemill.store import Store, Tx

T = TypeVar("T")


class Sharing:
    """Looks at whichever stretches are due and free.

    Args:
        source: whose listing it is.
        looker: takes what is new in a stretch.
        listing: cut into stretches when there are none.
        holder: the node's id and epoch, as one text.
        most: how many stretches there are to be, if there are enough files.
        ttl_s: for how long a stretch is held without renewal.
    """

    def __init__(
        self,
        source: str,
        looker: Looker,
        listing: Listing,
        *,
        store: Store,
        keys: SourceKeys,
        holder: str,
        most: int,
        clock: Clock,
        chance: random.Random,
        emit: Emit = ignore,
        ttl_s: float = TTL_S,
    ) -> None:
        self._source = source
        self._looker = looker
        self._listing = listing
        self._store = store
        self._keys = keys
        self._holder = holder
        self._most = most
        self._clock = clock
        self._chance = chance
        self._emit = emit
        self._ttl_us = int(ttl_s * SECOND_US)

    def look(self, *, fresh_s: float = 0.0) -> Looked:
        """Look at every stretch that nobody has looked at within `fresh_s`, as far as others leave them.

        `whole` in the answer says whether the look of every stretch began after this call did, by whomever.
        """
        since = self._store.run(lambda tx: tx.now()) - int(fresh_s * SECOND_US)
        arranged = self._store.run(lambda tx: stretches.read(tx, self._keys, self._source))
        if arranged is None:
            arranged = self._arrange(None)
        total = Looked()
        grown = False
        mine: set[str] = set()  # the store's time may stand still between two looks of ours
        left = True
        while left:
            names = [name for name in self._due(arranged, since) if name not in mine]
            self._chance.shuffle(names)  # nodes do not run after the same stretch
            left = False
            for name in names:
                part = self._step("take-stretch", lambda tx, name=name: self._take(tx, arranged, name, since))  # type: ignore[misc]
                if part is not None:
                    mine.add(name)
                    looked, large = self._look_at(arranged, part)
                    total, grown, left = total.joined(looked), grown or large, True
        whole = mine.issuperset(self._due(arranged, since))
        if grown:
            self._arrange(arranged)
        return total.joined(Looked(whole=whole))

    def _due(self, arranged: Arranged, since: int) -> list[str]:
        return self._store.run(lambda tx: stretches.due(tx, self._keys, self._source, arranged, since))

    def _take(self, tx: Tx, arranged: Arranged, name: str, since: int) -> Partition | None:
        return stretches.take(tx, self._keys, self._source, arranged, name, self._holder, since, self._ttl_us)

    def _look_at(self, arranged: Arranged, part: Partition) -> tuple[Looked, bool]:
        cluster = self._keys.publish.cluster
        began = self._store.run(lambda tx: tx.now())
        due = self._clock.monotonic() + self._ttl_us / SECOND_US / 3

        def keep() -> None:
            nonlocal due
            if self._clock.monotonic() >= due:
                due = self._clock.monotonic() + self._ttl_us / SECOND_US / 3
                self._store.run(lambda tx: partitions.renew(tx, cluster, part, self._ttl_us))

        def fence(tx: Tx) -> None:
            partitions.check(tx, cluster, part)

        where = stretches.stretch_of(part)
        looked = self._looker.look(after=where.after, until=where.until, fence=fence, each_page=keep)
        grown = self._step(
            "finish-stretch",
            lambda tx: stretches.finish(tx, self._keys, self._source, arranged, part, began, looked.listed),
        )
        self._emit(
            StretchLooked(source=self._source, stretch=part.id, holder=self._holder, listed=looked.listed)
        )
        return looked, grown

    def _arrange(self, known: Arranged | None) -> Arranged:
        paths = (file.path for file in self._listing.files(lambda *_: None))
        found, files = stretches.cut(paths, self._most)
        arranged = self._step(
            "arrange",
            lambda tx: stretches.arrange(tx, self._keys, self._source, found, files, known),
        )
        self._emit(StretchesMade(source=self._source, stretches=arranged.stretches, files=arranged.files))
        return arranged

    def _step(self, name: str, fn: Callable[[Tx], T]) -> T:
        crash.point(f"sources.{name}.before")
        answer = self._store.run(fn)
        crash.point(f"sources.{name}.after")
        return answer
