"""A test environment for the cluster: members on one memory store and one fake clock, in one thread.

`play` ticks every member when it is due, and advances the time to the next one. That is what one thread per
member would do, without threads and waiting.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from tidemill.clock import Clock
from tidemill.cluster import nodes, partitions
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import LeaseTiming
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import Partition, PartitionMap
from tidemill.errors import LeaseLost, StoreUnavailable
from tidemill.events import Event
from tidemill.store import Tx
from tidemill.store.memory import MemoryStore
from tidemill.store.retry import Unknown, Unreached
from tidemill.testing.fake_clock import FakeClock
from tidemill.testing.holdings import HeldPartition, Holdings, PartitionMember

GROUP = "g"


class Trouble:
    """Faults of a memory store that a test switches on and off."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.down = False
        self.hide_commits = 0  # how many commits succeed and are not heard of
        self.attempts = 0
        self.interlude: Callable[[], None] | None = None  # runs once, between the reads and the commit
        self.postlude: Callable[[], None] | None = None  # runs once, after the commit, before it is heard of

    def before(self, store: MemoryStore) -> None:
        self.attempts += 1
        if self.down:
            raise Unreached("switched off")

    def between(self, store: MemoryStore) -> None:
        if self.interlude is not None:
            interlude, self.interlude = self.interlude, None
            interlude()

    def after(self, store: MemoryStore) -> None:
        if self.postlude is not None:
            postlude, self.postlude = self.postlude, None
            postlude()
        if self.hide_commits:
            self.hide_commits -= 1
            raise Unknown("switched off during the commit")

    def now_us(self) -> int:
        return int(self.clock.monotonic() * 1_000_000)

    def wall_us(self) -> int:
        return int(self.clock.wall() * 1_000_000)

    def loses_wakeup(self) -> bool:
        return False


class RecordingHost:
    """Works on partitions by writing down what it was told; `hands_back` says whether it obeys a stop."""

    def __init__(self, *, hands_back: bool = True) -> None:
        self.hands_back = hands_back
        self.holdings: Holdings | None = None
        self.started: list[HeldPartition] = []
        self.stopped: list[HeldPartition] = []
        self.aborted: list[HeldPartition] = []

    def start(self, held: HeldPartition) -> None:
        self.started.append(held)

    def stop(self, held: HeldPartition) -> None:
        self.stopped.append(held)
        if self.hands_back:
            assert self.holdings is not None
            self.holdings.hand_back(held)

    def abort(self, held: HeldPartition) -> None:
        self.aborted.append(held)


class Stage:
    """One store, one time, any number of members."""

    def __init__(self, *, seed: int = 1, ttl_s: float = 15.0, patience_s: float = 0.0) -> None:
        self.clock = FakeClock()
        self.trouble = Trouble(self.clock)
        self.chance = random.Random(seed)
        self.store = MemoryStore(
            clock=self.clock, chance=self.chance, patience_s=patience_s, faults=self.trouble
        )
        self.keys = ClusterKeys("c")
        self.ttl_s = ttl_s
        self.events: list[Event] = []
        self.members: dict[str, PartitionMember] = {}
        self.hosts: dict[str, RecordingHost] = {}
        self._due: dict[str, float] = {}

    @property
    def ttl_us(self) -> int:
        return int(self.ttl_s * 1_000_000)

    def context(self, clock: Clock | None = None) -> ClusterContext:
        return ClusterContext(
            store=self.store,
            cluster="c",
            clock=clock or self.clock,
            chance=self.chance,
            emit=self.events.append,
            timing=LeaseTiming(self.ttl_s),
        )

    def member(
        self,
        name: str,
        *,
        slots: int = 4,
        host: RecordingHost | None = None,
        groups: Sequence[str] = (GROUP,),
        clock: Clock | None = None,
        **options: Any,
    ) -> PartitionMember:
        """A member with a host that records; it acts from the next `play` on."""
        host = host or RecordingHost()
        context = self.context(clock)
        member = PartitionMember(context, Node(id=name, epoch=0, slots=slots), groups, host, **options)
        host.holdings = member.holdings
        self.members[name], self.hosts[name] = member, host
        self._due[name] = 0.0
        return member

    def kill(self, name: str) -> None:
        """From now on this member does nothing any more."""
        del self.members[name], self._due[name]

    def play(self, until: Callable[[], bool], *, within_s: float = 300.0) -> None:
        """Let time pass until something holds; fails when it does not within the time."""
        end = self.clock.monotonic() + within_s
        while not until():
            assert self.clock.monotonic() < end, f"it did not happen within {within_s:g} s"
            name = min(self._due, key=lambda member: (self._due[member], member))
            self.clock.advance(self._due[name] - self.clock.monotonic())
            wait_s = self.members[name].tick()
            self._due[name] = self.clock.monotonic() + max(0.001, wait_s)

    def pass_time(self, seconds: float) -> None:
        """Play for a while."""
        end = self.clock.monotonic() + seconds
        self.play(lambda: self.clock.monotonic() >= end, within_s=seconds + 60.0)

    # --- looking

    def make_partitions(self, count: int, *, group: str = GROUP, payload: bytes = b"") -> None:
        names = {f"p{number:03d}": payload for number in range(count)}
        made_from = PartitionMap(node_version=0, leader_epoch=0, count=count)
        self.store.run(lambda tx: partitions.create(tx, self.keys, group, names, made_from))

    def parts(self, group: str = GROUP) -> list[Partition]:
        return self.store.run(lambda tx: partitions.read_all(tx, self.keys, group))

    def nodes(self) -> list[Node]:
        return self.store.run(lambda tx: nodes.read_all(tx, self.keys))

    def holdings_of(self, name: str) -> Holdings:
        return self.members[name].holdings

    def counts(self) -> dict[str, int]:
        """How many partitions each member holds, by what it believes itself."""
        return {name: len(self.holdings_of(name).held) for name in self.members}

    def leaders(self) -> list[str]:
        return [name for name, member in self.members.items() if member.tenure and member.tenure.alive()]

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def rows(self) -> list[Any]:
        """Everything in the store, to see that nothing changed."""
        return self.store.run(lambda tx: tx.range(b"\x01", b"\xfe", snapshot=True))


def is_lost(store: MemoryStore, step: Callable[[Tx], object]) -> bool:
    """Is this step refused because its lease is over?"""
    try:
        store.run(step)
    except LeaseLost:
        return True
    return False


__all__ = ["GROUP", "RecordingHost", "Stage", "StoreUnavailable", "Trouble", "is_lost"]
