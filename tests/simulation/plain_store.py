"""A transaction over a dictionary: for searches that run one step at a time, from thousands of states."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tidemill.store.keys import Versionstamp, pack
from tidemill.store.port import Row, Swap, Tx, read_counter, write_counter

T = TypeVar("T")


class PlainStore:
    """A dictionary as a store, at one moment."""

    def __init__(self, rows: dict[bytes, bytes], now_us: int) -> None:
        self.rows = rows
        self._now_us = now_us

    def run(self, fn: Callable[[Tx], T]) -> T:
        tx = PlainTx(dict(self.rows), self._now_us)
        answer = fn(tx)  # what it raises changes nothing
        self.rows = tx.rows
        return answer


class PlainTx(Tx):
    """All steps are whole transactions, one after the other, so that there is nothing to isolate."""

    def __init__(self, rows: dict[bytes, bytes], now_us: int) -> None:
        self.mode = "serial"
        self.writes = self.bytes_written = 0
        self.touched = set()
        self.rows = rows
        self._now_us = now_us

    def _check_alive(self) -> None:
        """It is."""

    def now(self) -> int:
        return self._now_us

    def wall(self) -> int:
        return self._now_us

    def _get_many(self, keys: Sequence[bytes], lock: bool) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def _range(self, lo: bytes, hi: bytes, limit: int | None, reverse: bool, snapshot: bool) -> list[Row]:
        keys = sorted((key for key in self.rows if lo <= key < hi), reverse=reverse)
        return [Row(key, self.rows[key]) for key in keys[:limit]]

    def _set(self, key: bytes, value: bytes) -> None:
        self.rows[key] = value

    def _clear(self, key: bytes) -> None:
        self.rows.pop(key, None)

    def _clear_range(self, lo: bytes, hi: bytes) -> None:
        for key in [key for key in self.rows if lo <= key < hi]:
            del self.rows[key]

    def _add(self, key: bytes, amount: int) -> None:
        self.rows[key] = write_counter(read_counter(self.rows.get(key)) + amount)

    def _set_versioned(self, prefix: bytes, value: bytes) -> None:
        self.rows[prefix + pack((Versionstamp(len(self.rows), 0),))] = value

    def _take(self, lo: bytes, hi: bytes, limit: int) -> list[Row]:
        rows = self._range(lo, hi, limit, False, False)
        for row in rows:
            del self.rows[row.key]
        return rows

    def _swap_many(self, swaps: Sequence[Swap]) -> list[bool]:
        results = []
        for swap in swaps:
            holds = self.rows.get(swap.key) == swap.expected
            if holds:
                self._clear(swap.key) if swap.new is None else self._set(swap.key, swap.new)
            results.append(holds)
        return results
