"""The tender: whoever runs keeps rows and heap together. Every runner is one; none is needed for the others.

In each round it fires schedules, goes through wake rows and new templates in pages, pushes what is owed, and
looks after runs whose node may be gone. Now and then it also pushes again what is overdue (the heap may have
been lost), prunes, and collects what never became ready. Each step is one transaction or one operation on the
heap, with crash points between them; any number of tenders may do the same at the same time.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from tidemill import crash
from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import HeapDiffers
from tidemill.events import Emit, ignore
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Store, Tx
from tidemill.triggers import alarms, attach, prune, runs, schedules, sweep, templates, wakes
from tidemill.triggers.due import NEVER
from tidemill.triggers.events import (
    CronMissed,
    ItemsPruned,
    ItemsPushed,
    RunLapsed,
    StrangeKey,
    SubscribersWoken,
    UnreadyCollected,
)
from tidemill.triggers.heap import Heap, Item
from tidemill.triggers.keys import TriggerKeys

T = TypeVar("T")

PAGES = 50
"""Of waking, templates, pushes and looks each in one round: then the runner has its turn."""

LOOKS = 1000


class Tender:
    """One node's tender.

    Args:
        store, cluster: which cluster.
        heap: its heap.
        poll_s: the longest a round waits for the next when nothing was heard.
        sweep_every_s: how often what is overdue is pushed again; `late_s`: overdue since when.
        prune_every_s: how often the heap is pruned.
        grace_s: how long an attaching may take.
    """

    def __init__(
        self,
        store: Store,
        cluster: str,
        heap: Heap,
        *,
        clock: Clock = SYSTEM,
        emit: Emit = ignore,
        poll_s: float = 1.0,
        sweep_every_s: float = 15.0,
        late_s: float = 30.0,
        prune_every_s: float = 15.0,
        grace_s: float = attach.GRACE_US / 1_000_000,
    ) -> None:
        self.store = store
        self.heap = heap
        self.keys = TriggerKeys(cluster)
        self._lots = LotKeys(cluster)
        self._cluster = ClusterKeys(cluster)
        self._clock = clock
        self._emit = emit
        self._poll_s = poll_s
        self._sweep_every_s, self._late_us = sweep_every_s, int(late_s * 1_000_000)
        self._prune_every_s, self._grace_us = prune_every_s, int(grace_s * 1_000_000)
        self._sweep_at = self._prune_at = clock.monotonic()
        self._overdue_after = self._look_after = b""
        self._agreed = False

    def tick(self) -> float:
        """Do what is due; the seconds until the next call makes sense (0: there is more)."""
        if not self._agreed:
            self.agree()
        self.fire()
        more = self.wake()
        more |= self.instantiate()
        more |= self.rebuild()
        more |= self.look()
        more |= self.push()
        now = self._clock.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + self._sweep_every_s
            more |= self.push_overdue()
            self.collect()
        if now >= self._prune_at:
            self._prune_at = now + self._prune_every_s
            self.prune()
        return 0.0 if more else self._poll_s

    def agree(self) -> None:
        """Have the same heap as the others, or set it; `HeapDiffers` when they have another."""

        def set_or_compare(tx: Tx) -> str:
            there = tx.get(self.keys.heap_form)
            if there is None:
                tx.set(self.keys.heap_form, self.heap.form.encode())
            return self.heap.form if there is None else there.decode()

        there = self.store.run(set_or_compare)
        if there != self.heap.form:
            raise HeapDiffers(f"the heap of this cluster is: {there}; here it is: {self.heap.form}")
        self._agreed = True

    # --- rounds

    def fire(self) -> None:
        """Write the times of schedules and of alarms that have come."""
        for name in self.store.run(lambda tx: schedules.due(tx, self.keys)):
            fired = self._fire(name)
            if fired.left_out:
                self._emit(CronMissed(name=name, left_out=fired.left_out))

        for source in self.store.run(lambda tx: alarms.due(tx, self.keys)):
            self._ring(source)

    def _ring(self, source: DatasetId) -> bool:
        return self._step("ring", lambda tx: alarms.fire(tx, self.keys, self._lots, source))

    def _fire(self, name: str) -> schedules.Fired:
        return self._step("fire", lambda tx: schedules.fire(tx, self.keys, self._lots, name))

    def wake(self) -> bool:
        """Go through wake rows."""
        pages = self._pages("wake", lambda tx: wakes.page_wakes(tx, self.keys, self._lots))
        if pages:
            self._emit(SubscribersWoken(pages=pages))
        return pages == PAGES

    def instantiate(self) -> bool:
        """Go through the datasets for templates that were declared."""
        return (
            self._pages("template", lambda tx: templates.page_templates(tx, self.keys, self._lots)) == PAGES
        )

    def rebuild(self) -> bool:
        """Go through all rows, if a rebuild was asked for."""
        return self._pages("rebuild", lambda tx: sweep.rebuild(tx, self.keys)) == PAGES

    def push(self) -> bool:
        """Push what is owed."""
        for _ in range(PAGES):
            items = self.store.run(lambda tx: sweep.owed(tx, self.keys))
            if not items:
                return False
            self._push(items)
            self._emit(ItemsPushed(count=len(items)))
        return True

    def push_overdue(self) -> bool:
        """Push a page of what is overdue again: the next call goes on behind it."""
        items, self._overdue_after = self.store.run(
            lambda tx: sweep.overdue(tx, self.keys, self._late_us, self._overdue_after)
        )
        missing = [item for item in items if not self.heap.has(item)]
        if missing:
            self._push(missing)
            self._emit(ItemsPushed(count=len(missing), again=True))
        return bool(self._overdue_after)

    def _push(self, items: Sequence[Item]) -> None:
        crash.point("tender.push.before")
        self.heap.push(items)
        crash.point("tender.push.after")
        self.store.run(lambda tx: sweep.pushed(tx, self.keys, items))

    def look(self) -> bool:
        """See after a page of runs whose node may be gone: the next call goes on behind it."""

        def page(tx: Tx) -> tuple[list[runs.Due], bytes]:
            return runs.due_page(tx, self.keys, self._look_after, LOOKS)

        found, self._look_after = self.store.run(page)
        for one in found:
            if one.running and self._look_at(one):
                self._emit(RunLapsed(name=one.name, epoch=one.epoch))
        return bool(self._look_after)

    def _look_at(self, one: runs.Due) -> bool:
        return self._step("look", lambda tx: runs.look(tx, self.keys, self._cluster, one.name, one.epoch))

    def prune(self) -> int:
        """Remove what nothing can start any more, among what is due and what is parked; how many."""
        now = self.store.run(lambda tx: tx.now())
        removed = 0
        for lo, hi in ((0, now + 1), (NEVER, NEVER + 1)):
            items = self.heap.listed(lo, hi)
            while page := list(islice(items, prune.PAGE)):
                removed += self._prune_page(page)
        if removed:
            self._emit(ItemsPruned(count=removed))
        return removed

    def _prune_page(self, page: Sequence[Item]) -> int:
        verdict = self.store.run(lambda tx: prune.judged(tx, self.keys, page))
        for item in verdict.strange:
            self._emit(StrangeKey(key=f"{item.name} under epoch {item.epoch}"))
        gone = prune.removable(verdict, self.heap.has)
        if gone:
            crash.point("tender.prune.before")
            self.heap.remove(gone)
            crash.point("tender.prune.after")
        return len(gone)

    def collect(self) -> None:
        """Take away what never became ready."""
        taken = self._step("collect", lambda tx: attach.collect(tx, self.keys, self._grace_us))
        if taken:
            self._emit(UnreadyCollected(names=taken))

    # --- steps

    def _pages(self, name: str, page: Callable[[Tx], bool]) -> int:
        for number in range(PAGES):
            if not self._step(name, page):
                return number
        return PAGES

    def _step(self, name: str, fn: Callable[[Tx], T]) -> T:
        """A transaction, and a crash point behind it if there was something to do: most have nothing."""
        answer = self.store.run(fn)
        if answer:
            crash.point(f"tender.{name}.after")
        return answer
