"""Producers: make repeated appends safe (LOT-36).

A producer numbers its appends in increasing order and may skip numbers. If it repeats a number with the same
digest, it gets the receipt of the first append. The same number with another digest is refused. An unused
number below the highest one is refused too, because appends cannot be inserted between earlier ones. The
transaction that makes the append durable also writes the receipt.

The store keeps the newest receipts of a producer, at least 100. Older receipts are folded into the producer's
row, which keeps only the ranges of their numbers. A repeated number in such a range gets a receipt with
`folded` set: the append is durable, but its lot and its digest are no longer known. A producer that counts
without gaps has one range, so its repeats are recognised for ever. The row keeps the newest 64 ranges; a
number below them is refused.
"""

from collections.abc import Sequence

import msgspec

from tidemill.errors import ProducerConflict
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.store import Tx


class Identity(msgspec.Struct, frozen=True):
    """Identifies an append: the producer, its number, and the digest of the rows."""

    producer: str
    seq: int
    digest: str


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The confirmation that an append is durable, with the time at which it becomes visible.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> shop.dataset("orders", "id BIGINT").append([{"id": 1}]).position
    1

    - lot: empty if `folded`.
    - position: None if the append becomes visible only when its interval closes, or if `folded`.
    - visible_at: the lot becomes visible at this time (wall time, µs) at the earliest (LOT-42).
    - folded: this is the repetition of an old append, whose receipt is no longer stored. The append is
      durable; its lot and position are unknown, and its rows were not compared.
    """

    dataset: DatasetId
    lot: str
    position: int | None
    visible_at: int
    folded: bool = False


class _StoredReceipt(msgspec.Struct, frozen=True, array_like=True):
    digest: str
    receipt: Receipt


class _Producer(msgspec.Struct, frozen=True, array_like=True):
    """A producer's row. An earlier release stored the highest number alone, as an integer.

    - kept: how many receipts are stored; None if they were not counted yet.
    - ranges: the folded numbers, as pairs of a first and a last number that were used without gaps.
    - unknown_to: the numbers up to this one were folded, and their ranges are no longer stored.
    """

    highest: int
    kept: int | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    unknown_to: int | None = None


KEPT_RECEIPTS = 100
FOLDED_AT_ONCE = 50
MOST_RANGES = 64

_decoder = msgspec.msgpack.Decoder(_StoredReceipt)
_producer: msgspec.msgpack.Decoder[int | _Producer] = msgspec.msgpack.Decoder(int | _Producer)


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
    row = _read(tx, keys, dataset, append.producer)
    if row is None or append.seq >= row.highest:
        return None
    if any(first <= append.seq <= last for first, last in row.ranges):
        return Receipt(dataset=dataset, lot="", position=None, visible_at=0, folded=True)
    if row.unknown_to is not None and append.seq <= row.unknown_to:
        raise ProducerConflict(
            f"number {append.seq} of producer {append.producer!r} is too old: the receipts of {dataset} up to"
            f" number {row.unknown_to} are no longer stored",
            hint=f"use a number above {row.highest}; use consecutive numbers if"
            " you want to be able to repeat old appends",
        )
    raise ProducerConflict(
        f"producer {append.producer!r} sent number {append.seq} to {dataset} after number {row.highest}",
        hint=f"use a number above {row.highest}",
    )


def record(tx: Tx, keys: LotKeys, append: Identity, receipt: Receipt) -> None:
    """Store the receipt of a new append. Checks again, so that the second of two concurrent appends fails."""
    if find(tx, keys, receipt.dataset, append) is not None:
        raise ProducerConflict(
            f"producer {append.producer!r} used number {append.seq} twice at the same time",
            hint="repeat the append: it returns the receipt of the first one",
        )
    parts = receipt.dataset.parts
    row = _read(tx, keys, receipt.dataset, append.producer) or _Producer(append.seq, kept=0)
    tx.set(
        keys.receipt[(*parts, append.producer, append.seq)],
        msgspec.msgpack.encode(_StoredReceipt(append.digest, receipt)),
    )
    row = msgspec.structs.replace(row, highest=append.seq, kept=None if row.kept is None else row.kept + 1)
    tx.set(
        keys.producer[(*parts, append.producer)],
        msgspec.msgpack.encode(_fold(tx, keys, receipt.dataset, append.producer, row)),
    )


def _fold(tx: Tx, keys: LotKeys, dataset: DatasetId, producer: str, row: _Producer) -> _Producer:
    """Move a page of the oldest receipts into the producer's row, if there are enough of them."""
    if row.kept is not None and row.kept < KEPT_RECEIPTS + FOLDED_AT_ONCE:
        return row
    lo, hi = keys.receipt.under(*dataset.parts, producer)
    page = tx.range(lo, hi, limit=KEPT_RECEIPTS + FOLDED_AT_ONCE)
    old = page[: max(0, len(page) - KEPT_RECEIPTS)]
    if len(page) < KEPT_RECEIPTS + FOLDED_AT_ONCE:
        kept: int | None = len(page) - len(old)
    else:
        kept = None if row.kept is None else row.kept - len(old)
    if old:
        tx.clear_range(lo, old[-1].key + b"\x00")
    numbers = [number for each in old if isinstance(number := keys.receipt.unpack(each.key)[3], int)]
    ranges = _joined(row.ranges, numbers)
    dropped, ranges = ranges[:-MOST_RANGES], ranges[-MOST_RANGES:]
    unknown_to = dropped[-1][1] if dropped else row.unknown_to
    return _Producer(row.highest, kept, tuple(ranges), unknown_to)


def _joined(ranges: Sequence[tuple[int, int]], numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Add numbers, which are higher than all ranges and in order, to the ranges."""
    joined = list(ranges)
    for number in numbers:
        if joined and joined[-1][1] + 1 == number:
            joined[-1] = joined[-1][0], number
        else:
            joined.append((number, number))
    return joined


def _read(tx: Tx, keys: LotKeys, dataset: DatasetId, producer: str) -> _Producer | None:
    raw = tx.get(keys.producer[(*dataset.parts, producer)], lock=True)
    if raw is None:
        return None
    row = _producer.decode(raw)
    return _Producer(row) if isinstance(row, int) else row
