"""Test the limits: keys and values that are too large, transactions that are too large or last too long."""

from collections.abc import Callable

import pytest

from tidemill.errors import (
    KeyTooLarge,
    TidemillError,
    TransactionTooLarge,
    TransactionTooLong,
    UsageError,
    ValueTooLarge,
)
from tidemill.store import LIMITS, Store, Tx
from tidemill.store.port import SLOW_ATTEMPTS, read_counter
from tidemill.testing.store_tests.model import END, FIRST, StoreTests, contents, fill, value_of

LONGEST = b"k" * LIMITS.key_bytes
LARGEST = bytes(range(256)) * (LIMITS.value_bytes // 256)

Act = Callable[[Tx, bytes], object]

BY_KEY: dict[str, Act] = {
    "get": lambda tx, key: tx.get(key),
    "get_locked": lambda tx, key: tx.get(key, lock=True),
    "get_many": lambda tx, key: tx.get_many([b"fine", key]),
    "counter": lambda tx, key: tx.counter(key),
    "set": lambda tx, key: tx.set(key, b""),
    "set_many": lambda tx, key: tx.set_many([(b"fine", b""), (key, b"")]),
    "clear": lambda tx, key: tx.clear(key),
    "add": lambda tx, key: tx.add(key, 1),
    "swap": lambda tx, key: tx.swap(key, None, b"12345678"),
}
BY_RANGE: dict[str, Callable[[Tx, bytes, bytes], object]] = {
    "range": lambda tx, lo, hi: tx.range(lo, hi),
    "snapshot": lambda tx, lo, hi: tx.range(lo, hi, snapshot=True),
    "clear_range": lambda tx, lo, hi: tx.clear_range(lo, hi),
    "take": lambda tx, lo, hi: tx.take(lo, hi, 1),
}


class LimitTests(StoreTests):
    """Test that all backends accept and refuse the same keys, values and transactions."""

    def refused(self, store: Store, error: type[TidemillError], act: Callable[[Tx], object]) -> None:
        """Check that `act` is refused, that nothing was written, and that the store still works."""
        calls = 0
        attempts = SLOW_ATTEMPTS if error is TransactionTooLong else 1

        def fn(tx: Tx) -> None:
            nonlocal calls
            calls += 1
            tx.set(b"before", b"")
            act(tx)

        with pytest.raises(error) as raised:
            store.run(fn)
        assert type(raised.value) is error
        assert calls <= 2 * attempts, "an attempt calls the function twice at most"
        assert value_of(store, b"before") is None
        store.run(lambda tx: tx.set(b"later", b""))
        assert value_of(store, b"later") == b""

    def test_the_limits_are_the_documented_ones(self, store: Store) -> None:
        assert store.limits == LIMITS
        assert store.run(lambda tx: type(tx).limits) == LIMITS
        assert (LIMITS.key_bytes, LIMITS.value_bytes) == (2048, 65536)
        assert (LIMITS.transaction_bytes, LIMITS.transaction_writes) == (1_000_000, 1_000)
        assert LIMITS.transaction_s == 2.0

    @pytest.mark.rule("STO-7")
    @pytest.mark.parametrize("name", BY_KEY)
    def test_a_key_at_the_limit_passes_and_one_beyond_it_does_not(self, store: Store, name: str) -> None:
        store.run(lambda tx: BY_KEY[name](tx, LONGEST))
        self.refused(store, KeyTooLarge, lambda tx: BY_KEY[name](tx, LONGEST + b"k"))

    @pytest.mark.rule("STO-7")
    @pytest.mark.parametrize("name", BY_RANGE)
    def test_a_bound_may_be_one_byte_longer_than_the_longest_key(self, store: Store, name: str) -> None:
        fill(store, {LONGEST: b"last"})
        behind = LONGEST + b"\x00"  # where a pager continues
        assert store.run(lambda tx: tx.range(LONGEST, behind))[0].value == b"last"
        store.run(lambda tx: BY_RANGE[name](tx, behind, b"l"))
        assert value_of(store, LONGEST) == b"last"
        store.run(lambda tx: BY_RANGE[name](tx, b"k", LONGEST + b"\xff"))
        self.refused(store, KeyTooLarge, lambda tx: BY_RANGE[name](tx, behind + b"\x00", b"l"))
        self.refused(store, KeyTooLarge, lambda tx: BY_RANGE[name](tx, b"k", behind + b"\x00"))

    @pytest.mark.rule("STO-7")
    def test_a_versioned_prefix_leaves_room_for_the_version(self, store: Store) -> None:
        longest = LONGEST[:-13]
        store.run(lambda tx: tx.set_versioned(longest, b""))
        assert [len(row.key) for row in contents(store)] == [LIMITS.key_bytes]
        self.refused(store, KeyTooLarge, lambda tx: tx.set_versioned(longest + b"k", b""))

    @pytest.mark.rule("STO-7")
    @pytest.mark.parametrize("name", ["set", "set_many", "swap", "set_versioned"])
    def test_a_value_at_the_limit_passes_and_one_beyond_it_does_not(self, store: Store, name: str) -> None:
        acts: dict[str, Act] = {
            "set": lambda tx, value: tx.set(b"k", value),
            "set_many": lambda tx, value: tx.set_many([(b"k", value)]),
            "swap": lambda tx, value: tx.swap(b"k", None, value),
            "set_versioned": lambda tx, value: tx.set_versioned(b"k", value),
        }
        store.run(lambda tx: acts[name](tx, LARGEST))
        assert [row.value for row in contents(store)] == [LARGEST]
        store.run(lambda tx: tx.clear_range(FIRST, END))
        self.refused(store, ValueTooLarge, lambda tx: acts[name](tx, LARGEST + b"v"))

    @pytest.mark.rule("STO-7")
    def test_a_transaction_of_the_most_bytes_passes_and_one_beyond_it_does_not(self, store: Store) -> None:
        def write(tx: Tx, size: int) -> None:
            for n in range(100):
                value = LARGEST[: min(len(LARGEST), size - 4)]
                tx.set(b"k%03d" % n, value)
                size -= 4 + len(value)
                if size == 0:
                    return

        store.run(lambda tx: write(tx, LIMITS.transaction_bytes))
        assert sum(len(row.key) + len(row.value) for row in contents(store)) == LIMITS.transaction_bytes
        store.run(lambda tx: tx.clear_range(FIRST, END))
        self.refused(
            store, TransactionTooLarge, lambda tx: write(tx, LIMITS.transaction_bytes - len(b"before") + 1)
        )

    @pytest.mark.rule("STO-7")
    def test_a_transaction_of_the_most_writes_passes_and_one_beyond_it_does_not(self, store: Store) -> None:
        def write(tx: Tx, count: int) -> None:
            for n in range(count):
                tx.set(b"%04d" % n, b"")

        store.run(lambda tx: write(tx, LIMITS.transaction_writes))
        assert len(contents(store)) == LIMITS.transaction_writes
        store.run(lambda tx: tx.clear_range(FIRST, END))
        self.refused(store, TransactionTooLarge, lambda tx: write(tx, LIMITS.transaction_writes))

    @pytest.mark.rule("STO-7")
    def test_taken_rows_are_writes(self, store: Store) -> None:
        fill(store, {b"a%04d" % n: b"" for n in range(600)})
        fill(store, {b"b%04d" % n: b"" for n in range(600)})
        self.refused(
            store, TransactionTooLarge, lambda tx: [tx.take(FIRST, END, 5000), tx.take(FIRST, END, 1)]
        )
        assert len(store.run(lambda tx: tx.take(b"a", b"c", 5000))) == LIMITS.transaction_writes
        assert len(store.run(lambda tx: tx.take(b"a", b"c", 5000))) == 1200 - LIMITS.transaction_writes

    @pytest.mark.rule("STO-7")
    def test_a_transaction_that_is_too_large_is_not_committed_even_if_its_function_catches_the_error(
        self, store: Store
    ) -> None:
        fill(store, {b"q%d" % n + LONGEST[2:]: b"" for n in range(10)})
        before = contents(store)

        def fn(tx: Tx) -> None:
            for n in range(15):
                tx.set(b"k%d" % n, LARGEST[:-100])
            with pytest.raises(TransactionTooLarge):
                tx.take(b"q", b"r", 10)

        with pytest.raises(TransactionTooLarge):
            store.run(fn)
        assert contents(store) == before

    @pytest.mark.rule("STO-7")
    def test_a_transaction_that_lasts_too_long_is_refused(self, store: Store) -> None:
        def writes_then_lingers(tx: Tx) -> None:
            tx.set(b"k", b"")
            self.age(store, tx.limits.transaction_s + 0.1)

        def lingers_then_reads(tx: Tx) -> None:
            self.age(store, tx.limits.transaction_s + 0.1)
            tx.get(b"k")

        with pytest.raises(TransactionTooLong):
            store.run(writes_then_lingers)
        self.refused(store, TransactionTooLong, lingers_then_reads)
        assert value_of(store, b"k") is None

    @pytest.mark.rule("STO-7")
    def test_a_transaction_is_retried_after_a_pause_of_the_process(self, store: Store) -> None:
        pauses = ["before a write", "before a read", "before the commit"]

        def paused(tx: Tx, moment: str) -> None:
            if pauses[:1] == [moment]:
                del pauses[0]
                self.age(store, tx.limits.transaction_s + 0.1)

        def writes(tx: Tx) -> None:
            tx.set(b"k", b"1")
            paused(tx, "before a write")
            tx.add(b"n", 1)

        def reads(tx: Tx) -> bytes | None:
            paused(tx, "before a read")
            return tx.get(b"k")

        def ends(tx: Tx) -> None:
            tx.add(b"n", 1)
            paused(tx, "before the commit")

        store.run(writes)
        assert store.run(reads) == b"1"
        store.run(ends)
        assert pauses == []
        assert read_counter(value_of(store, b"n")) == 2, "each call took effect once"

    @pytest.mark.parametrize("key", [b"", b"\xfe", b"\xfe\x00", b"\xfeop", b"\xff", b"\xff\xff"])
    def test_empty_and_reserved_keys_are_refused(self, store: Store, key: bytes) -> None:
        for act in BY_KEY.values():
            with pytest.raises(UsageError):
                store.run(lambda tx, act=act: act(tx, key))  # type: ignore[misc]
        for between in BY_RANGE.values():
            with pytest.raises(UsageError):
                store.run(lambda tx, between=between: between(tx, key, b"\xff\xff\xff"))  # type: ignore[misc]
        if key:
            with pytest.raises(UsageError):
                store.run(lambda tx: tx.set_versioned(key, b""))
        assert contents(store) == []

    @pytest.mark.parametrize("name", BY_RANGE)
    def test_ranges_over_reserved_rows_are_refused(self, store: Store, name: str) -> None:
        fill(store, {b"\xfd\xff": b""})
        for hi in (b"\xfe\x00", b"\xff"):
            self.refused(store, UsageError, lambda tx, hi=hi: BY_RANGE[name](tx, b"k", hi))  # type: ignore[misc]
        assert value_of(store, b"\xfd\xff") == b""

    def test_invalid_arguments_are_refused(self, store: Store) -> None:
        self.refused(store, UsageError, lambda tx: tx.add(b"n", 2**63))
        self.refused(store, UsageError, lambda tx: tx.add(b"n", -(2**63) - 1))
        self.refused(store, UsageError, lambda tx: tx.range(FIRST, END, limit=-1))
