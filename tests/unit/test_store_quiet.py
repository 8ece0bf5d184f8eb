"""Quiet writes: the rows change, and the watches of their keys do not fire (STO-8)."""

from collections.abc import Callable

import pytest

from tidemill.store import Swap, Tx
from tidemill.store.memory import MemoryStore

WRITES: dict[str, Callable[[Tx, bool], object]] = {
    "set": lambda tx, quiet: tx.set(b"k", b"2", quiet=quiet),
    "set_many": lambda tx, quiet: tx.set_many([(b"k", b"2")], quiet=quiet),
    "clear": lambda tx, quiet: tx.clear(b"k", quiet=quiet),
    "take": lambda tx, quiet: tx.take(b"k", b"l", 1, quiet=quiet),
    "swap": lambda tx, quiet: tx.swap(b"k", b"1", b"2", quiet=quiet),
    "swap_many": lambda tx, quiet: tx.swap_many([Swap(b"k", b"1", None)], quiet=quiet),
}


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_a_quiet_write_changes_the_row_and_fires_no_watch(name: str, quiet: bool) -> None:
    store = MemoryStore()
    store.run(lambda tx: tx.set(b"k", b"1"))
    with store.watch([b"k"]) as watch:
        store.run(lambda tx: WRITES[name](tx, quiet))
        assert watch.wait(0.0) is not quiet
    assert store.run(lambda tx: tx.get(b"k")) != b"1"
