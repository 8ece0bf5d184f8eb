"""A cluster member that takes its share of partitions, renews their leases, and completes or returns them.

The nodes of the demo (`tidemill.testing.node`) and of the simulation use this module to share work. The
partitions, leases and fair shares come from `tidemill.cluster`, which the sources use too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from tidemill.clock import Clock
from tidemill.cluster import nodes, partitions, shares
from tidemill.cluster.events import PartitionDone, PartitionHandedBack, PartitionLost, PartitionTaken
from tidemill.cluster.leader import Duty
from tidemill.cluster.member import Member
from tidemill.cluster.membership import ClusterContext, Membership
from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import Partition
from tidemill.cluster.shares import Choice, RequestPartition, TakePartition
from tidemill.errors import CommitUnknown, LeaseLost, StoreError
from tidemill.store import Tx

RENEW_PAGE = 100
RENEW_PAGE_BYTES = 500_000  # a renewal rewrites the payloads too, and a transaction is limited to 1 MB


class HeldPartition:
    """A partition that we hold a lease on, and the deadline at which we must stop (CLU-4)."""

    def __init__(self, part: Partition, deadline: float, clock: Clock) -> None:
        self.part = part
        self.deadline = deadline
        self.stopping = False
        self.ending = False  # the last transaction was sent, and may have been committed
        self.lost = False
        self._clock = clock

    def alive(self) -> bool:
        """Return whether we may still work on the partition.

        Once False, this stays False, even after a late renewal.
        """
        if not self.lost and self._clock.monotonic() >= self.deadline:
            self.lost = True
        return not self.lost

    def check(self) -> None:
        """Raise `LeaseLost` if we must not work on the partition any more."""
        self.check_time()
        if self.ending:
            raise LeaseLost(f"partition {self.part.group}/{self.part.id} was completed or handed back")

    def check_time(self) -> None:
        """Raise `LeaseLost` if our deadline has passed."""
        if not self.alive():
            raise LeaseLost(f"partition {self.part.group}/{self.part.id}: the holder's deadline has passed")


class Host(Protocol):
    """Works on the partitions that a node holds. Calls return quickly; the work runs in other threads."""

    def start(self, held: HeldPartition) -> None:
        """Start to work on a partition. At the end, call `holdings.complete` or `holdings.hand_back`."""

    def stop(self, held: HeldPartition) -> None:
        """Stop soon, and hand the partition back: another node requests it, or this node drains."""

    def abort(self, held: HeldPartition) -> None:
        """Stop at once and write nothing: the lease is over."""


class Holdings:
    """Takes partitions until its slots are full, renews them together, and returns them on request."""

    def __init__(
        self,
        context: ClusterContext,
        membership: Membership,
        groups: Sequence[str],
        host: Host,
        *,
        pause_s: float,
    ) -> None:
        self.store = context.store
        self.keys = context.keys
        self.membership = membership
        self.groups = list(groups)
        self.host = host
        self.clock = context.clock
        self.chance = context.chance
        self.emit = context.emit
        self.timing = context.timing
        self.pause_s = pause_s
        self.held: dict[tuple[str, str], HeldPartition] = {}
        self._renew_at = 0.0
        self._take_at = 0.0
        self._stopping = False

    @property
    def node(self) -> Node:
        return self.membership.node

    def busy(self) -> bool:
        return bool(self.held)

    def tick(self) -> float:
        """Renew our partitions and take free ones when due; return the seconds until the next call."""
        self.guard()
        if self.held and self.clock.monotonic() >= self._renew_at:
            self._renew()
        may_take = self.membership.accepts()
        if may_take and self.clock.monotonic() >= self._take_at:
            self._take_at = self.clock.monotonic() + self._take_one()
        now = self.clock.monotonic()
        waits = [self.timing.every_s]
        if self.held:
            waits.append(self._renew_at - now)
        if may_take:
            waits.append(self._take_at - now)
        return max(0.0, min(waits))

    # --- renewing

    def guard(self) -> float:
        """Abort the work on partitions past their deadline; return the seconds until the next deadline.

        May be called from another thread, so that work ends in time even if a tick waits for the store
        (CLU-4).
        """
        for held in list(self.held.values()):
            if not held.alive() and self._forget(held):  # otherwise the host has just ended it
                held.lost = True
                self.host.abort(held)
                self._report(PartitionLost, held.part)
        first = min((held.deadline for held in list(self.held.values())), default=None)
        return self.timing.every_s if first is None else max(0.0, first - self.clock.monotonic())

    def _renew(self) -> None:
        sent = self.clock.monotonic()
        self._renew_at = sent + self.timing.every_s
        for page in _pages([held for held in list(self.held.values()) if not held.ending]):

            def renew_page(tx: Tx, page: list[HeldPartition] = page) -> list[tuple[Partition, bool] | None]:
                return [self._renew_one(tx, held.part) for held in page]

            try:
                answers = self.store.run(renew_page)
            except StoreError:
                self._renew_at = sent + self.timing.retry_s
                return  # not lost: retried until the deadline (CLU-8)
            for held, answer in zip(page, answers, strict=True):
                if answer is None:
                    held.lost = held.lost or not held.ending
                    continue
                held.part, extended = answer
                if extended:  # otherwise another node requests it, and we get no more time
                    held.deadline = self.timing.deadline(sent)
                if (held.part.wanted_by or self._stopping) and not held.stopping:
                    self._ask_to_stop(held)
        self.guard()

    def _renew_one(self, tx: Tx, part: Partition) -> tuple[Partition, bool] | None:
        """Return the partition, and whether its lease now has the full ttl; None if it is no longer ours."""
        try:
            renewed = partitions.renew(tx, self.keys, part, self.timing.ttl_us)
        except LeaseLost:
            return None
        return renewed, renewed.expires_at >= tx.now() + self.timing.ttl_us

    def _ask_to_stop(self, held: HeldPartition) -> None:
        held.stopping = True
        try:
            self.host.stop(held)
        except LeaseLost:  # from a host that hands back at once
            held.lost = True
        except StoreError:
            held.stopping = False  # retried after the next renewal

    # --- taking

    def _take_one(self) -> float:
        """Take at most one partition; return the seconds until the next attempt."""
        rest_s = self.timing.every_s
        try:
            for group in self.groups:
                acted, wait_s = self._take_in(group)
                if acted:
                    return wait_s
                rest_s = min(rest_s, wait_s)
        except StoreError:
            return self.timing.every_s * (0.5 + self.chance.random())
        return rest_s

    def _take_in(self, group: str) -> tuple[bool, float]:
        """Return whether there was something to do in a group, and the seconds until the next attempt."""
        choice = self.store.run(lambda tx: self._choose(tx, group))
        if isinstance(choice, TakePartition):
            sent = self.clock.monotonic()
            part = self.store.run(
                lambda tx: partitions.take(tx, self.keys, group, choice.id, self.node.id, self.timing.ttl_us)
            )
            if part is not None:
                self._begin(part, sent)
            return True, self.pause_s * self.chance.random()
        if isinstance(choice, RequestPartition):
            stale_us = shares.STALE_TTLS * self.timing.ttl_us
            self.store.run(
                lambda tx: partitions.request(
                    tx, self.keys, group, choice.id, self.node.id, stale_us=stale_us
                )
            )
            return True, self.timing.every_s
        return False, choice.wait_s

    def _choose(self, tx: Tx, group: str) -> Choice:
        return shares.choose(
            partitions.summaries(tx, self.keys, group),
            nodes.alive(nodes.read_all(tx, self.keys), tx.now()),
            self.node.id,
            free_slots=self.node.slots - len(self.held),
            now_us=tx.now(),
            ttl_s=self.timing.ttl_s,
            pause_s=self.pause_s,
            chance=self.chance,
        )

    def _begin(self, part: Partition, sent: float) -> None:
        former = self.held.get((part.group, part.id))
        if former is not None and not former.ending:  # it expired while this process was paused
            former.lost = True
            self.guard()
        held = HeldPartition(part, self.timing.deadline(sent), self.clock)
        if not self.held:
            self._renew_at = sent + self.timing.every_s
        self.held[part.group, part.id] = held
        self._report(PartitionTaken, part)
        self.host.start(held)

    # --- giving up

    def complete(self, held: HeldPartition, also: Callable[[Tx], None] | None = None) -> None:
        """Mark the work as done, and make the writes of `also`, in one fenced transaction.

        After this call, no work may run under the lease (`held.check()` raises), unless the store reports
        that nothing was written. After `CommitUnknown`, call this method again: the second call ends the
        partition, or raises `LeaseLost` if the partition has already ended.
        """
        held.check_time()

        def finish(tx: Tx) -> None:
            partitions.complete(tx, self.keys, held.part)
            if also is not None:
                also(tx)

        self._end(held, finish, PartitionDone)

    def hand_back(self, held: HeldPartition) -> None:
        """Return an unfinished partition, so that another node can take it.

        The notes on `complete` apply here too.
        """
        held.check_time()

        def give(tx: Tx) -> None:
            partitions.hand_back(tx, self.keys, held.part)

        self._end(held, give, PartitionHandedBack)

    def _end(
        self,
        held: HeldPartition,
        act: Callable[[Tx], None],
        event: type[PartitionDone] | type[PartitionHandedBack],
    ) -> None:
        in_doubt = held.ending  # an earlier call may have been committed, even if this one fails
        held.ending = True  # a renewal that arrives after this is not a loss
        try:
            self.store.run(act)
        except CommitUnknown:
            raise  # another node may have the partition by now: do not renew it, and do not work on it
        except LeaseLost:
            held.lost = True
            raise
        except BaseException:
            held.ending = in_doubt
            raise
        self._forget(held)
        held.lost = True
        self._take_at = 0.0  # a slot is free
        self._report(event, held.part)

    def stop_all(self) -> None:
        """Ask the host to stop all its work."""
        self._stopping = True
        for held in list(self.held.values()):
            if not held.stopping:
                self._ask_to_stop(held)
        self.guard()

    def give_up_all(self) -> None:
        """Hand back all partitions at the end of a grace period. If that fails, their leases expire."""
        for held in list(self.held.values()):
            self.host.abort(held)
            try:
                self.hand_back(held)
            except (LeaseLost, StoreError):
                held.lost = True
                if self._forget(held):
                    self._report(PartitionLost, held.part)

    def _forget(self, held: HeldPartition) -> bool:
        """Remove this holding, but not a later holding of the same partition."""
        key = held.part.group, held.part.id
        return self.held.get(key) is held and self.held.pop(key, None) is not None

    def _report(
        self,
        event: type[PartitionTaken] | type[PartitionLost] | type[PartitionDone] | type[PartitionHandedBack],
        part: Partition,
    ) -> None:
        self.emit(event(node=self.node.id, group=part.group, partition=part.id, epoch=part.epoch))


def _pages(partitions: list[HeldPartition]) -> Iterator[list[HeldPartition]]:
    page: list[HeldPartition] = []
    size = 0
    for held in partitions:
        if len(page) == RENEW_PAGE or (page and size + len(held.part.payload) > RENEW_PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(held)
        size += len(held.part.payload)
    if page:
        yield page


class PartitionMember(Member):
    """A cluster member that takes as many partitions as it has slots. A host works on them.

    Args:
        context: the cluster, its store, clock and timing.
        node: our entry, with the number of slots.
        groups: the groups whose partitions the member takes.
        host: works on the partitions.
        duties: named tasks that this node does while it leads.
        pause_s: the longest pause before it takes the next partition; the actual pause is random.
    """

    def __init__(
        self,
        context: ClusterContext,
        node: Node,
        groups: Sequence[str],
        host: Host,
        *,
        duties: Mapping[str, Duty] | None = None,
        pause_s: float = 0.2,
    ) -> None:
        super().__init__(context, node, duties=duties)
        self.holdings = Holdings(context, self.membership, groups, host, pause_s=pause_s)
        self.work = self.holdings
