"""The identity of rows, H128, as Spark computes it: two `xxhash64` with different salts (DBSP-42).

Spark and kernels give a row of a view the same identity, so digests agree. Kernels compute it for types whose
values are words or bytes (`identifiable`). For rows with a column of another type Spark computes it
(`views.spark.weighted_rows.identity`, which defines it).

`xxhash64` is folded over the columns: the hash so far is the seed of the next value, and NULL leaves it
unchanged. Each column is preceded by whether it is NULL.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidemill.views.trace.row_equality import SALTS

SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(one)
    for one in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_WORD, _HALF, _STRIPE = 8, 4, 32
_TURNS = (1, 7, 12, 18)
_LONG_DIGITS = 18  # of decimals that Spark hashes as one word

Words = np.ndarray[Any, np.dtype[np.uint64]]


def identifiable(kind: pa.DataType) -> bool:
    """Whether rows with a column of this type have their identity computed here."""
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
    """Both halves of H128 of rows with these columns, which are all `identifiable`."""
    arrays = [pa.concat_arrays(one.chunks) if one.num_chunks else pa.array([], one.type) for one in columns]
    count = len(arrays[0])
    with np.errstate(over="ignore"):
        flags, values = [], []
        for array in arrays:
            null = array.is_null().to_numpy(zero_copy_only=False)
            flags.append(null)
            values.append(_Values(array))
        halves = []
        for salt in SALTS:
            found = _of_int(np.full(count, salt, np.uint64), np.full(count, SEED, np.uint64))
            for null, one in zip(flags, values, strict=True):
                found = _of_int(null.astype(np.uint64), found)
                hashed = one.hashed(found)
                found = np.where(null, found, hashed) if null.any() else hashed
            halves.append(pa.array(found.view(np.int64)))
    return halves[0], halves[1]


class _Values:
    """The values of a column as they are hashed; what stands where there is NULL does not matter."""

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
                self.octets = _shortest(pair)
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

    def hashed(self, seed: Words) -> Words:
        if self.octets is not None:
            return _of_octets(*self.octets, seed)
        if self.longs is not None:
            return _of_long(self.longs, seed)
        assert self.ints is not None
        return _of_int(self.ints, seed)


def _shortest(pair: Any) -> tuple[Any, Any, Any]:
    """Integers of two words, the low one first, as the fewest octets that tell them, the highest first."""
    octets = np.ascontiguousarray(pair[:, ::-1]).astype(">u8").view(np.uint8).reshape(-1, 16)
    sign = np.where(octets[:, :1] >= 128, 255, 0)
    spare = (octets[:, :-1] == sign) & ((octets[:, 1:] >= 128) == (sign == 255))
    skipped = np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    return octets.reshape(-1), 16 * np.arange(len(octets)) + skipped, 16 - skipped


# --- xxhash64, as Spark has it; arithmetic is modulo 2^64


def _turned(words: Words, by: int) -> Words:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))


def _mixed(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(33))) * _P2
    words = (words ^ (words >> np.uint64(29))) * _P3
    return words ^ (words >> np.uint64(32))


def _of_int(values: Words, seed: Words) -> Words:
    return _mixed(_with_half(seed + _P5 + np.uint64(4), values))


def _of_long(values: Words, seed: Words) -> Words:
    return _mixed(_with_word(seed + _P5 + np.uint64(8), values))


def _round(lane: Words, word: Words) -> Words:
    return _turned(lane + word * _P2, 31) * _P1


def _with_word(found: Words, word: Words) -> Words:
    return _turned(found ^ _round(np.zeros_like(word), word), 27) * _P1 + _P4


def _with_half(found: Words, half: Words) -> Words:
    return _turned(found ^ (half * _P1), 23) * _P2 + _P3


def _with_octet(found: Words, octet: Words) -> Words:
    return _turned(found ^ (octet * _P5), 11) * _P1


def _of_octets(raw: Any, starts: Any, lengths: Any, seed: Words) -> Words:
    """Of strings: stripes of four words, then words, half a word, octets; each row as far as it goes."""
    padded = np.concatenate([raw, np.zeros(_WORD, np.uint8)])
    words = np.ndarray(len(padded) - _WORD + 1, np.dtype("<u8"), buffer=padded.data, strides=(1,))
    found = seed + _P5
    at = starts.copy()
    ends = starts + lengths
    long = np.flatnonzero(lengths >= _STRIPE)
    if len(long):
        mine = seed[long]
        lanes = [mine + _P1 + _P2, mine + _P2, mine.copy(), mine - _P1]
        while len(rows := np.flatnonzero(at[long] + _STRIPE <= ends[long])):
            here = at[long[rows]]
            for lane in range(4):
                lanes[lane][rows] = _round(lanes[lane][rows], words[here + _WORD * lane])
            at[long[rows]] += _STRIPE
        total = sum((_turned(lane, by) for lane, by in zip(lanes, _TURNS, strict=True)), np.zeros_like(mine))
        for one in lanes:
            total = (total ^ _round(np.zeros_like(one), one)) * _P1 + _P4
        found[long] = total
    found = found + lengths.astype(np.uint64)
    while len(rows := np.flatnonzero(at + _WORD <= ends)):
        found[rows] = _with_word(found[rows], words[at[rows]])
        at[rows] += _WORD
    if len(rows := np.flatnonzero(at + _HALF <= ends)):
        found[rows] = _with_half(found[rows], words[at[rows]] & np.uint64(2**32 - 1))
        at[rows] += _HALF
    while len(rows := np.flatnonzero(at < ends)):
        found[rows] = _with_octet(found[rows], padded[at[rows]].astype(np.uint64))
        at[rows] += 1
    return _mixed(found)
