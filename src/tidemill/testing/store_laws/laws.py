"""The base class of the store's tests: the hooks that a backend implements, and helpers."""

from typing import ClassVar

from tidemill.store import Row, Store, Tx

FIRST, BEHIND = b"\x00", b"\xfe"  # every user key is in this range


class StoreLaws:
    """The hooks. A subclass also gives the fixture `store`: a fresh, empty store for each test."""

    examples: ClassVar[int] = 40
    """How many random programs are compared with the model."""

    def reopen(self, store: Store) -> Store | None:
        """A second handle on the same data, from this process; None where there can be none."""
        raise TypeError(f"{type(self).__name__} must say how its store is opened a second time")

    def opens_elsewhere(self, store: Store) -> str | None:
        """Python source that opens the same data as `store` in another process; None where none can."""
        return None

    def age(self, store: Store, seconds: float) -> None:
        """Let time pass for a running transaction. A store whose clock can jump is quicker than this."""
        store.clock.sleep(seconds)


def contents(store: Store) -> list[Row]:
    """Every row a user can see."""
    return store.run(lambda tx: tx.range(FIRST, BEHIND))


def fill(store: Store, rows: dict[bytes, bytes]) -> None:
    """Put these rows into the store, in one transaction."""

    def fn(tx: Tx) -> None:
        for key, value in rows.items():
            tx.set(key, value)

    store.run(fn)


def value_of(store: Store, key: bytes) -> bytes | None:
    """The committed value under a key."""
    return store.run(lambda tx: tx.get(key))
