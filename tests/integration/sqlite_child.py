"""What tests let other processes do to a SQLite store: `python -m …sqlite_child verb path …`."""

import itertools
import os
import sys
from pathlib import Path

from tidemill import crash
from tidemill.errors import UsageError
from tidemill.store import Store, Tx
from tidemill.store.sqlite import SqliteStore

READY, TAKEN = (b"r", b"s"), (b"t", b"u")


def increment(store: Store, times: int) -> None:
    """Read, add one, write, so many times: only serialisable transactions get the sum right."""
    for _ in range(times):
        store.run(lambda tx: tx.set(b"n", b"%d" % (int(tx.get(b"n") or b"0") + 1)))


def take_rows(tx: Tx) -> int:
    rows = tx.take(*READY, 100)
    for key, value in rows:
        tx.set(b"t" + key, value)
    return len(rows)


def append(store: Store) -> None:
    """Commit a row, say so, commit the next one, until killed."""
    for n in itertools.count():
        store.run(lambda tx, n=n: tx.set(b"a%08d" % n, b"%d" % n))
        sys.stdout.write(f"{n}\n")
        sys.stdout.flush()


def fork(store: SqliteStore) -> None:
    """In a forked child neither the open store nor a new one may touch the file."""
    child = os.fork()
    if child == 0:
        refused = 0
        for act in (
            lambda: store.run(lambda tx: tx.get(b"k")),
            lambda: store.watch([b"k"]),
            lambda: SqliteStore(store.path),
        ):
            try:
                act()
            except UsageError as error:
                refused += "fork" in str(error)
        store.close()  # harmless, and not the parent's
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    store.run(lambda tx: tx.set(b"after", b"fork"))
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")


def main(verb: str, path: str, *rest: str) -> None:
    crash.arm_from_environment()
    with SqliteStore(Path(path)) as store:
        if verb == "increment":
            increment(store, int(rest[0]))
        elif verb == "take":
            sys.stdout.write(f"{store.run(take_rows, mode='take')}\n")
        elif verb == "append":
            append(store)
        elif verb == "set":
            sys.stdin.readline()  # the word to go
            store.run(lambda tx: tx.set(rest[0].encode(), b"set"))
        elif verb == "fork":
            store.run(lambda tx: tx.set(b"k", b"1"))
            fork(store)


if __name__ == "__main__":
    main(*sys.argv[1:])
