"""Leases that outlast any pause of the machine, and their end when a test wants it.

With leases of some seconds a test fails when a busy machine does not let a node run for so long. After
`lengthen`, a node's lease on the machine's clock lasts ten minutes; how often nodes renew it, and look after
each other, stays as it was. A test that kills or stops a node ends the lease itself: `end_lease`.

Leases that run out by the clock are tested where the clock is a fake one: units and simulations.
"""

import functools
import os
import signal
from collections.abc import Callable
from typing import Any, Self

import msgspec

from tidemill.clock import SYSTEM, SystemClock
from tidemill.cluster import leases, nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Election
from tidemill.cluster.leases import TTL_S, LeaseTiming
from tidemill.cluster.membership import Membership
from tidemill.futures.worker.task_context import WorkerSite
from tidemill.futures.worker.wire import ChildHello
from tidemill.store import Store, Tx
from tidemill.testing.fake_clock import ShiftedClock
from tidemill.triggers import subscriptions
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.subscriptions import Scheduled

LEASE_S = 600.0


class LongLeaseClock(ShiftedClock):
    """The machine's clock, shifted, for nodes that hold long leases like those on the machine's clock."""

    @classmethod
    def early_in_an_hour(cls) -> Self:
        """A clock on which an hour has just begun: what a test does before `pass_time` is in this hour."""
        clock = cls(SYSTEM)
        clock.wall_shift_s = 300 - clock.wall() % 3600
        return clock

    def pass_time(self, seconds: float) -> None:
        """Let time pass, on both clocks: if only the wall clock moved, it would have jumped."""
        self.wall_shift_s += seconds
        self.monotonic_shift_s += seconds


def lengthen() -> None:
    """Let nodes of this process that use the machine's clock hold their entry and their office so long."""
    Membership.__init__ = _lengthened(Membership.__init__)  # type: ignore[method-assign]
    Election.__init__ = _lengthened(Election.__init__)  # type: ignore[method-assign]
    WorkerSite.__init__ = _not_shorter(WorkerSite.__init__)  # type: ignore[method-assign]


def _not_shorter(init: Callable[..., None]) -> Callable[..., None]:
    """The locks of tasks last at least as long as by default, also if their worker has a short ttl."""

    @functools.wraps(init)
    def with_usual_lease(self: Any, hello: ChildHello, **named: Any) -> None:
        init(self, msgspec.structs.replace(hello, ttl_s=max(hello.ttl_s, TTL_S)), **named)

    return with_usual_lease


def _lengthened(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def with_long_lease(self: Any, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        holder = self.keeper if isinstance(self, Election) else self
        if isinstance(self.clock, SystemClock | LongLeaseClock):
            holder.timing = LeaseTiming(max(holder.timing.ttl_s, LEASE_S), holder.timing.every_s)

    return with_long_lease


def stop_process(store: Store, pid: int) -> None:
    """Stop a process (SIGSTOP) while it is in none of its transactions.

    On SQLite a process that is stopped inside of a transaction keeps the write lock, and all others wait for
    it. Here this process has the lock when it sends the signal.
    """

    def stop(tx: Tx) -> None:
        tx.set(b"stop", b"")  # takes the write lock
        tx.clear(b"stop")
        os.kill(pid, signal.SIGSTOP)

    store.run(stop)


def end_lease(store: Store, keys: ClusterKeys, node_id: str, *, missing_ok: bool = False) -> None:
    """Let the lease of a node run out now, its office if it leads, and have its runs looked at.

    - missing_ok: the leader may have removed the node from the list already, because its lease is over.
    """

    def end(tx: Tx) -> None:
        node = nodes.read(tx, keys, node_id)
        assert node is not None or missing_ok, f"there is no node {node_id}"
        if node is not None:
            nodes._write(tx, keys, node, msgspec.structs.replace(node, expires_at=tx.now()))
        leader = leases.read(tx, keys.leader)
        if leader is not None and leader.holder == node_id and leases.release(tx, keys.leader, leader):
            tx.add(keys.vacancies, 1)  # the others look at this number and not at the clock
        triggers = TriggerKeys(keys.cluster)
        for due in tx.range(*triggers.due.all()):
            name = str(triggers.due.unpack(due.key)[1])
            row = subscriptions.read(tx, triggers, name)
            if isinstance(row, Scheduled) and row.run is not None and row.run.node == node_id:
                run = msgspec.structs.replace(
                    row.run, look_at=tx.now()
                )  # else when its lease would have ended
                subscriptions.write(tx, triggers, name, row, msgspec.structs.replace(row, run=run))

    store.run(end)
