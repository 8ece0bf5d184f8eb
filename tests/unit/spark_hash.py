"""Spark's `xxhash64` in Python: what tests without Spark hash keys and rows with."""

import datetime
import decimal
import struct
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

M = 2**64 - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SEED = 42


def rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & M


def finish(h: int) -> int:
    h = (h ^ (h >> 33)) * P2 & M
    h = (h ^ (h >> 29)) * P3 & M
    return h ^ (h >> 32)


def of_long(value: int, seed: int) -> int:
    h = (seed + P5 + 8) & M
    h ^= rotate((value & M) * P2 & M, 31) * P1 & M
    return finish((rotate(h, 27) * P1 + P4) & M)


def of_int(value: int, seed: int) -> int:
    h = (seed + P5 + 4) & M
    h ^= (value & 0xFFFFFFFF) * P1 & M
    return finish((rotate(h, 23) * P2 + P3) & M)


def of_bytes(data: bytes, seed: int) -> int:
    size, at = len(data), 0
    if size >= 32:
        lanes = [(seed + P1 + P2) & M, (seed + P2) & M, seed, (seed - P1) & M]
        while at <= size - 32:
            for n, word in enumerate(struct.unpack_from("<4Q", data, at)):
                lanes[n] = rotate((lanes[n] + word * P2) & M, 31) * P1 & M
            at += 32
        h = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & M
        for lane in lanes:
            h = ((h ^ (rotate(lane * P2 & M, 31) * P1 & M)) * P1 + P4) & M
    else:
        h = (seed + P5) & M
    h = (h + size) & M
    while at + 8 <= size:
        h ^= rotate(struct.unpack_from("<Q", data, at)[0] * P2 & M, 31) * P1 & M
        h = (rotate(h, 27) * P1 + P4) & M
        at += 8
    if at + 4 <= size:
        h ^= struct.unpack_from("<I", data, at)[0] * P1 & M
        h = (rotate(h, 23) * P2 + P3) & M
        at += 4
    for octet in data[at:]:
        h = rotate(h ^ (octet * P5 & M), 11) * P1 & M
    return finish(h)


def of_value(value: object, kind: pa.DataType, seed: int) -> int:
    if value is None:
        return seed
    if isinstance(value, bool) or kind in {pa.int8(), pa.int16(), pa.int32()}:
        return of_int(int(value), seed)  # type: ignore[call-overload]
    if isinstance(value, int):
        return of_long(value, seed)
    if isinstance(value, float):
        number = 0.0 if value == 0 else value
        bits = 0x7FF8000000000000 if number != number else struct.unpack("<q", struct.pack("<d", number))[0]
        return of_long(bits, seed)
    if isinstance(value, str):
        return of_bytes(value.encode(), seed)
    if isinstance(value, decimal.Decimal):
        unscaled = int(value.scaleb(kind.scale))
        if kind.precision <= 18:
            return of_long(unscaled, seed)
        size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return of_bytes(unscaled.to_bytes(size, "big", signed=True), seed)
    if isinstance(value, datetime.date):
        return of_int((value - datetime.date(1970, 1, 1)).days, seed)
    if isinstance(value, list):
        for each in value:
            seed = of_value(each, kind.value_type, seed)
        return seed
    raise AssertionError(f"no hash for {kind}")


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def hashes(table: pa.Table, names: Iterable[str], salt: int | None = None) -> pa.Array:
    """`xxhash64([salt,] a, isnull(a), b, isnull(b), ...)` of each row."""
    names = list(names)
    start = SEED if salt is None else of_long(salt, SEED)
    columns = [table[name].to_pylist() for name in names]
    kinds = [table.schema.field(name).type for name in names]
    values = []
    for row in zip(*columns, strict=True) if names else [()] * table.num_rows:
        h = start
        for value, kind in zip(row, kinds, strict=True):
            h = of_int(int(value is None), of_value(value, kind, h))
        values.append(signed(h))
    return pa.array(np.array(values, np.int64))


def hashed(table: pa.Table, names: Iterable[str], mask: int = M) -> pa.Table:
    """The table with `_h` in front; a mask makes the hash weak, so that different keys share it."""
    weak = (hashes(table, names).to_numpy().view(np.uint64) & np.uint64(mask)).view(np.int64)
    return table.add_column(0, "_h", pa.array(weak))
