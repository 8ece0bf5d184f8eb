"""Values that are longer than a row: written, read, shortened and removed with their parts."""

import pytest

from tidemill.errors import StoreCorrupt
from tidemill.store import LIMITS, Space, Tx, long_values, open_store
from tidemill.store.long_values import MARK, PART_BYTES
from tidemill.store.port import Store

ROWS = Space("c", "row")
MORE = Space("c", "more")
LENGTHS = [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, 300_000]


@pytest.fixture
def store() -> Store:
    return open_store("memory://")


def value(length: int) -> bytes:
    return b"\x90" + bytes(number % 251 for number in range(length - 1)) if length else b""


def get(store: Store, key: bytes) -> bytes | None:
    return store.run(lambda tx: long_values.get_long(tx, MORE, key))


def parts(store: Store) -> int:
    return len(store.run(lambda tx: tx.range(*MORE.all())))


@pytest.mark.rule("STO-7")
def test_values_of_any_length_are_read_as_they_were_written(store: Store) -> None:
    for number, length in enumerate(LENGTHS):

        def write(tx: Tx, number: int = number, length: int = length) -> None:
            long_values.set_long(tx, MORE, ROWS[number], value(length))

        store.run(write)
    for number, length in enumerate(LENGTHS):
        assert get(store, ROWS[number]) == value(length)
    rows = store.run(lambda tx: tx.range(*ROWS.all()))
    assert [row.value.startswith(MARK) for row in rows] == [length > PART_BYTES for length in LENGTHS]
    assert max(len(row.value) for row in rows) <= LIMITS.value_bytes
    complete = store.run(lambda tx: [long_values.complete(tx, MORE, row.key, row.value) for row in rows])
    assert complete == [value(length) for length in LENGTHS]
    assert get(store, ROWS["none"]) is None


def test_a_value_can_become_shorter_and_longer(store: Store) -> None:
    for length in (200_000, 10, 130_000, 65_000, 300_000):
        store.run(lambda tx, length=length: long_values.set_long(tx, MORE, ROWS[1], value(length)))  # type: ignore[misc]
        assert get(store, ROWS[1]) == value(length)


def test_clearing_a_key_removes_its_parts_and_no_others(store: Store) -> None:
    def write(tx: Tx) -> None:
        for number in range(1, 5):
            long_values.set_long(tx, MORE, ROWS[number], value(130_000))

    store.run(write)
    assert parts(store) == 8
    store.run(lambda tx: long_values.clear_long(tx, MORE, ROWS[1]))
    assert get(store, ROWS[1]) is None
    assert parts(store) == 6
    store.run(lambda tx: long_values.clear_long_range(tx, MORE, ROWS[2], ROWS[4]))
    assert [get(store, ROWS[number]) is None for number in range(1, 5)] == [True, True, True, False]
    assert parts(store) == 2


def test_a_value_without_one_of_its_parts_is_refused(store: Store) -> None:
    store.run(lambda tx: long_values.set_long(tx, MORE, ROWS[1], value(130_000)))
    store.run(lambda tx: tx.clear(MORE[ROWS[1], 2]))
    with pytest.raises(StoreCorrupt, match="part 2 of 3 is missing"):
        get(store, ROWS[1])
