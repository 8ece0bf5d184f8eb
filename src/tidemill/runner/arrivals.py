"""Arrivals: what a runner does for one source, again and again, whatever kind of source it is.

Files are looked for, taken and worked on; what is pushed is received by one node under a lease. The loop asks
each in a line of its own, and closes them when its node's epoch is over.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidemill.clock import Clock
from tidemill.cluster.keeper import Held, Keeper
from tidemill.cluster.nodes import Node
from tidemill.events import Emit
from tidemill.objects import Objects
from tidemill.publish.parts import Parts
from tidemill.runner.program import SourceProgram, StreamProgram
from tidemill.sources import windows
from tidemill.sources.http_push import Endpoint, PushServer
from tidemill.sources.keys import SourceKeys
from tidemill.sources.push_host import PushHost
from tidemill.sources.receiving import Receiver
from tidemill.sources.windows import Failed
from tidemill.sources.work import SourceWork
from tidemill.store import Store

POLL_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Polled:
    """What one turn of a source came to.

    - taken: files, or batches.
    - settled: is everything in that has arrived, but for what failed?
    - failed: what could not be taken, in words.
    - wait_s: until it is asked again.
    """

    taken: int = 0
    settled: bool = True
    failed: tuple[str, ...] = ()
    wait_s: float = POLL_EVERY_S


class Arrival(Protocol):
    """One source on one node."""

    def poll(self) -> Polled:
        """Take what is there, as far as it is ours to take."""
        ...

    def close(self) -> None:
        """Let other nodes have it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What the arrivals of one node stand on, under one epoch of it.

    - watching: does this runner stay for what arrives? One that does not receives nothing.
    - keeper: of the node's leases, renewed by a thread of its own.
    """

    store: Store
    keys: SourceKeys
    objects: Objects
    node: Node
    parts: Parts
    keeper: Keeper
    clock: Clock
    chance: random.Random
    emit: Emit
    watching: Callable[[], bool]


def arrival(ground: Ground, source: SourceProgram | StreamProgram) -> Arrival:
    """What takes from a source, by its kind."""
    if isinstance(source, SourceProgram):
        return FileArrival(ground, source)
    return PushArrival(ground, source)


class FileArrival:
    """Files of a folder or a bucket."""

    def __init__(self, ground: Ground, source: SourceProgram) -> None:
        self._ground = ground
        self._source = source.spec.id
        self._work = SourceWork(
            source.spec,
            source.place.listing(),
            store=ground.store,
            keys=ground.keys,
            node=ground.node,
            objects=ground.objects,
            parts=ground.parts,
            clock=ground.clock,
            chance=ground.chance,
            keeper=ground.keeper,
            emit=ground.emit,
        )

    def poll(self) -> Polled:
        """Take what is new, and work on what was taken, by us or by somebody who is gone."""
        fresh_s = POLL_EVERY_S if self._ground.watching() else 0.0
        looked = self._work.look(fresh_s=fresh_s)
        ended = self._work.work()
        left = self._ground.store.run(lambda tx: windows.open_windows(tx, self._ground.keys, self._source))
        waits = looked is None or not looked.whole or looked.waiting_s is not None
        return Polled(
            taken=looked.taken if looked is not None else 0,
            settled=not waits and all(isinstance(one, Failed) for one in left),
            failed=tuple(f"{one.kind}: {one.message}" for one in left if isinstance(one, Failed)),
            wait_s=0.0 if ended else POLL_EVERY_S,  # there may be more
        )

    def close(self) -> None:
        """Nothing: a look gives its lease back, and windows lapse with the node."""


class PushArrival:
    """Rows that are pushed: received while the runner watches; one that catches up waits for none."""

    def __init__(self, ground: Ground, source: StreamProgram) -> None:
        self._ground = ground
        self._source = source
        self._lock = threading.Lock()  # closed by the loop, while a line may be at it
        self._closed = False
        self._host = PushHost(
            source.id,
            store=ground.store,
            keys=ground.keys,
            keeper=ground.keeper,
            make=self._server,
            emit=ground.emit,
        )

    def poll(self) -> Polled:
        with self._lock:
            if self._ground.watching() and not self._closed:
                self._host.tick()
        return Polled()

    def close(self) -> None:
        """What waits is published and answered first."""
        with self._lock:
            self._closed = True
            self._host.close()

    def _server(self, held: Held) -> PushServer:
        ground, source, spec = self._ground, self._source, self._source.place
        receiver = Receiver(
            source.id,
            source.dataset,
            store=ground.store,
            keys=ground.keys,
            node=ground.node,
            objects=ground.objects,
            clock=ground.clock,
            chance=random.Random(ground.chance.getrandbits(64)),
            fence=held.fence,
            emit=ground.emit,
        )
        server = PushServer(
            {spec.path or source.dataset.name: Endpoint(receiver, source.convert)},
            token=spec.token,
            host=spec.host,
            port=spec.port,
            public=spec.public,
            body_bytes=spec.body_bytes,
        )
        receiver.start()
        return server
