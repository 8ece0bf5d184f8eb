"""The partitions a node holds: taken, renewed together, completed or handed back."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tidemill.clock import Clock
from tidemill.cluster import nodes, partitions, shares
from tidemill.cluster.events import PartitionDone, PartitionHandedBack, PartitionLost, PartitionTaken
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.membership import Membership
from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import Partition
from tidemill.cluster.shares import AskHolder, Choice, TakePartition
from tidemill.errors import CommitUnknown, LeaseLost, StoreError
from tidemill.events import Emit
from tidemill.store import Store, Tx

RENEW_PAGE = 100
RENEW_PAGE_BYTES = 500_000  # of payloads, which are rewritten with their rows; a transaction has 1 MB


class HeldPartition:
    """A partition in our hands, with the deadline that stops us (CLU-4)."""

    def __init__(self, part: Partition, deadline: float, clock: Clock) -> None:
        self.part = part
        self.deadline = deadline
        self.stopping = False
        self.ending = False  # its last transaction is on its way, or nobody knows whether it was committed
        self.lost = False
        self._clock = clock

    def alive(self) -> bool:
        """Does our time run? Once the answer was no it stays no: a renewal on its way changes nothing."""
        if not self.lost and self._clock.monotonic() >= self.deadline:
            self.lost = True
        return not self.lost

    def check(self) -> None:
        """`LeaseLost` when we must not work on it any more."""
        self.check_time()
        if self.ending:
            raise LeaseLost(f"partition {self.part.group}/{self.part.id}: it was completed or handed back")

    def check_time(self) -> None:
        """`LeaseLost` when our time is over."""
        if not self.alive():
            raise LeaseLost(f"partition {self.part.group}/{self.part.id}: the holder's deadline has passed")


class Host(Protocol):
    """What works on the partitions a node holds. Calls return quickly; work goes on elsewhere."""

    def start(self, held: HeldPartition) -> None:
        """Begin; call `holdings.complete` or `holdings.hand_back` at the end."""

    def stop(self, held: HeldPartition) -> None:
        """Stop at the next good moment and hand it back: somebody asked, or the node drains."""

    def abort(self, held: HeldPartition) -> None:
        """The lease is over: stop at once, write nothing."""


class Holdings:
    """Takes partitions of some groups up to the slots, renews them in one write, gives them up when asked."""

    def __init__(
        self,
        store: Store,
        keys: ClusterKeys,
        membership: Membership,
        groups: Sequence[str],
        host: Host,
        *,
        clock: Clock,
        chance: random.Random,
        emit: Emit,
        pause_s: float,
    ) -> None:
        self.store = store
        self.keys = keys
        self.membership = membership
        self.groups = list(groups)
        self.host = host
        self.clock = clock
        self.chance = chance
        self.emit = emit
        self.timing = membership.timing
        self.pause_s = pause_s
        self.held: dict[tuple[str, str], HeldPartition] = {}
        self._renew_at = 0.0
        self._take_at = 0.0
        self._stopping = False

    @property
    def node(self) -> Node:
        return self.membership.node

    def tick(self) -> float:
        """Renew what is held and take what is due; the seconds until the next call makes sense."""
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

    # --- ours

    def guard(self) -> float:
        """Abort what is past its deadline; the seconds until the next one.

        May be called from another thread, so that a tick that waits for the store keeps nobody working
        beyond its time (CLU-4).
        """
        for held in list(self.held.values()):
            if not held.alive() and self._forget(held):  # else the host just ended it
                held.lost = True
                self.host.abort(held)
                self._tell(PartitionLost, held.part)
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
                return  # not lost yet: tried again, until the deadline (CLU-8)
            for held, answer in zip(page, answers, strict=True):
                if answer is None:
                    held.lost = held.lost or not held.ending
                    continue
                held.part, extended = answer
                if extended:  # else we were asked to let go, and given no more time
                    held.deadline = self.timing.deadline(sent)
                if (held.part.wanted_by or self._stopping) and not held.stopping:
                    self._ask_to_stop(held)
        self.guard()

    def _renew_one(self, tx: Tx, part: Partition) -> tuple[Partition, bool] | None:
        """The partition, and whether it has a whole ttl from now; None when it is not ours any more."""
        try:
            renewed = partitions.renew(tx, self.keys, part, self.timing.ttl_us)
        except LeaseLost:
            return None
        return renewed, renewed.expires_at >= tx.now() + self.timing.ttl_us

    def _ask_to_stop(self, held: HeldPartition) -> None:
        held.stopping = True
        try:
            self.host.stop(held)
        except LeaseLost:  # of a host that hands back at once
            held.lost = True
        except StoreError:
            held.stopping = False  # asked again after the next renewal

    # --- taking

    def _take_one(self) -> float:
        """One acquisition at most; the seconds until the next one."""
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
        """Whether there was something to do in a group, and the seconds until there may be more."""
        choice = self.store.run(lambda tx: self._choose(tx, group))
        if isinstance(choice, TakePartition):
            sent = self.clock.monotonic()
            part = self.store.run(
                lambda tx: partitions.take(tx, self.keys, group, choice.id, self.node.id, self.timing.ttl_us)
            )
            if part is not None:
                self._begin(part, sent)
            return True, self.pause_s * self.chance.random()
        if isinstance(choice, AskHolder):
            self.store.run(
                lambda tx: partitions.ask(
                    tx,
                    self.keys,
                    group,
                    choice.id,
                    self.node.id,
                    stale_us=shares.STALE_TTLS * self.timing.ttl_us,
                )
            )
            return True, self.timing.every_s
        return False, choice.wait_s

    def _choose(self, tx: Tx, group: str) -> Choice:
        return shares.choose(
            partitions.standings(tx, self.keys, group),
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
        if former is not None and not former.ending:  # it ran out in a pause of ours, unseen by the guard
            former.lost = True
            self.guard()
        held = HeldPartition(part, self.timing.deadline(sent), self.clock)
        if not self.held:
            self._renew_at = sent + self.timing.every_s
        self.held[part.group, part.id] = held
        self._tell(PartitionTaken, part)
        self.host.start(held)

    # --- giving up

    def complete(self, held: HeldPartition, also: Callable[[Tx], None] | None = None) -> None:
        """The work is done: say so, with what `also` writes, in one fenced transaction.

        From here on nothing may be done under the lease (`held.check()` refuses), unless the store says
        that nothing was written. After `CommitUnknown` call it again: it ends, or `LeaseLost` says that it
        had ended.
        """
        held.check_time()

        def finish(tx: Tx) -> None:
            partitions.complete(tx, self.keys, held.part)
            if also is not None:
                also(tx)

        self._end(held, finish, PartitionDone)

    def hand_back(self, held: HeldPartition) -> None:
        """Give it back unfinished, for whoever comes next; for the rest as `complete`."""
        held.check_time()

        def give(tx: Tx) -> None:
            partitions.hand_back(tx, self.keys, held.part)

        self._end(held, give, PartitionHandedBack)

    def _end(
        self,
        held: HeldPartition,
        act: Callable[[Tx], None],
        told: type[PartitionDone] | type[PartitionHandedBack],
    ) -> None:
        in_doubt = held.ending  # an earlier call may have been committed: a failure of this one tells nothing
        held.ending = True  # a renewal that comes too late for it is no loss
        try:
            self.store.run(act)
        except CommitUnknown:
            raise  # it may be another's by now: not renewed any more, and not ours to act under
        except LeaseLost:
            held.lost = True
            raise
        except BaseException:
            held.ending = in_doubt
            raise
        self._forget(held)
        held.lost = True
        self._take_at = 0.0  # a slot is free
        self._tell(told, held.part)

    def stop_all(self) -> None:
        """Ask the host to let go of everything."""
        self._stopping = True
        for held in list(self.held.values()):
            if not held.stopping:
                self._ask_to_stop(held)
        self.guard()

    def give_up_all(self) -> None:
        """Hand back what is left, at the end of a drain's grace; what cannot be handed back runs out."""
        for held in list(self.held.values()):
            self.host.abort(held)
            try:
                self.hand_back(held)
            except (LeaseLost, StoreError):
                held.lost = True
                if self._forget(held):
                    self._tell(PartitionLost, held.part)

    def _forget(self, held: HeldPartition) -> bool:
        """Let go of it, and not of the same partition that was taken again meanwhile."""
        key = held.part.group, held.part.id
        return self.held.get(key) is held and self.held.pop(key, None) is not None

    def _tell(
        self,
        what: type[PartitionTaken] | type[PartitionLost] | type[PartitionDone] | type[PartitionHandedBack],
        part: Partition,
    ) -> None:
        self.emit(what(node=self.node.id, group=part.group, partition=part.id, epoch=part.epoch))


def _pages(held: list[HeldPartition]) -> Iterator[list[HeldPartition]]:
    page: list[HeldPartition] = []
    size = 0
    for one in held:
        if len(page) == RENEW_PAGE or (page and size + len(one.part.payload) > RENEW_PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(one)
        size += len(one.part.payload)
    if page:
        yield page
