"""The base class of the store's tests, and a model of a store to compare with.

A backend implements the hooks of `StoreTests`. A test runs random transactions on the store and on a plain
dictionary, the model. Every operation is an object that applies itself to both and compares the results. So a
failing example prints as a program that can be pasted into a test.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from hypothesis import strategies as st

from tidemill.store import Mode, Row, Store, Swap, Tx
from tidemill.store.port import read_counter, write_counter

FIRST, END = b"\x00", b"\xfe"  # every user key is in this range


class StoreTests:
    """Hooks that a backend overrides. A subclass also defines the fixture `store`, an empty store."""

    examples: ClassVar[int] = 40
    """How many random programs are compared with the model."""

    has_snapshots: ClassVar[bool] = True
    """False if `snapshot` refuses, because the database cannot read one moment for a long time."""

    def reopen(self, store: Store) -> Store | None:
        """Return a second handle on the same data, from this process; None if that is not possible."""
        raise TypeError(f"{type(self).__name__} must implement `reopen`, which opens its store a second time")

    def opens_elsewhere(self, store: Store) -> str | None:
        """Return Python source that opens the same data in another process; None if that is not possible."""
        return None

    def age(self, store: Store, seconds: float) -> None:
        """Let time pass for a running transaction. Override this if the store's clock can jump."""
        store.clock.sleep(seconds)


def contents(store: Store) -> list[Row]:
    """Return every row that a user can see."""
    return store.run(lambda tx: tx.range(FIRST, END))


def fill(store: Store, rows: dict[bytes, bytes]) -> None:
    """Put these rows into the store, in one transaction."""

    def fn(tx: Tx) -> None:
        for key, value in rows.items():
            tx.set(key, value)

    store.run(fn)


def value_of(store: Store, key: bytes) -> bytes | None:
    """Return the committed value of a key."""
    return store.run(lambda tx: tx.get(key))


Rows = dict[bytes, bytes]

KEYS = (b"\x00", b"a", b"a\x00", b"a\xff", b"b", b"b\x00\xff", b"\xfd\xff")
COUNTERS = (b"a\x01", b"c")
BOUNDS = (*KEYS, *COUNTERS, b"\x01", b"a\x00\x00", b"\x7f", b"\x80")
WRONG = b"not what is there"


def between(rows: Rows, lo: bytes, hi: bytes) -> list[Row]:
    """Return what `Tx.range` must return."""
    return [Row(key, rows[key]) for key in sorted(rows) if lo <= key < hi]


class ModelStep(Protocol):
    """One operation."""

    def on(self, tx: Tx, rows: Rows) -> None:
        """Apply the operation to the store and to the dictionary, and compare the results."""


class Get(NamedTuple):
    """`get` for one key, otherwise `get_many`."""

    keys: tuple[bytes, ...]
    lock: bool

    def on(self, tx: Tx, rows: Rows) -> None:
        lock = self.lock or tx.mode == "take"
        if len(self.keys) == 1:
            assert tx.get(self.keys[0], lock=lock) == rows.get(self.keys[0])
        else:
            assert tx.get_many(self.keys, lock=lock) == [rows.get(key) for key in self.keys]


class ModelRange(NamedTuple):
    """`range`, with all its arguments."""

    lo: bytes
    hi: bytes
    limit: int | None
    reverse: bool
    snapshot: bool

    def on(self, tx: Tx, rows: Rows) -> None:
        expected = between(rows, self.lo, self.hi)
        expected = expected[::-1] if self.reverse else expected
        snapshot = self.snapshot or tx.mode == "take"
        result = tx.range(self.lo, self.hi, limit=self.limit, reverse=self.reverse, snapshot=snapshot)
        assert result == expected[: self.limit]


class Set(NamedTuple):
    """`set`."""

    key: bytes
    value: bytes

    def on(self, tx: Tx, rows: Rows) -> None:
        tx.set(self.key, self.value)
        rows[self.key] = self.value


class SetMany(NamedTuple):
    """`set_many`."""

    rows: tuple[tuple[bytes, bytes], ...]

    def on(self, tx: Tx, rows: Rows) -> None:
        tx.set_many(self.rows)
        rows.update(self.rows)


