"""Schedule subscriptions, and keep the heap up to date. Every runner has a scheduler.

In each round the scheduler fires schedules and alarms, wakes the subscribers of new data, and instantiates
new templates. It also pushes items that are missing from the heap, and ends runs whose node is gone. From
time to time it pushes overdue items again (the heap may have been lost), prunes the heap, and deletes
subscriptions that never became ready. Each step is one transaction or one operation on the heap. So any
number of schedulers can work at the same time. There are crash points between the steps.
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
from tidemill.triggers.subscriptions import Scheduled

T = TypeVar("T")

PAGES = 50
"""The maximum number of pages of each kind of work in one round. Then the runner does other work."""

RUNS_PAGE = 1000


class Scheduler:
    """One node's scheduler.

    Args:
        scope: the node.
        heap: the cluster's heap.
        poll_s: the longest pause between two rounds when nothing wakes the runner.
        sweep_every_s: how often overdue items are pushed again.
        late_s: an item is overdue when it has been due for this long.
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
        self._overdue_after = self._runs_after = b""
        self._agreed = False

    def tick(self) -> float:
        """Run one round. Return the seconds until the next round is useful; 0 if there is more to do now."""
        if not self._agreed:
            self.agree()
        self.fire()
        more = self.wake()
        more |= self.instantiate()
        more |= self.rebuild()
        more |= self.end_lost_runs()
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
        """Raise `HeapDiffers` if the cluster uses a different heap from ours.

        If the cluster has no heap yet, record ours.
        """

        def set_or_compare(tx: Tx) -> str:
            form = tx.get(self.keys.heap_form)
            if form is None:
                tx.set(self.keys.heap_form, self.heap.form.encode())
            return self.heap.form if form is None else form.decode()

        form = self.scope.store.run(set_or_compare)
        if form != self.heap.form:
            raise HeapDiffers(f"this cluster uses the heap {form!r}, but this runner uses {self.heap.form!r}")
        self._agreed = True

    # --- rounds

    def fire(self) -> None:
        """Fire the schedules and alarms whose time has come."""
        for name in self.scope.store.run(lambda tx: schedules.due(tx, self.keys)):
            fired = self._fire_schedule(name)
            if fired.left_out:
                self.scope.emit(CronMissed(name=name, left_out=fired.left_out))

        for source in self.scope.store.run(lambda tx: alarms.due(tx, self.keys)):
            self._fire_alarm(source)

    def _fire_alarm(self, source: DatasetId) -> bool:
        return self._step("triggers.ring", lambda tx: alarms.fire(tx, self.keys, self._lots, source))

    def _fire_schedule(self, name: str) -> schedules.Fired:
        return self._step("triggers.fire", lambda tx: schedules.fire(tx, self.keys, self._lots, name))

    def wake(self) -> bool:
        """Wake the subscribers of new data, page by page."""
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
        """Push the items that must still be pushed to the heap (`heap_sync.owed`)."""
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
        self.scope.store.run(lambda tx: heap_sync.clear_debts(tx, self.keys, items))

    def end_lost_runs(self) -> bool:
        """Check a page of runs and end those whose node is gone; the next call continues after it."""

        def page(tx: Tx) -> tuple[list[runs.Due], bytes]:
            return runs.due_page(tx, self.keys, self._runs_after, RUNS_PAGE)

        due, self._runs_after = self.scope.store.run(page)
        for run in due:
            if run.running and (row := self._end_if_lost(run)) is not None:
                tally = row.tally
                self.scope.emit(
                    RunLapsed(name=run.name, epoch=run.epoch, deaths=tally.deaths, dead=tally.dead)
                )
        return bool(self._runs_after)

    def _end_if_lost(self, run: runs.Due) -> Scheduled | None:
        return self._step(
            "triggers.look", lambda tx: runs.end_if_lost(tx, self.keys, self._cluster, run.name, run.epoch)
        )

    def prune(self) -> int:
        """Remove due and parked items that can no longer start a run; return how many were removed."""
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
        stale = self.scope.store.run(lambda tx: heap_sync.classify(tx, self.keys, page))
        for item in stale.unknown:
            self.scope.emit(StrangeKey(key=f"{item.name} under epoch {item.epoch}"))
        removable = heap_sync.removable(stale, self.heap.has)
        if removable:
            crash.point("triggers.prune.before")
            self.heap.remove(removable)
            crash.point("triggers.prune.after")
        return len(removable)

    def collect(self) -> None:
        """Delete subscriptions that never became ready."""
        deleted = self._step("triggers.collect", lambda tx: attach.collect(tx, self.keys, self._grace_us))
        if deleted:
            self.scope.emit(UnreadyCollected(names=deleted))

    # --- steps

    def _pages(self, name: str, page: Callable[[Tx], bool]) -> int:
        for number in range(PAGES):
            if not self._step(name, page):
                return number
        return PAGES

    def _step(self, name: str, fn: Callable[[Tx], T]) -> T:
        """Run a transaction, with a crash point after it if it changed something.

        Most rounds find nothing to do; without this condition a crash test would count idle rounds.
        """
        answer = self.scope.store.run(fn)
        if answer:
            crash.point(f"{name}.after")
        return answer


def open_heap(scope: Scope) -> Heap:
    """Open the cluster's heap: in object storage if the data is in a bucket, otherwise in the store."""
    if isinstance(scope.objects, RemoteObjects):
        return ObjectHeap(scope.objects, emit=scope.emit)
    return StoreHeap(scope.store, TriggerKeys(scope.cluster))
