"""Row identity, H128, as Spark computes it: two `xxhash64` values with different salts (DBSP-42).

Spark and kernels compute the same identity for a row of a view, so their digests agree. Kernels support types
whose values are numbers or bytes (`identifiable`). For other types, Spark computes the identity
(`views.spark.weighted_rows.identity`, which defines it).

The columns are hashed in order: the hash so far is the seed for the next value, and NULL leaves the hash
unchanged. A flag for NULL is hashed before each column.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidemill.views.trace.row_equality import SALTS

SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_WORD, _HALF, _STRIPE = 8, 4, 32
_ROTATIONS = (1, 7, 12, 18)
_LONG_DIGITS = 18  # up to this precision, Spark hashes a decimal as one 64-bit number

Words = np.ndarray[Any, np.dtype[np.uint64]]


def identifiable(kind: pa.DataType) -> bool:
    """Return whether kernels can compute the identity of rows with a column of this type."""
    return bool(
        pat.is_boolean(kind)
        or pat.is_signed_integer(kind)
        or pat.is_date32(kind)
        or (pat.is_timestamp(kind) and kind.unit == "us")
        or pat.is_float32(kind)
        or pat.is_float64(kind)
        or pat.is_string(kind)
        or pat.is_binary(kind)
        or pat.is_decimal128(kind)
    )


def row_identity(columns: Sequence[pa.ChunkedArray]) -> tuple[pa.Array, pa.Array]:
    """Return both halves of H128 of rows with these columns, which must all be `identifiable`."""
    arrays = [
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        for column in columns
    ]
    count = len(arrays[0])
    with np.errstate(over="ignore"):
        flags, values = [], []
        for array in arrays:
            null = array.is_null().to_numpy(zero_copy_only=False)
            flags.append(null)
            values.append(_Values(array))
        halves = []
        for salt in SALTS:
            state = _hash_ints(np.full(count, salt, np.uint64), np.full(count, SEED, np.uint64))
            for null, column_values in zip(flags, values, strict=True):
                state = _hash_ints(null.astype(np.uint64), state)
                hashed = column_values.hash(state)
                state = np.where(null, state, hashed) if null.any() else hashed
            halves.append(pa.array(state.view(np.int64)))
    return halves[0], halves[1]


class _Values:
    """The values of a column in the form that is hashed: bytes, 32-bit or 64-bit integers.

    The values of NULLs are undefined. `octets` is (all bytes, where each value starts, its length).
    """

    def __init__(self, array: pa.Array) -> None:
        kind = array.type
        self.octets: tuple[Any, Any, Any] | None = None
        self.ints: Words | None = None
        self.longs: Words | None = None
        if pat.is_string(kind) or pat.is_binary(kind):
            _, offsets, body = array.buffers()
            ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
            raw = np.frombuffer(body, np.uint8) if body is not None else np.zeros(0, np.uint8)
            self.octets = raw, ends[:-1].astype(np.int64), np.diff(ends).astype(np.int64)
        elif pat.is_floating(kind):
            self._floats(array)
        elif pat.is_decimal(kind):
            body = np.frombuffer(array.buffers()[1], np.uint64)
            pair = body[2 * array.offset : 2 * (array.offset + len(array))].reshape(-1, 2)
            if kind.precision <= _LONG_DIGITS:
                self.longs = pair[:, 0]
            else:
                self.octets = _shortest_bytes(pair)
        elif pat.is_boolean(kind):
            self.ints = array.cast(pa.uint64()).fill_null(0).to_numpy(zero_copy_only=False)
        elif kind.bit_width == 64:
            self.longs = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
        else:
            low = array.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
            self.ints = low.view(np.uint32).astype(np.uint64)

    def _floats(self, array: pa.Array) -> None:
        values = array.fill_null(0.0).to_numpy(zero_copy_only=False)
        values = values + values.dtype.type(0)  # -0.0 is 0.0
        values[np.isnan(values)] = np.nan
        if values.dtype == np.float32:
            self.ints = values.view(np.uint32).astype(np.uint64)
        else:
            self.longs = values.view(np.uint64)

    def hash(self, seed: Words) -> Words:
        if self.octets is not None:
            return _hash_bytes(*self.octets, seed)
        if self.longs is not None:
            return _hash_longs(self.longs, seed)
        assert self.ints is not None
        return _hash_ints(self.ints, seed)


def _shortest_bytes(pair: Any) -> tuple[Any, Any, Any]:
    """Return 128-bit integers, given as low and high word, in the fewest big-endian bytes, as Java does."""
    octets = np.ascontiguousarray(pair[:, ::-1]).astype(">u8").view(np.uint8).reshape(-1, 16)
    sign = np.where(octets[:, :1] >= 128, 255, 0)
    redundant = (octets[:, :-1] == sign) & ((octets[:, 1:] >= 128) == (sign == 255))
    skipped = np.logical_and.accumulate(redundant, axis=1).sum(axis=1)
    return octets.reshape(-1), 16 * np.arange(len(octets)) + skipped, 16 - skipped


# --- xxhash64 as in Spark; arithmetic is modulo 2^64


def _rotate(words: Words, by: int) -> Words:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))


def _finish(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(33))) * _P2
    words = (words ^ (words >> np.uint64(29))) * _P3
    return words ^ (words >> np.uint64(32))


def _hash_ints(values: Words, seed: Words) -> Words:
    return _finish(_add_half(seed + _P5 + np.uint64(4), values))


def _hash_longs(values: Words, seed: Words) -> Words:
    return _finish(_add_word(seed + _P5 + np.uint64(8), values))


def _round(lane: Words, word: Words) -> Words:
    return _rotate(lane + word * _P2, 31) * _P1


def _add_word(state: Words, word: Words) -> Words:
    return _rotate(state ^ _round(np.zeros_like(word), word), 27) * _P1 + _P4


def _add_half(state: Words, half: Words) -> Words:
    return _rotate(state ^ (half * _P1), 23) * _P2 + _P3


def _add_byte(state: Words, byte: Words) -> Words:
    return _rotate(state ^ (byte * _P5), 11) * _P1


def _hash_bytes(raw: Any, starts: Any, lengths: Any, seed: Words) -> Words:
    """Hash byte strings: stripes of four 64-bit words, then words, a half word, and single bytes."""
    padded = np.concatenate([raw, np.zeros(_WORD, np.uint8)])
    words = np.ndarray(len(padded) - _WORD + 1, np.dtype("<u8"), buffer=padded.data, strides=(1,))
    state = seed + _P5
    at = starts.copy()
    ends = starts + lengths
    long = np.flatnonzero(lengths >= _STRIPE)
    if len(long):
        long_seed = seed[long]
        lanes = [long_seed + _P1 + _P2, long_seed + _P2, long_seed.copy(), long_seed - _P1]
        while len(rows := np.flatnonzero(at[long] + _STRIPE <= ends[long])):
            stripes = at[long[rows]]
            for number in range(4):
                lanes[number][rows] = _round(lanes[number][rows], words[stripes + _WORD * number])
            at[long[rows]] += _STRIPE
        rotated = (_rotate(lane, by) for lane, by in zip(lanes, _ROTATIONS, strict=True))
        total = sum(rotated, np.zeros_like(long_seed))
        for lane in lanes:
            total = (total ^ _round(np.zeros_like(lane), lane)) * _P1 + _P4
        state[long] = total
    state = state + lengths.astype(np.uint64)
    while len(rows := np.flatnonzero(at + _WORD <= ends)):
        state[rows] = _add_word(state[rows], words[at[rows]])
        at[rows] += _WORD
    if len(rows := np.flatnonzero(at + _HALF <= ends)):
        state[rows] = _add_half(state[rows], words[at[rows]] & np.uint64(2**32 - 1))
        at[rows] += _HALF
    while len(rows := np.flatnonzero(at < ends)):
        state[rows] = _add_byte(state[rows], padded[at[rows]].astype(np.uint64))
        at[rows] += 1
    return _finish(state)
