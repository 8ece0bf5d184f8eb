"""Orphans: objects of futures that no row refers to.

Rows name every object before it is written (`protocol.drafts`, `protocol.code`), so there should be none. But
earlier releases left some, and a process that was paused for more than a day may write an object after its
row was deleted.
"""

from collections.abc import Iterator

from tidemill.errors import FutureError
from tidemill.futures.protocol import code, edges, rows
from tidemill.futures.protocol.keys import FutureKeys, args_object, result_object
from tidemill.futures.protocol.rows import Claimed
from tidemill.objects import Objects
from tidemill.store import Store, Tx

GRACE_S = 24 * 3600.0
PAGE = 100


def find_orphans(
    store: Store, keys: FutureKeys, objects: Objects, wall_s: float, grace_s: float = GRACE_S
) -> list[str]:
    """Return the objects of futures that are older than the grace period and that no row refers to.

    No row will refer to them later: a row names an object before the object exists.

    - wall_s: the wall time, without a jump.
    """
    youngest = wall_s - grace_s
    old = [info.key for info in objects.list("futures/") if info.modified_at < youngest]
    if not old:
        return []
    used = _used_code(store, keys)
    orphans: list[str] = []
    for first in range(0, len(old), PAGE):
        page = old[first : first + PAGE]
        orphans += store.run(
            lambda tx, page=page: [  # type: ignore[misc]
                name for name in page if not _is_named(tx, keys, name, used)
            ]
        )
    return orphans


def _used_code(store: Store, keys: FutureKeys) -> frozenset[bytes]:
    return frozenset(digest for page in _pages(store, keys) for digest in page)


def _pages(store: Store, keys: FutureKeys) -> Iterator[set[bytes]]:
    after = b""
    while True:
        used, after = store.run(lambda tx, after=after: code.used_page(tx, keys, after))  # type: ignore[misc]
        yield used
        if not after:
            return


def _is_named(tx: Tx, keys: FutureKeys, name: str, used: frozenset[bytes]) -> bool:
    if tx.get(keys.draft[name]) is not None or tx.get(keys.garbage[name]) is not None:
        return True
    parts = name.split("/")
    try:
        owner = bytes.fromhex(parts[2])
    except (IndexError, ValueError):
        return True  # not an object of this layout: leave it alone
    if parts[1] == "blobs":
        state = code.read(tx, keys, owner)
        return owner in used or (state is not None and state.object == name)
    if parts[1] == "args":
        return _has_args(tx, keys, owner, name)
    return parts[1] != "results" or _has_result(tx, keys, owner, name)


def _has_args(tx: Tx, keys: FutureKeys, future_id: bytes, name: str) -> bool:
    try:
        spec = edges.must_read_spec(tx, keys, future_id)
    except FutureError:
        return False
    return spec.args.inline is None and name == args_object(future_id, spec.args.digest)


def _has_result(tx: Tx, keys: FutureKeys, future_id: bytes, name: str) -> bool:
    row = edges.read(tx, keys, future_id)
    if isinstance(row, Claimed) and name == result_object(future_id, row.tally.epoch):
        return True
    raw = tx.get(keys.copy[future_id, ""])
    return raw is not None and rows.decode_result(raw).location.name == name
