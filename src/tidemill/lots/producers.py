"""Producers: an append that is repeated is the same append (LOT-36).

A producer numbers its appends upwards. The same number with the same digest gets the receipt of the first
time; with another digest it is refused, and so is a lower number that was never taken: its place in the order
is gone. Numbers may be skipped. The receipt is written in the transaction that makes the append durable.
"""

import msgspec

from tidemill.errors import ProducerConflict
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx


class Identity(msgspec.Struct, frozen=True):
    """Which append it is: the producer's number for it, and the digest of what it holds."""

    producer: str
    seq: int
    digest: str


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Confirm that an append is durable, and say when it becomes visible.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> shop.dataset("orders", "id BIGINT").append([{"id": 1}]).position
    1

    - position: None while the interval of the append is open.
    - visible_at: the lot becomes visible at this time (wall time, µs) at the earliest (LOT-42).
    """

    dataset: DatasetId
    lot: str
    position: int | None
    visible_at: int


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    digest: str
    receipt: Receipt


_kept = msgspec.msgpack.Decoder(_Kept)


def find(tx: Tx, keys: LotKeys, dataset: DatasetId, append: Identity) -> Receipt | None:
    """The receipt of the first time; None for a new append; `ProducerConflict` for one that cannot be."""
    raw = tx.get(keys.receipt[(*dataset.parts, append.producer, append.seq)])
    if raw is not None:
        kept = _kept.decode(raw)
        if kept.digest != append.digest:
            raise ProducerConflict(
                f"producer {append.producer!r} used {append.seq} for other rows of {dataset} already"
            )
        return kept.receipt
    highest = last_seq(tx, keys, dataset, append.producer)
    if highest is not None and append.seq < highest:
        raise ProducerConflict(
            f"producer {append.producer!r} skipped {append.seq} of {dataset}: it is at {highest}"
        )
    return None


def record(tx: Tx, keys: LotKeys, append: Identity, receipt: Receipt) -> None:
    """Keep the answer to a new append. Looks once more: of two that race, the second is refused."""
    if find(tx, keys, receipt.dataset, append) is not None:
        raise ProducerConflict(
            f"{append.seq} of producer {append.producer!r} was taken meanwhile",
            hint="append it again: the answer is the receipt of the first time",
        )
    parts = receipt.dataset.parts
    tx.set(
        keys.receipt[(*parts, append.producer, append.seq)],
        msgspec.msgpack.encode(_Kept(append.digest, receipt)),
    )
    tx.set(keys.producer[(*parts, append.producer)], msgspec.msgpack.encode(append.seq))


def last_seq(tx: Tx, keys: LotKeys, dataset: DatasetId, producer: str) -> int | None:
    """The highest number that was taken: where a producer that lost its memory goes on."""
    raw = tx.get(keys.producer[(*dataset.parts, producer)], lock=True)
    return None if raw is None else msgspec.msgpack.decode(raw, type=int)
