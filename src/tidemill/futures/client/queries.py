"""Looking at futures: lists, one of them with all that is known, and ids by their beginning (FUT-58).

Everything is read in pages, each a transaction of its own that only reads: a list of a store with a million
futures holds up nobody, and is not of one moment.
"""

import fnmatch
from collections.abc import Collection, Iterator

import msgspec

from tidemill.errors import FutureUnknown, UsageError
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys
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


class FutureSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One future of a list. Times are store time, `age_s` counts from the submission."""

    id: str
    name: str
    state: str
    age_s: float
    node: str = ""
    tries: int = 0
    queue: str = ""
    priority: int = 0
    detail: str = ""


class FutureDetails(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one future."""

    spec: Spec
    row: AnyRow
    failure: Failure | None
    age_s: float
    copies: int


def listed(
    store: Store,
    keys: FutureKeys,
    *,
    states: Collection[str] = (),
    name: str = "",
    limit: int = 50,
) -> list[FutureSummary]:
    """The newest futures that match, newest first.

    Args:
        store: where they are.
        keys: of the cluster.
        states: only these; all when empty.
        name: a part of the function's name, or a pattern with `*`.
        limit: at most so many.
    """
    found: list[FutureSummary] = []
    pattern = name if "*" in name else f"*{name}*"
    for page in _pages(store, keys):
        for future_id, row, spec, error, now_us in page:
            if states and row.state.value not in states:
                continue
            if name and not fnmatch.fnmatchcase(spec.name, pattern):
                continue
            found.append(_listed(future_id, row, spec, error, now_us))
            if len(found) == limit:
                return found
    return found


_Seen = tuple[bytes, AnyRow, Spec, Failure | None, int]


def _pages(store: Store, keys: FutureKeys) -> Iterator[list[_Seen]]:
    lo, hi = keys.future.all()
    while True:
        page, hi = store.run(lambda tx, hi=hi: _page(tx, keys, lo, hi))  # type: ignore[misc]
        yield page
        if hi <= lo:
            return


def _page(tx: Tx, keys: FutureKeys, lo: bytes, hi: bytes) -> tuple[list[_Seen], bytes]:
    """A page of futures from the end, and where the next one ends."""
    found = tx.range(lo, hi, limit=PAGE, reverse=True, snapshot=True)
    ids = [one for row in found if isinstance(one := keys.future.unpack(row.key)[0], bytes)]
    beside = iter(tx.get_many([key for one in ids for key in (keys.spec[one], keys.error[one])]))
    page = []
    for future_id, row, spec, error in zip(ids, found, beside, beside, strict=True):
        if spec is not None:
            failure = rows.decode_failure(error) if error is not None else None
            page.append((future_id, rows.decode_row(row.value), rows.decode_spec(spec), failure, tx.now()))
    return page, found[-1].key if len(found) == PAGE else lo


def _listed(future_id: bytes, row: AnyRow, spec: Spec, failure: Failure | None, now_us: int) -> FutureSummary:
    return FutureSummary(
        id=future_id.hex(),
        name=spec.name,
        state=row.state.value,
        age_s=max(0, now_us - spec.submitted_at) / 1_000_000,
        node=_node(row),
        tries=tries(row.tally),
        queue=spec.queue,
        priority=spec.priority,
        detail=_detail(row, failure),
    )


def tries(tally: AttemptCounts) -> int:
    """How many attempts have gone wrong, in whatever way."""
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
            return f"waits for {row.waits_on}"
        case Claimed() if row.cancel:
            return f"is being ended: {row.cancel}"
        case Realized():
            return f"{row.result.location.kind}, {row.result.size:,} bytes"
        case Failed() | Quarantined() | Cancelled() | Unsatisfiable() if failure is not None:
            text = f"{failure.type}: {failure.message}" if failure.type else failure.message
            return text.partition("\n")[0][:200]
    return ""


def shown(store: Store, keys: FutureKeys, future_id: bytes) -> FutureDetails:
    """One future with all that is known of it; `FutureUnknown` when there is none."""

    def read(tx: Tx) -> FutureDetails:
        spec, row, error = tx.get_many([keys.spec[future_id], keys.future[future_id], keys.error[future_id]])
        if spec is None or row is None:
            raise FutureUnknown(f"there is no future {future_id.hex()}, or no longer")
        found = rows.decode_spec(spec)
        return FutureDetails(
            spec=found,
            row=rows.decode_row(row),
            failure=rows.decode_failure(error) if error is not None else None,
            age_s=max(0, tx.now() - found.submitted_at) / 1_000_000,
            copies=len(tx.range(*keys.copy.under(future_id), snapshot=True)),
        )

    return store.run(read)


def find(store: Store, keys: FutureKeys, begins: str) -> bytes:
    """The id that begins with these hexadecimal digits; an error when there is none, or more than one."""
    text = begins.strip().lower()
    if not text or len(text) > 32 or any(digit not in "0123456789abcdef" for digit in text):
        raise UsageError(f"not the id of a future: {begins!r:.60}", hint="hexadecimal digits, as in the list")
    first, last = bytes.fromhex(text.ljust(32, "0")), bytes.fromhex(text.ljust(32, "f"))

    def read(tx: Tx) -> list[bytes]:
        found = tx.range(keys.future[first], keys.future[last] + b"\x00", limit=2, snapshot=True)
        return [one for row in found if isinstance(one := keys.future.unpack(row.key)[0], bytes)]

    ids = store.run(read)
    if not ids:
        raise FutureUnknown(f"there is no future {begins}, or no longer")
    if len(ids) > 1:
        raise UsageError(f"several futures begin with {begins}", hint="give more of the id")
    return ids[0]
