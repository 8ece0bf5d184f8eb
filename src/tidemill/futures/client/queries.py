"""Queries about futures: list them, show one in detail, and find an id by its first digits (FUT-58).

A list is read in pages, each in a separate read-only transaction. So listing a million futures blocks no
other transaction, but the futures may change between two pages.
"""

import fnmatch
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from tidemill.errors import FutureUnknown, UsageError
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys, ids_in
from tidemill.futures.protocol.rows import (
    AnyRow,
    AttemptCounts,
    Blocked,
    Cancelled,
    Claimed,
    Failed,
    Failure,
    Quarantined,
    Realized,
    Spec,
    Unclaimed,
    Unsatisfiable,
)
from tidemill.store import Store, Tx

PAGE = 500
COUNT_PAGE = 5_000


class FutureSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One future of a list.

    - age_s: the time since its submission, by the store's clock.
    - status: the text that the running task has set with `TaskContext.status`.
    """

    id: str
    name: str
    state: str
    age_s: float
    node: str = ""
    tries: int = 0
    queue: str = ""
    priority: int = 0
    detail: str = ""
    status: str = ""


class FutureDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is stored about one future."""

    spec: Spec
    row: AnyRow
    failure: Failure | None
    age_s: float
    copies: int
    status: str = ""


def list_futures(
    store: Store,
    keys: FutureKeys,
    *,
    states: Collection[str] = (),
    name: str = "",
    limit: int = 50,
) -> list[FutureSummary]:
    """Return the futures that match, newest first.

    Args:
        store: the store.
        keys: the keys of futures.
        states: only futures in these states; empty for all.
        name: a part of the function's name, or a pattern with `*`.
        limit: return at most this many futures.
    """
    return list_page(store, keys, states=states, name=name, limit=limit, most_read=None).futures


class FuturePage(NamedTuple):
    """A page of a list, newest first; `before` is the argument for the next page, empty after the last."""

    futures: list[FutureSummary]
    before: bytes


def list_page(
    store: Store,
    keys: FutureKeys,
    *,
    states: Collection[str] = (),
    name: str = "",
    before: bytes = b"",
    limit: int = 50,
    most_read: int | None = 2_000,
) -> FuturePage:
    """Return a page of the futures that match; see `list_futures`.

    Args:
        store: the store.
        keys: the keys of futures.
        states: only futures in these states; empty for all.
        name: a part of the function's name, or a pattern with `*`.
        before: only futures older than this id; empty to begin with the newest.
        limit: return at most this many futures.
        most_read: stop after about this many futures, matching or not. The page may then be short or empty,
            although there are more.
    """
    summaries: list[FutureSummary] = []
    pattern = name if "*" in name else f"*{name}*"
    read = 0
    last = b""
    for page in _pages(store, keys, before):
        for stored in page:
            last = stored.id
            if states and stored.row.state.value not in states:
                continue
            if name and not fnmatch.fnmatchcase(stored.spec.name, pattern):
                continue
            summaries.append(_summary(stored))
            if len(summaries) == limit:
                return FuturePage(summaries, last)
        read += len(page)
        if most_read is not None and read >= most_read:
            return FuturePage(summaries, last)
    return FuturePage(summaries, b"")


def count_states(store: Store, keys: FutureKeys, most: int) -> dict[str, int]:
    """Count the newest futures by state, at most `most` of them."""
    lo, hi = keys.future.all()
    counts: dict[str, int] = {}
    left = most
    while left > 0:
        limit = min(COUNT_PAGE, left)
        page = store.run(
            lambda tx, hi=hi, limit=limit: tx.range(lo, hi, limit=limit, reverse=True, snapshot=True)  # type: ignore[misc]
        )
        for row in page:
            state = rows.decode_row(row.value).state.value
            counts[state] = counts.get(state, 0) + 1
        if len(page) < limit:
            break
        left -= len(page)
        hi = page[-1].key
    return counts


class _FutureRows(NamedTuple):
    id: bytes
    row: AnyRow
    spec: Spec
    failure: Failure | None
    status: str
    now_us: int


def _pages(store: Store, keys: FutureKeys, before: bytes = b"") -> Iterator[list[_FutureRows]]:
    lo, hi = keys.future.all()
    if before:
        hi = keys.future[before]
    while True:
        page, hi = store.run(lambda tx, hi=hi: _page(tx, keys, lo, hi))  # type: ignore[misc]
        yield page
        if hi <= lo:
            return


