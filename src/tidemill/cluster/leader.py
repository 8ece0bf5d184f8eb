"""Elect a leader, and run duties that only the leader may carry out (CLU-9).

Leadership is a lease. A node may act as the leader only inside a transaction: every step of a duty runs in
`Tenure.run`, whose transaction reads the leader's row. If another node has become the leader, the row has
another epoch and the step aborts. Between steps, a duty calls `tenure.check()`, which raises `LeaseLost` if
our deadline has passed. So if a duty is still running when another node becomes the leader, the duty ends at
its next step.

A node does not try to become the leader while another node holds the lease (CLU-5). A leader that resigns
increments the counter `vacancies`. The other nodes read this counter once per period, so they need not wait
until the lease expires.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from tidemill.cluster.events import DutyFailed, LeaderElected, LeaderLost
from tidemill.cluster.keeper import HeldLease, Keeper
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import Busy
from tidemill.errors import LeaseLost, NotLeader, StoreError, TidemillError
from tidemill.events import Emit
from tidemill.store import Store, Tx

T = TypeVar("T")


class Tenure:
    """The time in which this node is the leader, under one epoch. Leader duties write only through `run`."""

    def __init__(self, store: Store, held: HeldLease) -> None:
        self.store = store
        self.held = held

    @property
    def epoch(self) -> int:
        return self.held.epoch

    def alive(self) -> bool:
        return self.held.alive()

    def check(self) -> None:
        """Raise `LeaseLost` if this process no longer holds the lease."""
        self.held.check()

    def run(self, fn: Callable[[Tx], T]) -> T:
        """Commit a step of a duty. Raise `NotLeader` and write nothing if this node is not the leader."""
        self.check()

        def fenced(tx: Tx) -> T:
            try:
                self.held.fence(tx)
            except LeaseLost as lost:
                raise NotLeader(f"this process is no longer the leader (epoch {self.epoch})") from lost
            return fn(tx)

        return self.store.run(fenced)


Duty = Callable[[Tenure], float]
"""A leader's duty. A call runs one round of work, each step in `tenure.run`, and returns the seconds until
the next round."""


class Election:
    """Tries to become the leader whenever the lease is free, and runs the duties while it is the leader."""

    def __init__(self, keeper: Keeper, keys: ClusterKeys, duties: Mapping[str, Duty], *, emit: Emit) -> None:
        self.keeper = keeper
        self.keys = keys
        self.duties = duties
        self.clock = keeper.clock
        self.chance = keeper.chance
        self.emit = emit
        self.tenure: Tenure | None = None
        self._try_at = 0.0
        self._look_at = 0.0
        self._vacancies = 0
        self._due: dict[str, float] = {}

    def tick(self) -> float:
        """Renew the lease, or try to acquire it. Then run the duties that are due."""
        wait_s = self.keeper.tick()
        if self.tenure is not None and not self.tenure.alive():
            self._lose()
        if self.tenure is None and (self.clock.monotonic() >= self._try_at or self._has_resigned()):
            self._try_to_lead()
        if self.tenure is None:
            return max(0.0, min(self._try_at, self._look_at) - self.clock.monotonic())
        self._do_duties(self.tenure)
        next_duty = min(self._due.values(), default=self.clock.monotonic() + wait_s)
        return max(0.0, min(wait_s, next_duty - self.clock.monotonic()))

    def _has_resigned(self) -> bool:
        """Return whether a leader has resigned since our last attempt; reads once per period."""
        if self.clock.monotonic() < self._look_at:
            return False
        self._look_at = self.clock.monotonic() + self.keeper.timing.every_s
        try:
            return self._count_vacancies() != self._vacancies
        except StoreError:
            return False

    def _count_vacancies(self) -> int:
        return self.keeper.store.run(lambda tx: tx.counter(self.keys.vacancies))

    def _try_to_lead(self) -> None:
        self._look_at = self.clock.monotonic() + self.keeper.timing.every_s
        try:
            self._vacancies = self._count_vacancies()  # first: a resignation after this read is seen later
            answer = self.keeper.acquire(self.keys.leader)
        except StoreError:
            self._try_at = self.clock.monotonic() + self.keeper.timing.every_s * (0.5 + self.chance.random())
            return
        if isinstance(answer, Busy):  # retry after the lease expires, and not on all nodes at once (CLU-5)
            jitter = self.chance.random() * self.keeper.timing.retry_s
            self._try_at = self.clock.monotonic() + answer.wait_s + jitter
        else:
            self._begin(answer)

    def _begin(self, held: HeldLease) -> None:
        self.tenure = Tenure(self.keeper.store, held)
        self._due = dict.fromkeys(self.duties, self.clock.monotonic())
        self.emit(LeaderElected(node=self.keeper.holder, epoch=held.epoch))

    def _lose(self) -> None:
        assert self.tenure is not None
        self.emit(LeaderLost(node=self.keeper.holder, epoch=self.tenure.epoch))
        self.tenure = None
        self._try_at = 0.0

    def _do_duties(self, tenure: Tenure) -> None:
        for name, duty in self.duties.items():
            if self.clock.monotonic() < self._due[name]:
                continue
            try:
                self._due[name] = self.clock.monotonic() + duty(tenure)
            except (LeaseLost, NotLeader):
                tenure.held.lost = True
                self._lose()
                return
            except TidemillError as error:
                self.emit(DutyFailed(node=self.keeper.holder, duty=name, error=error.message))
                self._due[name] = self.clock.monotonic() + self.keeper.timing.every_s

    def resign(self) -> None:
        """Release the leader's lease, if we hold it."""
        if self.tenure is None:
            return
        try:
            self.keeper.release(self.tenure.held, lambda tx: tx.add(self.keys.vacancies, 1))
        except StoreError:
            pass  # the lease expires
        finally:
            self._lose()
