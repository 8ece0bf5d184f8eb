"""Electing a leader, and running its duties while it is one (CLU-9).

Nobody asks for the office while it is held (CLU-5). A leader that leaves in good order counts up `vacancies`,
and the others look at that number with every period, so that they need not wait for an expiry that has lost
its meaning.
"""

import random
from collections.abc import Mapping

from tidemill.clock import Clock
from tidemill.cluster.events import DutyFailed, LeaderElected, LeaderLost
from tidemill.cluster.keeper import Held, Keeper
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Duty, Tenure
from tidemill.cluster.leases import Busy
from tidemill.errors import LeaseLost, NotLeader, StoreError, TidemillError
from tidemill.events import Emit


class Election:
    """Stands for leader whenever the office is free, and does the leader's rounds while in it."""

    def __init__(
        self,
        keeper: Keeper,
        keys: ClusterKeys,
        duties: Mapping[str, Duty],
        *,
        clock: Clock,
        chance: random.Random,
        emit: Emit,
    ) -> None:
        self.keeper = keeper
        self.keys = keys
        self.duties = duties
        self.clock = clock
        self.chance = chance
        self.emit = emit
        self.tenure: Tenure | None = None
        self._stand_at = 0.0
        self._look_at = 0.0
        self._vacancies = 0
        self._due: dict[str, float] = {}

    def tick(self) -> float:
        """Renew, or stand for election, then do the duties that are due."""
        wait_s = self.keeper.tick()
        if self.tenure is not None and not self.tenure.alive():
            self._lose()
        if self.tenure is None and (self.clock.monotonic() >= self._stand_at or self._was_given_back()):
            self._stand()
        if self.tenure is None:
            return max(0.0, min(self._stand_at, self._look_at) - self.clock.monotonic())
        self._do_duties(self.tenure)
        next_duty = min(self._due.values(), default=self.clock.monotonic() + wait_s)
        return max(0.0, min(wait_s, next_duty - self.clock.monotonic()))

    def _was_given_back(self) -> bool:
        """Has a leader resigned since we last stood? Asked once per period."""
        if self.clock.monotonic() < self._look_at:
            return False
        self._look_at = self.clock.monotonic() + self.keeper.timing.every_s
        try:
            return self._count_vacancies() != self._vacancies
        except StoreError:
            return False

    def _count_vacancies(self) -> int:
        return self.keeper.store.run(lambda tx: tx.counter(self.keys.vacancies))

    def _stand(self) -> None:
        self._look_at = self.clock.monotonic() + self.keeper.timing.every_s
        try:
            self._vacancies = self._count_vacancies()  # before we ask: a resignation in between is seen later
            answer = self.keeper.acquire(self.keys.leader)
        except StoreError:
            self._stand_at = self.clock.monotonic() + self.keeper.timing.every_s * (
                0.5 + self.chance.random()
            )
            return
        if isinstance(answer, Busy):  # never again before its expiry, and not all at once (CLU-5)
            jitter = self.chance.random() * self.keeper.timing.retry_s
            self._stand_at = self.clock.monotonic() + answer.wait_s + jitter
        else:
            self._begin(answer)

    def _begin(self, held: Held) -> None:
        self.tenure = Tenure(self.keeper.store, held)
        self._due = dict.fromkeys(self.duties, self.clock.monotonic())
        self.emit(LeaderElected(node=self.keeper.holder, epoch=held.epoch))

    def _lose(self) -> None:
        assert self.tenure is not None
        self.emit(LeaderLost(node=self.keeper.holder, epoch=self.tenure.epoch))
        self.tenure = None
        self._stand_at = 0.0

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
        """Give the office back, if we hold it."""
        if self.tenure is None:
            return
        try:
            self.keeper.release(self.tenure.held, lambda tx: tx.add(self.keys.vacancies, 1))
        except StoreError:
            pass  # it runs out by itself
        finally:
            self._lose()
