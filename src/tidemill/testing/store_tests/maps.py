"""Test the store as an ordered map: what a single transaction reads and writes."""

import pytest
from hypothesis import HealthCheck, given, settings

from tidemill.store import Row, Store, Swap, Tx
from tidemill.store.port import read_counter, write_counter
from tidemill.testing.store_tests.model import (
    END,
    FIRST,
    ModelTransaction,
    Rows,
    StoreTests,
    between,
    contents,
    fill,
    programs,
    value_of,
)


class RaisedOnPurpose(Exception):
    """The error that the tests in this file raise in a transaction."""


class MapTests(StoreTests):
    """Test the ordered map of byte keys."""

    @pytest.mark.rule("STO-1", "STO-2")
    def test_random_programs_give_the_same_result_on_a_store_and_a_dictionary(self, store: Store) -> None:
        @settings(max_examples=self.examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(programs())
        def equal(transactions: list[ModelTransaction]) -> None:
            store.run(lambda tx: tx.clear_range(FIRST, END))
            rows: Rows = {}
            for program in transactions:
                rows = self._run(store, program, rows)
                assert contents(store) == between(rows, FIRST, END)

        equal()

    def _run(self, store: Store, program: ModelTransaction, before: Rows) -> Rows:
        def fn(tx: Tx) -> Rows:
            rows = dict(before)  # fn may be retried, so it starts from the committed rows
            for step in program.steps:
                step.on(tx, rows)
            if program.fails:
                raise RaisedOnPurpose
            return rows

        try:
            return store.run(fn, mode=program.mode)
        except RaisedOnPurpose:
            return before

    @pytest.mark.rule("STO-2")
    def test_get_many_returns_values_in_the_order_of_the_keys_also_for_repeated_keys(
        self, store: Store
    ) -> None:
        fill(store, {b"a": b"1", b"b": b"2"})
        assert store.run(lambda tx: tx.get_many([b"b", b"x", b"a", b"b"])) == [b"2", None, b"1", b"2"]
        assert store.run(lambda tx: tx.get_many([])) == []

    def test_an_empty_value_is_a_row(self, store: Store) -> None:
        fill(store, {b"k": b""})
        assert value_of(store, b"k") == b""
        assert contents(store) == [Row(b"k", b"")]
        assert store.run(lambda tx: tx.swap(b"k", None, b"new")) is False
        assert store.run(lambda tx: tx.swap(b"k", b"", b"new")) is True

    @pytest.mark.rule("STO-1")
    def test_keys_sort_as_unsigned_bytes_and_a_prefix_sorts_first(self, store: Store) -> None:
        single = [bytes([byte]) for byte in range(0xFE)]
        keys = sorted(
            [*single, b"a\x00", b"a\x00\xff", b"a\xff", b"aa", b"\xfd\xff", b"\x00\x00", b"\x7f\x80"]
        )
        fill(store, dict.fromkeys(reversed(keys), b""))
        assert [row.key for row in contents(store)] == keys
        back = store.run(lambda tx: tx.range(FIRST, END, reverse=True))
        assert [row.key for row in back] == keys[::-1]

    def test_keys_and_values_keep_every_byte(self, store: Store) -> None:
        every = bytes(range(256))
        fill(store, {b"\x00" + every: every, b"k" + every[::-1]: every[::-1] * 2})
        assert contents(store) == [Row(b"\x00" + every, every), Row(b"k" + every[::-1], every[::-1] * 2)]

    @pytest.mark.rule("STO-2")
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("limit", [None, 0, 1, 3, 4, 100])
    def test_a_range_includes_its_lower_bound_but_not_its_upper_one(
        self, store: Store, limit: int | None, reverse: bool
    ) -> None:
        fill(store, {key: key for key in (b"a", b"b", b"b\x00", b"c", b"d")})
        rows = store.run(lambda tx: tx.range(b"a\x00", b"d", limit=limit, reverse=reverse))
        inside = [Row(key, key) for key in (b"b", b"b\x00", b"c")]
        assert rows == (inside[::-1] if reverse else inside)[:limit]

    @pytest.mark.parametrize(("lo", "hi"), [(b"b", b"b"), (b"c", b"b"), (b"a", b"")])
    def test_a_range_that_ends_before_it_begins_is_empty(self, store: Store, lo: bytes, hi: bytes) -> None:
        fill(store, {b"a": b"1", b"b": b"2", b"c": b"3"})

        def fn(tx: Tx) -> list[Row]:
            tx.clear_range(lo, hi)
            return [*tx.range(lo, hi), *tx.range(lo, hi, reverse=True), *tx.take(lo, hi, 9)]

        assert store.run(fn) == []
        assert len(contents(store)) == 3

    def test_a_limited_range_skips_rows_this_transaction_cleared(self, store: Store) -> None:
        fill(store, {bytes([97 + n]): b"" for n in range(6)})

        def fn(tx: Tx) -> tuple[list[bytes], list[bytes]]:
            tx.clear_range(b"a", b"c")
            tx.clear(b"f")
            tx.set(b"aa", b"")
            ahead = tx.range(FIRST, END, limit=2)
            back = tx.range(FIRST, END, limit=2, reverse=True)
            return [row.key for row in ahead], [row.key for row in back]

        assert store.run(fn) == ([b"aa", b"c"], [b"e", b"d"])

    def test_rows_of_the_store_itself_are_never_returned(self, store: Store) -> None:
        for n in range(3):
            fill(store, {b"k%d" % n: b""})
            store.run(lambda tx: tx.set_versioned(b"log", b""))
        rows = contents(store)
        assert [row.key for row in rows if not row.key.startswith((b"k", b"log"))] == []
        assert len(rows) == 6

    @pytest.mark.rule("STO-2")
    def test_a_counter_begins_at_zero_goes_below_it_and_wraps_at_64_bits(self, store: Store) -> None:
        assert store.run(lambda tx: tx.counter(b"n")) == 0
        store.run(lambda tx: tx.add(b"n", -5))
        assert store.run(lambda tx: tx.counter(b"n")) == -5
        assert value_of(store, b"n") == (-5).to_bytes(8, "little", signed=True)
        store.run(lambda tx: tx.set(b"n", write_counter(2**63 - 1)))
        store.run(lambda tx: tx.add(b"n", 1))
        assert store.run(lambda tx: tx.counter(b"n")) == -(2**63)
        store.run(lambda tx: tx.add(b"n", -1))
        assert store.run(lambda tx: tx.counter(b"n")) == 2**63 - 1

    def test_an_add_applies_after_earlier_writes_of_its_transaction(self, store: Store) -> None:
        fill(store, {b"a": write_counter(10), b"b": write_counter(10), b"c": write_counter(10)})

        def fn(tx: Tx) -> list[int]:
            tx.add(b"a", 1)
            tx.add(b"a", 1)
            tx.clear(b"b")
            tx.add(b"b", 1)
            tx.add(b"c", 5)
            tx.clear_range(b"c", b"d")
            tx.add(b"c", 1)
            tx.set(b"d", write_counter(7))
            tx.add(b"d", 1)
            return [tx.counter(key) for key in (b"a", b"b", b"c", b"d")]

        assert store.run(fn) == [12, 1, 1, 8]
        assert [read_counter(row.value) for row in contents(store)] == [12, 1, 1, 8]

    @pytest.mark.rule("STO-2")
    def test_swaps_of_one_call_are_independent_and_in_order(self, store: Store) -> None:
        fill(store, {b"a": b"1", b"b": b"1", b"c": b"1"})
        swaps = [
            Swap(b"a", b"1", b"2"),
            Swap(b"b", b"other", b"2"),
            Swap(b"c", b"1", None),
            Swap(b"d", None, b"2"),
            Swap(b"e", b"1", b"2"),
            Swap(b"a", b"1", b"3"),
            Swap(b"a", b"2", b"4"),
            Swap(b"c", None, b"5"),
        ]
        answers = store.run(lambda tx: tx.swap_many(swaps))
        assert answers == [True, False, True, True, False, False, True, True]
        assert dict(contents(store)) == {b"a": b"4", b"b": b"1", b"c": b"5", b"d": b"2"}

    def test_a_swap_sees_what_its_transaction_wrote(self, store: Store) -> None:
        fill(store, {b"a": b"1", b"b": b"1"})

        def fn(tx: Tx) -> list[bool]:
            tx.set(b"a", b"2")
            tx.clear(b"b")
            tx.add(b"n", 1)
            return [
                tx.swap(b"a", b"1", b"x"),
                tx.swap(b"a", b"2", b"3"),
                tx.swap(b"b", b"1", b"x"),
                tx.swap(b"b", None, b"3"),
                tx.swap(b"n", write_counter(1), None),
            ]

        assert store.run(fn) == [False, True, False, True, True]
        assert dict(contents(store)) == {b"a": b"3", b"b": b"3"}

    @pytest.mark.rule("STO-1")
    def test_steps_combined_in_one_transaction_see_each_other(self, store: Store) -> None:
        def enqueue(tx: Tx, name: bytes) -> None:
            tx.set(b"queue/" + name, b"")
            tx.add(b"queued", 1)

        def dequeue(tx: Tx) -> bytes:
            (row,) = tx.take(b"queue/", b"queue0", 1)
            tx.add(b"queued", -1)
            return row.key

        def both(tx: Tx) -> bytes:
            enqueue(tx, b"b")
            enqueue(tx, b"a")
            return dequeue(tx)

        assert store.run(both) == b"queue/a"
        assert contents(store) == [Row(b"queue/b", b""), Row(b"queued", write_counter(1))]
