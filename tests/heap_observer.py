"""Check every change of subscriptions, heap items and templates against the table of moves (HEAP-5).

    observer = HeapObserver(store, keys, heap)
    scheduler = Scheduler(replace(scope, store=observer.store), observer.heap)

The observer checks after every operation on `observer.store` and `observer.heap`; each operation is one step
of the protocol. It raises at a move that the table of 144 cells forbids, and at a signal that leaves the heap
while its row is scheduled (INV4).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tests.heap_table import HeapState, check, state_of
from tidemill.store import Mode, Store, Tx, Watch
from tidemill.store.port import Row
from tidemill.triggers import subscriptions
from tidemill.triggers.due import NEVER
from tidemill.triggers.heap import Heap, Item
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.states import SubscriptionState
from tidemill.triggers.subscriptions import AnyRow, Scheduled

T = TypeVar("T")
Id = tuple[str, int]


class HeapObserver:
    """One look after every operation."""

    def __init__(self, store: Store, keys: TriggerKeys, heap: Heap) -> None:
        self._inner = store
        self._keys = keys
        self._real = heap
        self.store: Store = ObservedStore(store, self)
        self.heap: Heap = ObservedHeap(heap, self)
        self.moves: set[tuple[HeapState, HeapState]] = set()
        self._children: dict[str, str] = {}  # name to template, of all that ever were
        self._born: dict[str, set[int]] = {}
        self._last: dict[Id, HeapState] = {}
        self._signals: set[Id] = set()
        self._lost: set[Id] = set()
        self.look()

    def look(self) -> None:
        """Compare with the last look."""
        rows, _ = self._read()
        items = self._items()
        for name, row in rows.items():
            self._born.setdefault(name, set()).add(row.tally.born)
            if row.tally.template:
                self._children[name] = row.tally.template
        now = self._states()
        for life, state in now.items():
            if life in self._lost:
                self._lost -= {life} if state.value[2] == "1" else set()
                continue
            before = self._last.get(life)
            if before is None:  # it had no row and no item
                before = state_of(SubscriptionState.ABSENT, template=state.value[0] in "DEF", on_heap=False)
            check(before, state, f"{life[0]}, created in epoch {life[1]}")
            self.moves.add((before, state))
        signals = {
            (name, row.tally.epoch)
            for name, row in rows.items()
            if isinstance(row, Scheduled) and (name, row.tally.epoch) in items
        }
        scheduled = {(name, row.tally.epoch) for name, row in rows.items() if isinstance(row, Scheduled)}
        left = (self._signals & scheduled) - signals
        assert not left, f"INV4: the signal of {left} left the heap"
        self._last, self._signals = now, signals

    def lost(self) -> None:
        """Note that the heap was lost. That is not an operation of the protocol, so the subscriptions on it
        are checked again once their items are back.
        """
        before = self._last
        self._last, self._signals = self._states(), set()
        self._lost |= {
            life for life, state in self._last.items() if state.value[2] != before.get(life, state).value[2]
        }

    def _states(self) -> dict[Id, HeapState]:
        rows, templates = self._read()
        items = self._items()
        return {
            (name, born): self._state(name, born, following, rows.get(name), templates, items)
            for name, births in self._born.items()
            for born, following in _pairs(births)
        }

    def _items(self) -> set[Id]:
        return {item.id for item in (*self._real.listed(0, NEVER), *self._real.parked())}

    def _read(self) -> tuple[dict[str, AnyRow], set[str]]:
        def read(tx: Tx) -> tuple[list[Row], list[Row]]:
            keys = self._keys
            return tx.range(*keys.subscription.all()), tx.range(*keys.template.all())

        rows, templates = self._inner.run(read)
        return (
            {
                str(self._keys.subscription.unpack(row.key)[0]): subscriptions.decode(row.value)
                for row in rows
            },
            {str(self._keys.template.unpack(row.key)[0]) for row in templates},
        )

    def _state(
        self,
        name: str,
        born: int,
        following: int | None,
        row: AnyRow | None,
        templates: set[str],
        items: set[Id],
    ) -> HeapState:
        state = row.state if row is not None and row.tally.born == born else SubscriptionState.ABSENT
        on_heap = any(
            item == name and epoch >= born and (following is None or epoch < following)
            for item, epoch in items
        )
        return state_of(state, template=self._children.get(name) in templates, on_heap=on_heap)


def _pairs(births: set[int]) -> Iterator[tuple[int, int | None]]:
    order = sorted(births)
    yield from zip(order, [*order[1:], None], strict=True)


class ObservedStore(Store):
    """A store that calls the observer after every transaction."""

    def __init__(self, inner: Store, observer: HeapObserver) -> None:
        super().__init__(clock=inner.clock, chance=inner.chance)
        self._inner = inner
        self._observer = observer

    def run(self, fn: Callable[[Tx], T], *, mode: Mode = "serial") -> T:
        answer = self._inner.run(fn, mode=mode)
        self._observer.look()
        return answer

    def watch(self, keys: Sequence[bytes]) -> Watch:  # type: ignore[override]
        return self._inner.watch(keys)

    def close(self) -> None:
        self._inner.close()

    @property
    def url(self) -> str:
        return self._inner.url


class ObservedHeap(Heap):
    """A heap that calls the observer after every operation; it pushes and removes items one by one."""

    def __init__(self, inner: Heap, observer: HeapObserver) -> None:
        self._inner = inner
        self._observer = observer

    @property
    def form(self) -> str:
        return self._inner.form

    def push(self, items: Sequence[Item]) -> None:
        for item in items:
            self._inner.push([item])
            self._observer.look()

    def listed(self, lo_us: int, hi_us: int) -> Iterator[Item]:
        return self._inner.listed(lo_us, hi_us)

    def has(self, item: Item) -> bool:
        return self._inner.has(item)

    def remove(self, items: Sequence[Item]) -> None:
        for item in items:
            self._inner.remove([item])
            self._observer.look()
