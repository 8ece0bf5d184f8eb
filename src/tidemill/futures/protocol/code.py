"""Stored code: delete the code that no future needs any more (FUT-34).

Every stored function has a small row, `code-state`. The client writes the row before it stores a large
function as an object, so no object is without a row. To delete code, the leader repeats a round every hour:

1. It reads the specs of all futures, page by page, and collects the digests that they contain.
2. It marks the code that no spec contains.
3. It deletes code that was marked more than an hour before the round began, and is still marked.

Why no code is deleted that a future needs: the transaction that submits a future calls `need`, which removes
the mark, or refuses the submission if the code is gone. So if a future was submitted after the mark, the mark
is gone; if it was submitted before, the round sees its spec.
"""

from collections.abc import Collection, Sequence

import msgspec

from tidemill.errors import BlobMissing
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.store import Tx

GRACE_US = 3600 * 1_000_000
SPECS_PAGE = 200
PAGE = 100
CONTENT_PAGE = 10
"""How many rows with code to read at once: each has up to 48 KiB."""


class StoredCode(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a function's code.

    - object: the name of the object with the code; empty if the code is in the store.
    - marked_at: since when no future has needed it (store time, µs); 0 if it is not marked.
    """

    object: str = ""
    marked_at: int = 0


_decoder = msgspec.msgpack.Decoder(StoredCode)


def read(tx: Tx, keys: FutureKeys, digest: bytes) -> StoredCode | None:
    """Read the state of some code; None if it is not stored, or if an earlier release stored it."""
    raw = tx.get(keys.code_state[digest])
    return None if raw is None else _decoder.decode(raw)


def register(tx: Tx, keys: FutureKeys, digest: bytes, content: bytes | None) -> StoredCode:
    """Record that a client stores this code, and remove its mark.

    - content: the code; None if the caller stores it as an object right after this. The name of the object is
      in the returned state. No name is used again after its code was deleted.
    """
    state = read(tx, keys, digest)
    if state is None:
        state = StoredCode("" if content is not None else f"futures/blobs/{digest.hex()}/{tx.now():x}")
        _write(tx, keys, digest, state)
    elif state.marked_at:
        state = StoredCode(state.object)
        _write(tx, keys, digest, state)
    if content is not None and tx.get(keys.code[digest]) is None:
        tx.set(keys.code[digest], content)
    return state


def need(tx: Tx, keys: FutureKeys, digests: Collection[bytes]) -> None:
    """Keep code, in the transaction that submits futures with it. Raise `BlobMissing` if it was deleted."""
    wanted = sorted({digest for digest in digests if digest})
    raws = tx.get_many([keys.code_state[digest] for digest in wanted]) if wanted else []
    for digest, raw in zip(wanted, raws, strict=True):
        if raw is None:
            raise BlobMissing(
                "the stored code of this call was deleted, because no future had used it for an hour",
                hint="submit the call again: this stores the code again",
            )
        state = _decoder.decode(raw)
        if state.marked_at:
            _write(tx, keys, digest, StoredCode(state.object))


def used_page(tx: Tx, keys: FutureKeys, after: bytes, limit: int = SPECS_PAGE) -> tuple[set[bytes], bytes]:
    """Return the digests that a page of specs contains, and where the next page begins; empty at the end."""
    lo, hi = keys.spec.all()
    page = tx.range(max(lo, after + b"\x00"), hi, limit=limit, snapshot=True)
    used = {rows.decode_spec(row.value).code for row in page}
    return used, page[-1].key if len(page) == limit else b""


def adopt_page(tx: Tx, keys: FutureKeys, after: bytes, limit: int = CONTENT_PAGE) -> bytes:
    """Write the states that a page of code lacks, because an earlier release stored it.

    Return where the next page begins; empty at the end.
    """
    lo, hi = keys.code.all()
    page = tx.range(max(lo, after + b"\x00"), hi, limit=limit, snapshot=True)
    for row in page:
        digest = _digest(keys.code.unpack(row.key))
        if read(tx, keys, digest) is None:
            _write(tx, keys, digest, StoredCode())
    return page[-1].key if len(page) == limit else b""


def collect_page(
    tx: Tx, keys: FutureKeys, used: Collection[bytes], began_at: int, after: bytes, limit: int = PAGE
) -> tuple[int, bytes]:
    """Mark a page of code that is not used, and delete code that was marked long before the round.

    Return how much code was deleted, and where the next page begins; empty at the end.

    - used: the digests in the specs, all of which were read after `began_at`.
    """
    lo, hi = keys.code_state.all()
    page = tx.range(max(lo, after + b"\x00"), hi, limit=limit)
    deleted = 0
    for row in page:
        digest, state = _digest(keys.code_state.unpack(row.key)), _decoder.decode(row.value)
        if digest in used:
            continue
        if not state.marked_at:
            _write(tx, keys, digest, StoredCode(state.object, tx.now()))
        elif state.marked_at + GRACE_US <= began_at:
            tx.clear(row.key)
            tx.clear(keys.code[digest])
            if state.object:
                tx.set(keys.garbage[state.object], b"")
            deleted += 1
    return deleted, page[-1].key if len(page) == limit else b""


def _write(tx: Tx, keys: FutureKeys, digest: bytes, state: StoredCode) -> None:
    tx.set(keys.code_state[digest], msgspec.msgpack.encode(state), quiet=True)


def _digest(parts: Sequence[object]) -> bytes:
    digest = parts[0]
    assert isinstance(digest, bytes)
    return digest
