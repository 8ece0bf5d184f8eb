"""Rows that cannot be decoded: the store reports that it is damaged, to readers and to writers."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tidemill.errors import StoreCorrupt
from tidemill.store import Store, Tx, open_store
from tidemill.store.keys import Space

ROWS = Space("rows")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_store("memory://" if request.param == "memory" else f"sqlite://{tmp_path}/store.db") as store:
        store.run(lambda tx: tx.set(ROWS["a"], b"\xc1\xff"))
        yield store


def _number(tx: Tx) -> int:
    return msgspec.msgpack.decode(tx.get(ROWS["a"]) or b"", type=int)


def _text(tx: Tx) -> str:
    return (tx.get(ROWS["a"]) or b"").decode()


def _change(tx: Tx) -> None:
    tx.set(ROWS["b"], b"")
    _number(tx)


@pytest.mark.parametrize("read", [_number, _text, _change])
def test_a_row_that_cannot_be_decoded_means_that_the_store_is_damaged(store: Store, read: object) -> None:
    for _ in range(2):  # SQLite remembers after the first call whether a function writes
        with pytest.raises(StoreCorrupt, match="cannot be decoded") as error:
            store.run(read)  # type: ignore[arg-type]
        assert error.value.hint
    assert store.run(lambda tx: tx.get(ROWS["b"])) is None


def test_other_errors_of_a_function_are_raised_unchanged(store: Store) -> None:
    def fail(_: Tx) -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        store.run(fail)