class Clear(NamedTuple):
    """`clear`."""

    key: bytes

    def on(self, tx: Tx, rows: Rows) -> None:
        tx.clear(self.key)
        rows.pop(self.key, None)


class ClearRange(NamedTuple):
    """`clear_range`."""

    lo: bytes
    hi: bytes

    def on(self, tx: Tx, rows: Rows) -> None:
        tx.clear_range(self.lo, self.hi)
        for row in between(rows, self.lo, self.hi):
            del rows[row.key]


class Add(NamedTuple):
    """`add`, on keys that are counters."""

    key: bytes
    amount: int

    def on(self, tx: Tx, rows: Rows) -> None:
        tx.add(self.key, self.amount)
        rows[self.key] = write_counter(read_counter(rows.get(self.key)) + self.amount)


class ModelTake(NamedTuple):
    """`take`. If no other transaction takes rows, it returns the first rows of the range."""

    lo: bytes
    hi: bytes
    limit: int

    def on(self, tx: Tx, rows: Rows) -> None:
        expected = between(rows, self.lo, self.hi)[: self.limit]
        assert tx.take(self.lo, self.hi, self.limit) == expected
        for row in expected:
            del rows[row.key]


class ModelSwap(NamedTuple):
    """`swap` for one key, otherwise `swap_many`.

    - swaps: (key, whether the expected value is correct, new value).
    """

    swaps: tuple[tuple[bytes, bool, bytes | None], ...]

    def on(self, tx: Tx, rows: Rows) -> None:
        after, swaps, expected = dict(rows), list[Swap](), list[bool]()
        for key, right, new in self.swaps:
            swaps.append(Swap(key, after.get(key) if right else WRONG, new))
            expected.append(right)
            if right and new is None:
                after.pop(key, None)
            elif right and new is not None:
                after[key] = new
        if len(swaps) == 1:
            assert [tx.swap(*swaps[0])] == expected
        else:
            assert tx.swap_many(swaps) == expected
        rows.clear()
        rows.update(after)


class ModelTransaction(NamedTuple):
    """One transaction: its operations, and whether its function raises at the end."""

    mode: Mode
    steps: Sequence[ModelStep]
    fails: bool


def _steps() -> st.SearchStrategy[ModelStep]:
    plain, counter = st.sampled_from(KEYS), st.sampled_from(COUNTERS)
    key = plain | counter
    value = st.sampled_from([b"", b"x", b"\x00", b"\xff" * 9, b"another"])
    count = st.integers(-3, 3).map(write_counter)
    lo = st.sampled_from(BOUNDS)
    hi = st.sampled_from([*BOUNDS, END, b""])
    amount = st.integers(-3, 3) | st.sampled_from([2**62, -(2**63), 2**63 - 1])
    swap = st.tuples(plain, st.booleans(), st.none() | value) | st.tuples(
        counter, st.booleans(), st.none() | count
    )
    return st.one_of(
        st.builds(Get, st.lists(key, max_size=4).map(tuple), st.booleans()),
        st.builds(ModelRange, lo, hi, st.none() | st.integers(0, 4), st.booleans(), st.booleans()),
        st.builds(Set, plain, value) | st.builds(Set, counter, count),
        st.builds(
            SetMany,
            st.lists(st.tuples(plain, value) | st.tuples(counter, count), max_size=4).map(tuple),
        ),
        st.builds(Clear, key),
        st.builds(ClearRange, lo, hi),
        st.builds(Add, counter, amount),
        st.builds(ModelTake, lo, hi, st.integers(0, 4)),
        st.builds(ModelSwap, st.lists(swap, max_size=4).map(tuple)),
    )


def programs() -> st.SearchStrategy[list[ModelTransaction]]:
    """Return a hypothesis strategy that generates a few transactions, to run one after the other."""
    mode: st.SearchStrategy[Mode] = st.sampled_from(("serial", "take"))
    steps = st.lists(_steps(), max_size=8)
    fails = st.sampled_from((False, False, False, True))
    return st.lists(st.builds(ModelTransaction, mode, steps, fails), max_size=5)