def _page(tx: Tx, keys: FutureKeys, lo: bytes, hi: bytes) -> tuple[list[_FutureRows], bytes]:
    """Read the last futures before `hi`. Return them, and the `hi` of the next page."""
    state_rows = tx.range(lo, hi, limit=PAGE, reverse=True, snapshot=True)
    ids = ids_in(keys.future, state_rows)
    spaces = (keys.spec, keys.error, keys.status)
    raws = iter(tx.get_many([space[future_id] for future_id in ids for space in spaces]))
    page = []
    for future_id, raw, spec, error, status in zip(ids, state_rows, raws, raws, raws, strict=True):
        if spec is not None:
            row = rows.decode_row(raw.value)
            failure = rows.decode_failure(error) if error is not None else None
            page.append(
                _FutureRows(future_id, row, rows.decode_spec(spec), failure, _status(row, status), tx.now())
            )
    return page, state_rows[-1].key if len(state_rows) == PAGE else lo


def _status(row: AnyRow, raw: bytes | None) -> str:
    """Return the status of a task that is running. A status may outlive its task for a moment."""
    return raw.decode() if raw is not None and isinstance(row, Claimed) else ""


def _summary(stored: _FutureRows) -> FutureSummary:
    row, spec = stored.row, stored.spec
    return FutureSummary(
        id=stored.id.hex(),
        name=spec.name,
        state=row.state.value,
        age_s=max(0, stored.now_us - spec.submitted_at) / 1_000_000,
        node=_node(row),
        tries=tries(row.tally),
        queue=spec.queue,
        priority=spec.priority,
        detail=_detail(row, stored.failure) or stored.status.partition("\n")[0][:200],
        status=stored.status,
    )


def tries(tally: AttemptCounts) -> int:
    """Return how many attempts have failed, for any reason."""
    return tally.exceptions + tally.crashes + tally.ooms + tally.strange + tally.reaps


def _node(row: AnyRow) -> str:
    match row:
        case Claimed():
            return row.holder
        case Realized():
            return row.result.location.node
        case Unclaimed():
            return row.assigned
    return ""


def _detail(row: AnyRow, failure: Failure | None) -> str:
    match row:
        case Blocked():
            return f"waits for {row.waits_on} input{'' if row.waits_on == 1 else 's'}"
        case Claimed() if row.cancel:
            return f"is being cancelled: {row.cancel}"
        case Realized():
            return f"{row.result.location.kind}, {row.result.size:,} bytes"
        case Failed() | Quarantined() | Cancelled() | Unsatisfiable() if failure is not None:
            text = f"{failure.type}: {failure.message}" if failure.type else failure.message
            return text.partition("\n")[0][:200]
    return ""


def show_future(store: Store, keys: FutureKeys, future_id: bytes) -> FutureDetails:
    """Return everything that is stored about a future. Raise `FutureUnknown` if it does not exist."""

    def read(tx: Tx) -> FutureDetails:
        spaces = (keys.spec, keys.future, keys.error, keys.status)
        spec, row, error, status = tx.get_many([space[future_id] for space in spaces])
        if spec is None or row is None:
            raise FutureUnknown(f"future {future_id.hex()} does not exist or was deleted")
        decoded, state = rows.decode_spec(spec), rows.decode_row(row)
        return FutureDetails(
            spec=decoded,
            row=state,
            failure=rows.decode_failure(error) if error is not None else None,
            age_s=max(0, tx.now() - decoded.submitted_at) / 1_000_000,
            copies=len(tx.range(*keys.copy.under(future_id), snapshot=True)),
            status=_status(state, status),
        )

    return store.run(read)


def find_id(store: Store, keys: FutureKeys, begins: str) -> bytes:
    """Return the id that begins with these hexadecimal digits. Raise if no id or several ids match."""
    text = begins.strip().lower()
    if not text or len(text) > 32 or any(digit not in "0123456789abcdef" for digit in text):
        raise UsageError(
            f"invalid future id: {begins!r:.60}",
            hint="use hexadecimal digits, as shown by: tidemill futures",
        )
    first, last = bytes.fromhex(text.ljust(32, "0")), bytes.fromhex(text.ljust(32, "f"))

    def read(tx: Tx) -> list[bytes]:
        last_key = keys.future[last] + b"\x00"
        return ids_in(keys.future, tx.range(keys.future[first], last_key, limit=2, snapshot=True))

    ids = store.run(read)
    if not ids:
        raise FutureUnknown(f"no future id begins with {begins}, or the future was deleted")
    if len(ids) > 1:
        raise UsageError(f"several future ids begin with {begins}", hint="use more digits of the id")
    return ids[0]
