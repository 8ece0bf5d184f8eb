"""Producers: make repeated appends safe (LOT-36).

A producer numbers its appends in increasing order and may skip numbers. If it repeats a number with the same
digest, it gets the receipt of the first append. The same number with another digest is refused. An unused
number below the highest one is refused too, because appends cannot be inserted between earlier ones. The
transaction that makes the append durable also writes the receipt.
"""

import msgspec

from tidemill.errors import ProducerConflict
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx


class Identity(msgspec.Struct, frozen=True):
    """Identifies an append: the producer, its number, and the digest of the rows."""

    producer: str
    seq: int
    digest: str


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The confirmation that an append is durable, with the time at which it becomes visible.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> shop.dataset("orders", "id BIGINT").append([{"id": 1}]).position
    1

    - position: None if the append becomes visible only when its interval closes.
    - visible_at: the lot becomes visible at this time (wall time, µs) at the earliest (LOT-42).
    """

    dataset: DatasetId
    lot: str
    position: int | None
    visible_at: int


class _StoredReceipt(msgspec.Struct, frozen=True, array_like=True):
    digest: str
    receipt: Receipt


_decoder = msgspec.msgpack.Decoder(_StoredReceipt)


def find(tx: Tx, keys: LotKeys, dataset: DatasetId, append: Identity) -> Receipt | None:
    """Return the receipt of an earlier attempt, or None for a new append.

    Raise `ProducerConflict` if the append is refused.
    """
    raw = tx.get(keys.receipt[(*dataset.parts, append.producer, append.seq)])
    if raw is not None:
        stored = _decoder.decode(raw)
        if stored.digest != append.digest:
            raise ProducerConflict(
                f"producer {append.producer!r} already sent number {append.seq} to {dataset} with other rows"
            )
        return stored.receipt
    highest = last_seq(tx, keys, dataset, append.producer)
    if highest is not None and append.seq < highest:
        raise ProducerConflict(
            f"producer {append.producer!r} sent number {append.seq} to {dataset} after number {highest}",
            hint=f"use a number above {highest}",
        )
    return None


def record(tx: Tx, keys: LotKeys, append: Identity, receipt: Receipt) -> None:
    """Store the receipt of a new append. Checks again, so that the second of two concurrent appends fails."""
    if find(tx, keys, receipt.dataset, append) is not None:
        raise ProducerConflict(
            f"producer {append.producer!r} used number {append.seq} twice at the same time",
            hint="repeat the append: it returns the receipt of the first one",
        )
    parts = receipt.dataset.parts
    tx.set(
        keys.receipt[(*parts, append.producer, append.seq)],
        msgspec.msgpack.encode(_StoredReceipt(append.digest, receipt)),
    )
    tx.set(keys.producer[(*parts, append.producer)], msgspec.msgpack.encode(append.seq))


def last_seq(tx: Tx, keys: LotKeys, dataset: DatasetId, producer: str) -> int | None:
    """Return the highest number used, so that a restarted producer can continue from it."""
    raw = tx.get(keys.producer[(*dataset.parts, producer)], lock=True)
    return None if raw is None else msgspec.msgpack.decode(raw, type=int)
