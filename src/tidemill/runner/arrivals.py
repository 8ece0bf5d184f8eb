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
from tidemill.sources import leasing, windows
from tidemill.sources.consuming import TopicReader
from tidemill.sources.drawing import Drawer
from tidemill.sources.holdings import Holdings
from tidemill.sources.http_push import Endpoint, PushServer
from tidemill.sources.kafka import KafkaSpec
from tidemill.sources.keys import SourceKeys
from tidemill.sources.looking import Looked
from tidemill.sources.poller import Poller
from tidemill.sources.polling import PollSpec
from tidemill.sources.push_host import PushHost
from tidemill.sources.pushing import PushSpec
from tidemill.sources.receiving import Receiver
from tidemill.sources.windows import Failed
from tidemill.sources.work import SourceWork
from tidemill.spark.evaluating import Evaluate
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
    - evaluate: tells which rows expressions are true for, on this runner's Spark.
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
    evaluate: Evaluate | None = None


def arrival(ground: Ground, source: SourceProgram | StreamProgram) -> Arrival:
    """What takes from a source, by its kind."""
    if isinstance(source, SourceProgram):
        return FileArrival(ground, source)
    if isinstance(source.place, PushSpec):
        return PushArrival(ground, source, source.place)
    if isinstance(source.place, PollSpec):
        return PollArrival(ground, source, source.place)
    return KafkaArrival(ground, source, source.place)


class FileArrival:
    """Files of a folder or a bucket."""

    def __init__(self, ground: Ground, source: SourceProgram) -> None:
        self._ground = ground
        self._source = source.spec.id
        self._rest_s = 2 * source.spec.policy.settle_s + POLL_EVERY_S
        self._rest_by: float | None = None  # when all that our first look found has come to rest
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
        if self._rest_by is None:
            self._rest_by = self._ground.clock.monotonic() + self._rest_s
        looked = self._work.look(fresh_s=fresh_s)
        ended = self._work.work()
        left = self._ground.store.run(lambda tx: windows.open_windows(tx, self._ground.keys, self._source))
        waits = looked is None or not looked.whole or self._rests(looked)
        return Polled(
            taken=looked.taken if looked is not None else 0,
            settled=not waits and all(isinstance(one, Failed) for one in left),
            failed=tuple(f"{one.kind}: {one.message}" for one in left if isinstance(one, Failed)),
            wait_s=0.0 if ended else POLL_EVERY_S,  # there may be more
        )

    def _rests(self, looked: Looked) -> bool:
        """Is there a file that may come to rest soon? What was there at first has by now; one that somebody
        goes on writing, or that came later, is for the next time: it would keep who catches up for ever.
        """
        assert self._rest_by is not None
        return looked.waiting_s is not None and self._ground.clock.monotonic() < self._rest_by

    def close(self) -> None:
        """Nothing: a look gives its lease back, and windows lapse with the node."""


class PushArrival:
    """Rows that are pushed: received while the runner watches; one that catches up waits for none."""

    def __init__(self, ground: Ground, source: StreamProgram, spec: PushSpec) -> None:
        self._ground = ground
        self._source = source
        self._spec = spec
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
        ground, source, spec = self._ground, self._source, self._spec
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
            checks=source.checks,
            growing=source.growing,
            evaluate=ground.evaluate,
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


class PollArrival:
    """A web address that is asked for what is new, by the one node that has its lease."""

    def __init__(self, ground: Ground, source: StreamProgram, spec: PollSpec) -> None:
        self._ground = ground
        self._key = ground.keys.fetching(source.id)
        self._every_s = spec.every_s
        self._poller = Poller(
            spec, drawer(ground, source), source.convert, clock=ground.clock, emit=ground.emit
        )
        self._lock = threading.Lock()
        self._closed = False
        self._held: Held | None = None
        self._due = 0.0

    def poll(self) -> Polled:
        """Ask, if it is ours to ask and the pause is over. One that catches up asks once."""
        with self._lock:
            if self._closed:
                return Polled()
            if self._held is None or not self._held.alive():
                self._held = leasing.acquire(self._ground.keeper, self._key)
            if self._held is None:
                return Polled()  # another node asks
            now = self._ground.clock.monotonic()
            if now < self._due:
                return Polled(wait_s=min(POLL_EVERY_S, self._due - now))
            drawn = self._poller.poll(self._held.fence)
            self._due = self._ground.clock.monotonic() + self._every_s
            return Polled(taken=bool(drawn.lot), wait_s=min(POLL_EVERY_S, self._every_s))

    def close(self) -> None:
        """Let another node ask."""
        with self._lock:
            self._closed = True
            held, self._held = self._held, None
        if held is not None:
            self._ground.keeper.release(held)


class KafkaArrival:
    """A topic whose partitions nodes share. One that catches up reads to the end of those it has."""

    def __init__(self, ground: Ground, source: StreamProgram, spec: KafkaSpec) -> None:
        self._watching = ground.watching
        self._lock = threading.Lock()
        self._closed = False
        holdings = Holdings(
            source.id,
            store=ground.store,
            keys=ground.keys,
            node=ground.node,
            clock=ground.clock,
            chance=random.Random(ground.chance.getrandbits(64)),
            ttl_s=ground.keeper.ttl_s,
        )
        self._reader = TopicReader(spec, drawer(ground, source), source.convert, holdings, emit=ground.emit)

    def poll(self) -> Polled:
        with self._lock:
            if self._closed:
                return Polled()
            found = self._reader.consume()
        idle_s = 0.1 if self._watching() else POLL_EVERY_S  # a look waits for messages by itself
        return Polled(
            taken=bool(found.drawn.lot),
            settled=found.caught_up,
            failed=found.stuck,
            wait_s=0.0 if found.drawn.lot else idle_s,
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._reader.close()


def drawer(ground: Ground, source: StreamProgram) -> Drawer:
    """What publishes the batches of a source."""
    assert source.quarantine is not None
    return Drawer(
        source.id,
        source.dataset,
        source.quarantine,
        checks=source.checks,
        growing=source.growing,
        evaluate=ground.evaluate,
        store=ground.store,
        keys=ground.keys,
        node=ground.node,
        objects=ground.objects,
        clock=ground.clock,
        chance=random.Random(ground.chance.getrandbits(64)),
        emit=ground.emit,
    )
