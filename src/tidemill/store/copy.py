"""Copy all rows of a store into an empty store, also of another kind.

The source is read as of one moment (`Store.snapshot`), so it may be in use. The copy is not one transaction,
because it can be large. So its first transaction marks the target as incomplete, and its last one removes the
mark. `check_complete` refuses a store with the mark. A copy that was interrupted starts again: it removes the
rows that the last try wrote.

Rows of `set_versioned` are written with `set_versioned` again, in their order. They get keys of the target:
its counter may be lower than that of the source, and rows that are added later must come after them. Nothing
stores such a key elsewhere.

Leases keep the times of the source. They expire in the target as if all nodes had died: every store's lease
time starts at about the wall clock.
"""

from collections.abc import Callable, Iterator

from tidemill import crash
from tidemill.errors import CopyIncomplete, UsageError
from tidemill.store.keys import Versionstamp, pack, unpack
from tidemill.store.port import LIMITS, SYSTEM_PREFIX, Row, Store, Tx

INCOMPLETE = pack(("", "copy of"))
"""The key of the mark. No cluster's name is empty, so no other row begins like it."""

FIRST = b"\x00"
MOST_ROWS = LIMITS.transaction_writes // 2
MOST_BYTES = LIMITS.transaction_bytes // 2
_STAMP_BYTES = len(pack((Versionstamp(0, 0),)))


def copy_store(
    source: Store,
    target: Store,
    progress: Callable[[int], None] = lambda _: None,
    *,
    replace: bool = False,
) -> int:
    """Copy all rows, and return how many there are.

    Raises `UsageError` if the target has rows that are not of an interrupted copy of this source.

    - progress: called with the number of rows that are copied so far.
    - replace: first remove all rows of the target.
    """
    target.run(lambda tx: _begin(tx, source.url, replace=replace))
    while target.run(_clear_page):
        pass
    crash.point("store.copy.begun")
    rows = 0
    for page in _pages(source.snapshot()):
        target.run(lambda tx, page=page: _write(tx, page))  # type: ignore[misc]
        crash.point("store.copy.page")
        rows += len(page)
        progress(rows)
    target.run(lambda tx: tx.clear(INCOMPLETE))
    crash.point("store.copy.ended")
    return rows


def check_complete(tx: Tx) -> None:
    """Raise `CopyIncomplete` if a copy into this store was interrupted."""
    source = tx.get(INCOMPLETE)
    if source is not None:
        raise CopyIncomplete(f"this store is an incomplete copy of {source.decode()}")


def _begin(tx: Tx, source: str, *, replace: bool) -> None:
    mark = tx.get(INCOMPLETE)
    if mark is None and not replace and tx.range(FIRST, SYSTEM_PREFIX, limit=1):
        raise UsageError("the target store is not empty", hint="copy into a new, empty store")
    if mark is not None and mark != source.encode():
        raise UsageError(
            f"the target store is an incomplete copy of {mark.decode()}",
            hint="repeat that copy, or copy into a new, empty store",
        )
    tx.set(INCOMPLETE, source.encode())


def _clear_page(tx: Tx) -> bool:
    """Remove a page of the rows of an interrupted copy; return True if there may be more."""
    page = tx.range(FIRST, SYSTEM_PREFIX, limit=MOST_ROWS)
    for row in page:
        if row.key != INCOMPLETE:
            tx.clear(row.key, quiet=True)
    return len(page) == MOST_ROWS


def _pages(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Divide rows into pages that fit a transaction."""
    page: list[Row] = []
    size = 0
    for row in rows:
        if row.key == INCOMPLETE:
            raise UsageError(
                f"the source is an incomplete copy of {row.value.decode()}", hint="repeat that copy"
            )
        if page and (len(page) == MOST_ROWS or size + len(row.key) + len(row.value) > MOST_BYTES):
            yield page
            page, size = [], 0
        page.append(row)
        size += len(row.key) + len(row.value)
    if page:
        yield page


def _write(tx: Tx, page: list[Row]) -> None:
    for row in page:
        prefix = _versioned_prefix(row.key)
        if prefix is None:
            tx.set(row.key, row.value, quiet=True)
        else:
            tx.set_versioned(prefix, row.value)


def _versioned_prefix(key: bytes) -> bytes | None:
    """Return the prefix of a key that `set_versioned` wrote; None for another key."""
    try:
        parts = unpack(key)
    except ValueError:
        return None
    return key[:-_STAMP_BYTES] if parts and isinstance(parts[-1], Versionstamp) else None
