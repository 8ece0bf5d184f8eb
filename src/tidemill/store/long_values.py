"""Values that may be longer than a row of the store can hold: they are stored in several rows.

The row of the key holds the first part, and the rows of a second space hold the other parts. A short value is
stored as it is, so rows of earlier releases stay valid, and most values need one row. The first byte of a
long value's row is `MARK`, which begins no value in MessagePack.

All parts are written in one transaction and read in one. If a value gets shorter, its last parts stay in the
store until the value is cleared; no reader uses them. The caller bounds the length of its values, because a
transaction has a maximum size.
"""

from tidemill.errors import StoreCorrupt
from tidemill.store.keys import Space
from tidemill.store.port import Tx

MARK = b"\xc1"
PART_BYTES = 60 * 1024
_HEAD = len(MARK) + 2  # the mark, and the number of rows


def set_long(tx: Tx, more: Space, key: bytes, value: bytes) -> None:
    """Set the value of a key.

    - more: the space for the rows after the first one.
    """
    parts = [value[at : at + PART_BYTES] for at in range(0, len(value), PART_BYTES)]
    if len(parts) < 2:
        tx.set(key, value, quiet=True)
        return
    tx.set(key, MARK + len(parts).to_bytes(2, "big") + parts[0], quiet=True)
    for number, part in enumerate(parts[1:], 1):
        tx.set(more[key, number], part, quiet=True)


def get_long(tx: Tx, more: Space, key: bytes) -> bytes | None:
    """Return the value of a key; None if there is none."""
    raw = tx.get(key)
    return None if raw is None else complete(tx, more, key, raw)


def complete(tx: Tx, more: Space, key: bytes, raw: bytes) -> bytes:
    """Return the value of a key whose first row has been read.

    Raises `StoreCorrupt` if a part is missing: one transaction writes all parts of a value.
    """
    if not raw.startswith(MARK):
        return raw
    count = int.from_bytes(raw[len(MARK) : _HEAD], "big")
    value = bytearray(raw[_HEAD:])
    for number, part in enumerate(tx.get_many([more[key, number] for number in range(1, count)]), 1):
        if part is None:
            raise StoreCorrupt(f"a row of the store is incomplete: part {number} of {count} is missing")
        value += part
    return bytes(value)


def clear_long(tx: Tx, more: Space, key: bytes) -> None:
    """Remove a key and its value."""
    tx.clear(key, quiet=True)
    tx.clear_range(*more.under(key))


def clear_long_range(tx: Tx, more: Space, lo: bytes, hi: bytes) -> None:
    """Remove all keys from `lo` up to, but not including, `hi`, and their values."""
    tx.clear_range(lo, hi)
    tx.clear_range(more[lo], more[hi])
