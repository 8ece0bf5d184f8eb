"""Drafts: the names of objects that are written before the row that refers to them (FUT-34).

Large arguments are stored before their future is submitted, and a durable result before its future is
realized. If the process dies in between, nothing refers to the object. So the name of the object is first
written to the store, as a draft. The transaction that submits or realizes the future clears the draft. The
leader deletes the objects of drafts that are a day old.
"""

import msgspec

from tidemill.errors import BlobMissing
from tidemill.futures.protocol import edges, rows
from tidemill.futures.protocol.keys import FutureKeys, args_object, result_object
from tidemill.futures.protocol.rows import Claimed, Spec
from tidemill.store import Tx

PAGE = 50

_written_at = msgspec.msgpack.Decoder(int)


def announce(tx: Tx, keys: FutureKeys, name: str) -> None:
    """Record the name of an object, before the object is written."""
    tx.set(keys.draft[name], msgspec.msgpack.encode(tx.now()), quiet=True)


def adopt_args(tx: Tx, keys: FutureKeys, spec: Spec, *, submitted: bool) -> None:
    """Clear the draft of a future's arguments, in the transaction that submits it.

    Raise `BlobMissing` if the arguments were deleted, because they were stored more than a day ago.

    - submitted: False if an earlier future with the same idempotency key is used instead. Then the arguments
      are deleted.
    """
    if spec.args.inline is not None:
        return
    name = args_object(spec.id, spec.args.digest)
    if tx.get(keys.draft[name]) is None:
        raise BlobMissing(
            f"the arguments of {spec.name} were deleted, because they were stored more than a day ago",
            hint="submit the call again",
        )
    tx.clear(keys.draft[name], quiet=True)
    if not submitted:
        tx.set(keys.garbage[name], b"")


def collect_page(
    tx: Tx, keys: FutureKeys, keep_us: int, after: bytes, limit: int = PAGE
) -> tuple[int, bytes]:
    """Have the objects of old drafts deleted. Return how many, and where the next page begins.

    The draft of a result stays as long as its claim is valid, because the future may still be realized.
    """
    lo, hi = keys.draft.all()
    page = tx.range(max(lo, after + b"\x00"), hi, limit=limit)
    deleted = 0
    for row in page:
        if _written_at.decode(row.value) + keep_us > tx.now():
            continue
        name = str(keys.draft.unpack(row.key)[0])
        if _is_in_progress(tx, keys, name):
            continue
        if not _is_named(tx, keys, name):
            tx.set(keys.garbage[name], b"")
            deleted += 1
        tx.clear(row.key, quiet=True)
    return deleted, page[-1].key if len(page) == limit else b""


def _is_in_progress(tx: Tx, keys: FutureKeys, name: str) -> bool:
    future_id = _future_of(name)
    row = edges.read(tx, keys, future_id)
    return isinstance(row, Claimed) and name == result_object(future_id, row.tally.epoch)


def _is_named(tx: Tx, keys: FutureKeys, name: str) -> bool:
    """Return whether a spec or a result refers to an object."""
    future_id = _future_of(name)
    spec = edges.read_spec(tx, keys, future_id)
    if spec is not None and spec.args.inline is None and name == args_object(spec.id, spec.args.digest):
        return True
    raw = tx.get(keys.copy[future_id, ""])
    return raw is not None and rows.decode_result(raw).location.name == name


def _future_of(name: str) -> bytes:
    return bytes.fromhex(name.split("/")[2])
