"""The scheduler: keeps subscriptions and the heap in step. Every runner has one, and none needs another.

In each round it fires schedules and alarms, wakes the subscribers of what was published, instantiates new
templates, pushes the items that subscriptions owe to the heap, and ends runs whose node is gone. From time to
time it pushes overdue items again (the heap may have been lost), prunes the heap, and collects subscriptions
that never became ready. Each step is one transaction or one operation on the heap, with crash points between
them, so any number of schedulers may do the same at the same time.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from tidemill import crash
from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import HeapDiffers
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.objects.remote import RemoteObjects
from tidemill.scope import Scope
from tidemill.store import Tx
from tidemill.triggers import alarms, attach, heap_sync, runs, schedules, templates, wakes
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
from tidemill.triggers.object_heap import ObjectHeap
from tidemill.triggers.store_heap import StoreHeap

T = TypeVar("T")

PAGES = 50
"""Of waking, templates, pushes and looks each in one round: then the runner has its turn."""

RUNS_PAGE = 1000


class Scheduler:
    """One node's scheduler.

    Args:
        scope: the node.
        heap: the cluster's heap.
        poll_s: the longest pause between two rounds when nothing wakes the runner.
        sweep_every_s: how often overdue items are pushed again.
        late_s: an item is overdue when its time came so long ago.
        prune_every_s: how often the heap is pruned.
        grace_s: how long attaching a subscription may take.
    """

    def __init__(
        self,
        scope: Scope,
        heap: Heap,
        *,
        poll_s: float = 1.0,
        sweep_every_s: float = 15.0,
        late_s: float = 30.0,
        prune_every_s: float = 15.0,
        grace_s: float = attach.GRACE_US / 1_000_000,
    ) -> None:
        self.scope = scope
        self.heap = heap
        self.keys = TriggerKeys(scope.cluster)
        self._lots = LotKeys(scope.cluster)
        self._cluster = ClusterKeys(scope.cluster)
        self._poll_s = poll_s
        self._sweep_every_s, self._late_us = sweep_every_s, int(late_s * 1_000_000)
        self._prune_every_s, self._grace_us = prune_every_s, int(grace_s * 1_000_000)
        self._sweep_at = self._prune_at = scope.clock.monotonic()
        self._overdue_after = self._look_after = b""
        self._agreed = False

    def tick(self) -> float:
        """Run one round; return the seconds until the next makes sense (0: there is more to do)."""
        if not self._agreed:
            self.agree()
        self.fire()
        more = self.wake()
        more |= self.instantiate()
        more |= self.rebuild()
        more |= self.look()
        more |= self.push()
        now = self.scope.clock.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + self._sweep_every_s
            more |= self.push_overdue()
            self.collect()
        if now >= self._prune_at:
            self._prune_at = now + self._prune_every_s
            self.prune()
        return 0.0 if more else self._poll_s

    def agree(self) -> None:
        """Check that all runners of the cluster use the same heap, or set it; else raise `HeapDiffers`."""

        def set_or_compare(tx: Tx) -> str:
            form = tx.get(self.keys.heap_form)
            if form is None:
                tx.set(self.keys.heap_form, self.heap.form.encode())
            return self.heap.form if form is None else form.decode()

        form = self.scope.store.run(set_or_compare)
        if form != self.heap.form:
            raise HeapDiffers(f"this cluster uses the heap {form!r}, and this runner {self.heap.form!r}")
        self._agreed = True

    # --- rounds

    def fire(self) -> None:
        """Fire the schedules and alarms whose time has come."""
        for name in self.scope.store.run(lambda tx: schedules.due(tx, self.keys)):
            fired = self._fire(name)
            if fired.left_out:
                self.scope.emit(CronMissed(name=name, left_out=fired.left_out))

        for source in self.scope.store.run(lambda tx: alarms.due(tx, self.keys)):
            self._ring(source)

    def _ring(self, source: DatasetId) -> bool:
        return self._step("triggers.ring", lambda tx: alarms.fire(tx, self.keys, self._lots, source))

    def _fire(self, name: str) -> schedules.Fired:
        return self._step("triggers.fire", lambda tx: schedules.fire(tx, self.keys, self._lots, name))

    def wake(self) -> bool:
        """Wake the subscribers of what was published, page by page."""
        pages = self._pages("triggers.wake", lambda tx: wakes.page_wakes(tx, self.keys, self._lots))
        if pages:
            self.scope.emit(SubscribersWoken(pages=pages))
        return pages == PAGES

    def instantiate(self) -> bool:
        """Instantiate declared templates for the datasets that match, page by page."""
        pages = self._pages(
            "triggers.template", lambda tx: templates.page_templates(tx, self.keys, self._lots)
        )
        return pages == PAGES

    def rebuild(self) -> bool:
        """Rebuild the heap from all subscriptions, if that was requested."""
        return self._pages("triggers.rebuild", lambda tx: heap_sync.rebuild(tx, self.keys)) == PAGES

    def push(self) -> bool:
        """Push the items that subscriptions owe to the heap."""
        for _ in range(PAGES):
            items = self.scope.store.run(lambda tx: heap_sync.owed(tx, self.keys))
            if not items:
                return False
            self._push(items)
            self.scope.emit(ItemsPushed(count=len(items)))
        return True

    def push_overdue(self) -> bool:
        """Push a page of overdue items again; the next call continues after it."""
        items, self._overdue_after = self.scope.store.run(
            lambda tx: heap_sync.overdue(tx, self.keys, self._late_us, self._overdue_after)
        )
        missing = [item for item in items if not self.heap.has(item)]
        if missing:
            self._push(missing)
            self.scope.emit(ItemsPushed(count=len(missing), again=True))
        return bool(self._overdue_after)

    def _push(self, items: Sequence[Item]) -> None:
        crash.point("triggers.push.before")
        self.heap.push(items)
        crash.point("triggers.push.after")
        self.scope.store.run(lambda tx: heap_sync.pushed(tx, self.keys, items))

    def look(self) -> bool:
        """Check a page of runs whose node may be gone; the next call continues after it."""

        def page(tx: Tx) -> tuple[list[runs.Due], bytes]:
            return runs.due_page(tx, self.keys, self._look_after, RUNS_PAGE)

        due, self._look_after = self.scope.store.run(page)
        for run in due:
            if run.running and self._lapsed(run):
                self.scope.emit(RunLapsed(name=run.name, epoch=run.epoch))
        return bool(self._look_after)

    def _lapsed(self, run: runs.Due) -> bool:
        return self._step(
            "triggers.look", lambda tx: runs.look(tx, self.keys, self._cluster, run.name, run.epoch)
        )

    def prune(self) -> int:
        """Remove items that can start nothing any more, due and parked ones; return how many."""
        now = self.scope.store.run(lambda tx: tx.now())
        removed = 0
        for lo, hi in ((0, now + 1), (NEVER, NEVER + 1)):
            items = self.heap.listed(lo, hi)
            while page := list(islice(items, heap_sync.PRUNE_PAGE)):
                removed += self._prune_page(page)
        if removed:
            self.scope.emit(ItemsPruned(count=removed))
        return removed

    def _prune_page(self, page: Sequence[Item]) -> int:
        verdict = self.scope.store.run(lambda tx: heap_sync.judged(tx, self.keys, page))
        for item in verdict.strange:
            self.scope.emit(StrangeKey(key=f"{item.name} under epoch {item.epoch}"))
        gone = heap_sync.removable(verdict, self.heap.has)
        if gone:
            crash.point("triggers.prune.before")
            self.heap.remove(gone)
            crash.point("triggers.prune.after")
        return len(gone)

    def collect(self) -> None:
        """Remove subscriptions that never became ready."""
        taken = self._step("triggers.collect", lambda tx: attach.collect(tx, self.keys, self._grace_us))
        if taken:
            self.scope.emit(UnreadyCollected(names=taken))

    # --- steps

    def _pages(self, name: str, page: Callable[[Tx], bool]) -> int:
        for number in range(PAGES):
            if not self._step(name, page):
                return number
        return PAGES

    def _step(self, name: str, fn: Callable[[Tx], T]) -> T:
        """Run a transaction, with a crash point after it if it changed something.

        Most rounds find nothing to do. A point that they visit too would make a crash test count idle rounds.
        """
        answer = self.scope.store.run(fn)
        if answer:
            crash.point(f"{name}.after")
        return answer


def open_heap(scope: Scope) -> Heap:
    """Open the cluster's heap: in object storage where the data is in a bucket, else in the store."""
    if isinstance(scope.objects, RemoteObjects):
        return ObjectHeap(scope.objects, emit=scope.emit)
    return StoreHeap(scope.store, TriggerKeys(scope.cluster))
