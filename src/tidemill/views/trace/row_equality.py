"""Row equality: which values are equal, for every Arrow type that Spark produces.

`code_rows` encodes columns as *codes*: arrays of uint64. Two rows are equal if and only if all their
codes are equal. Codes are not hashes. A string's code is its index in a dictionary. A nested value's code is
the index of its list of element codes. Codes are comparable within one call only, so rows to compare are
concatenated first.

Each row also has a `mix`, a hash of its content that does not depend on the other rows of the call. Sorting
by the mix puts equal rows together, in the same order on every replay. The mix may collide; `group_equal`
detects collisions. The mix is computed from one number per column (the value itself if it is a number). Each
number is multiplied by a factor for its column position; the sum is hashed once per row.

NULL equals NULL, and NaN equals NaN. 0.0 and -0.0 are equal in Spark's keys (`zeros="equal"`), but differ in
stored rows (`zeros="differ"`), so that stored values keep their sign. The order of a map's entries is
ignored.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.errors import TypeRefused
from tidemill.views.trace.order import I64, ascending, take

U64 = np.ndarray[Any, np.dtype[np.uint64]]
Zeros = Literal["equal", "differ"]

SALTS = (0x7469_6465, 0x6D69_6C6C)
"""The salts of the two halves of a row's identity, H128, in Spark and in kernels."""

_K1 = np.uint64(0x9E3779B97F4A7C15)
_K2 = np.uint64(0xBF58476D1CE4E5B9)
_NULL = np.uint64(0x6C62272E07BB0142)
_SEED = np.uint64(0xD6E8FEB86659FD93)
_BLOCK = 16_384  # rows at once: their codes stay in a core's cache between two operations
_LONG_BYTES = 64  # for longer texts, hashlib is faster than a loop over eight bytes of all texts at a time


class CodedRows(NamedTuple):
    """Codes and mix of one or several columns; see above."""

    codes: list[U64]
    mix: U64

    def take(self, rows: I64) -> "CodedRows":
        return CodedRows([take(code, rows) for code in self.codes], take(self.mix, rows))


def code_column(array: pa.Array, zeros: Zeros = "equal") -> CodedRows:
    """Return codes and mix of one column."""
    return code_rows([array], len(array), zeros)


def code_rows(columns: Sequence[pa.Array], rows: int, zeros: Zeros = "equal") -> CodedRows:
    """Return codes and mix of rows with several columns; without columns, all rows are equal."""
    coded = [_column(column, zeros) for column in columns]
    return CodedRows(
        [code for each in coded for code in each.codes], _mixed([each.mix for each in coded], rows)
    )


def _column(array: pa.Array, zeros: Zeros) -> CodedRows:
    """Return the codes of one column, and for each row the number from which the mix is computed."""
    coded = _values(array, zeros)
    if array.null_count == 0 or pat.is_null(array.type):
        return coded
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
    codes = [np.where(valid, code, np.uint64(0)) for code in coded.codes]
    return CodedRows([*codes, valid.astype(np.uint64)], np.where(valid, coded.mix, _NULL))


def group_equal(coded: CodedRows, first: I64 | None = None) -> tuple[I64, I64]:
    """Return an order that puts equal rows together, and where each group starts in that order.

    The order is by `first`, then by mix. Rows are equal if `first` and all codes are equal. If the mix of
    different rows collides, rows are sorted by their codes.
    """
    count = len(coded.mix)
    if count == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    for sort in (_sort_packed, _sort_by_mix, _sort_by_codes):
        order, changes = sort(coded, first)
        fresh = np.ones(count, bool)
        fresh[1:] = changes
        inner = _changes(coded.codes, order)
        if not np.any(inner & ~fresh[1:]):
            break  # otherwise different rows collided: sort by more keys
    return order, np.flatnonzero(fresh)


def equal_rows(left: Sequence[pa.Array], right: Sequence[pa.Array], zeros: Zeros = "equal") -> Any:
    """Return for each row whether all columns are equal on both sides, as a numpy array of bool."""
    verdict: Any = None
    for left_column, right_column in zip(left, right, strict=True):
        if left_column.type != right_column.type:
            raise TypeRefused(
                f"cannot compare {left_column.type} with {right_column.type}",
                hint="cast both to their common type",
            )
        agree = (
            _equal_plain(left_column, right_column)
            if is_plain(left_column.type)
            else _equal_coded(left_column, right_column, zeros)
        )
        verdict = agree if verdict is None else verdict & agree
    if verdict is None:
        raise TypeRefused("there are no columns to compare", hint="pass at least one column")
    return verdict


def value_ids(coded: CodedRows) -> U64:
    """Return a number for each row, equal for equal values."""
    if len(coded.codes) == 1:
        return coded.codes[0]
    order, starts = group_equal(coded)
    ids = np.empty(len(coded.mix), np.uint64)
    ids[order] = np.repeat(np.arange(len(starts), dtype=np.uint64), np.diff(np.append(starts, len(order))))
    return ids


# --- sorting


def _sort_packed(coded: CodedRows, first: I64 | None) -> tuple[I64, Any]:
    """Sort by one number: the rank of `first`, then the upper half of the mix."""
    if first is None:
        return _sort_by_mix(coded, first)
    order = ascending(first)
    change = _changes([first], order)
    if change.all():
        return order, change
    group = np.zeros(len(order), np.uint64)
    np.cumsum(change, out=group[1:])
    packed = (group << np.uint64(32)) | (coded.mix[order] >> np.uint64(32))
    within = np.argsort(packed, kind="stable")  # only rows with an equal `first` are unsorted
    return order[within], _changes([packed], within)


def _sort_by_mix(coded: CodedRows, first: I64 | None) -> tuple[I64, Any]:
    order = ascending(coded.mix) if first is None else np.lexsort((coded.mix, first))
    return order, _changes([coded.mix] if first is None else [first, coded.mix], order)


def _sort_by_codes(coded: CodedRows, first: I64 | None) -> tuple[I64, Any]:
    keys = [coded.mix] if first is None else [first, coded.mix]
    order = np.lexsort([*reversed(coded.codes), *reversed(keys)])
    return order, _changes([*keys, *coded.codes], order)


def _changes(keys: Sequence[Any], order: I64) -> Any:
    """Return where a row differs from the row before."""
    change = np.zeros(len(order) - 1, bool)
    for key in keys:
        sorted_key = take(key, order)
        change |= sorted_key[1:] != sorted_key[:-1]
    return change


# --- one column


def _values(array: pa.Array, zeros: Zeros) -> CodedRows:
    """Return codes and mix as if nothing were NULL; the caller overwrites the values of NULLs."""
    kind = array.type
    if pat.is_null(kind):
        return CodedRows([], np.full(len(array), _NULL))
    for matches, encode in _KINDS:
        if matches(kind):
            return encode(array, zeros)
    raise TypeRefused(f"cannot compare values of type {kind}", hint="omit the column, or cast it")


def _single(code: U64) -> CodedRows:
    return CodedRows([code], code)


def _bools(array: pa.Array, _zeros: Zeros) -> CodedRows:
    return _single(pc.fill_null(array, fill_value=False).cast(pa.uint8()).to_numpy().astype(np.uint64))


def _floats(array: pa.Array, zeros: Zeros) -> CodedRows:
    width = array.type.bit_width
    values = fixed_width_values(array, np.dtype(f"<f{width // 8}"))
    if zeros == "equal":
        values = values + values.dtype.type(0)  # -0.0 + 0.0 is 0.0; no other value changes
    bits = values.view(f"<u{width // 8}").astype(np.uint64)
    bits[np.isnan(values)] = np.uint64(2**64 - 1)
    return _single(bits)


def _narrow(array: pa.Array, _zeros: Zeros) -> CodedRows:
    values = fixed_width_values(array, np.dtype(f"<i{array.type.bit_width // 8}"))
    return _single(values.astype(np.int64).view(np.uint64))


def _wide(array: pa.Array, _zeros: Zeros) -> CodedRows:
    parts = array.type.bit_width // 64
    limbs = fixed_width_values(array, np.dtype((np.uint64, (parts,))))
    codes = [np.ascontiguousarray(limbs[:, part]) for part in range(parts)]
    return CodedRows(codes, _mixed(codes, len(array)))


def _texts(array: pa.Array, _zeros: Zeros) -> CodedRows:
    kind = array.type
    if pat.is_fixed_size_binary(kind) or pat.is_binary_view(kind):
        array = array.cast(pa.large_binary())
    elif pat.is_string_view(kind):
        array = array.cast(pa.large_string())
    encoded = array.dictionary_encode()
    ids = pc.fill_null(encoded.indices, pa.scalar(0, encoded.indices.type)).to_numpy().astype(np.int64)
    mixes = _text_mix(encoded.dictionary)
    return CodedRows([ids.view(np.uint64)], take(mixes, ids) if len(mixes) else np.full(len(ids), _NULL))


def _structs(array: pa.Array, zeros: Zeros) -> CodedRows:
    fields = [array.field(n) for n in range(array.type.num_fields)]
    return code_rows(fields, len(array), zeros)


def _lists(array: pa.Array, zeros: Zeros) -> CodedRows:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
    elements = code_column(array.flatten(), zeros)
    ends = np.cumsum(lengths)
    place = np.arange(len(elements.mix)) - np.repeat(ends - lengths, lengths)
    mix = _sums(_mix2(elements.mix, place.astype(np.uint64)), ends)
    return CodedRows([_sequences(value_ids(elements)[:, None], ends)], _mix2(mix, lengths.view(np.uint64)))


def _maps(array: pa.Array, zeros: Zeros) -> CodedRows:
    """Encode maps as lists of entries, sorted by the code of the key."""
    entries = array.cast(
        pa.list_(pa.struct([pa.field("k", array.type.key_type), pa.field("v", array.type.item_type)]))
    )
    lengths = pc.fill_null(pc.list_value_length(entries), 0).to_numpy().astype(np.int64)
    flat = entries.flatten()
    keys, items = code_column(flat.field(0), zeros), code_column(flat.field(1), zeros)
    ends = np.cumsum(lengths)
    row = np.repeat(np.arange(len(array)), lengths)
    pairs = np.stack([value_ids(keys), value_ids(items)], axis=1)
    order = np.lexsort((pairs[:, 0], row))
    mix = _sums(_mix2(keys.mix, items.mix), ends)
    return CodedRows([_sequences(pairs[order], ends)], _mix2(mix, lengths.view(np.uint64)))


def _encoded(array: pa.Array, zeros: Zeros) -> CodedRows:
    """Encode a dictionary array like its values, each distinct value once."""
    if array.dictionary.null_count or len(array.dictionary) == 0:
        return _column(array.dictionary_decode(), zeros)
    ids = pc.fill_null(array.indices, pa.scalar(0, array.indices.type)).to_numpy()
    return _column(array.dictionary, zeros).take(ids)


def _stored(array: pa.Array, zeros: Zeros) -> CodedRows:
    return code_column(array.storage, zeros)


def is_plain(kind: pa.DataType) -> bool:
    """Return whether Arrow's comparison is exact for the type: no NaN, no signed zeros, nothing nested."""
    return any(test(kind) for test in (pat.is_boolean, pat.is_integer, pat.is_decimal, _is_time, _is_text))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pat.is_temporal(kind)) and not pat.is_interval(kind)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pat.is_string, pat.is_large_string, pat.is_binary, pat.is_large_binary, pat.is_fixed_size_binary)
    return any(test(kind) for test in (*tests, pat.is_string_view, pat.is_binary_view))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind))


_Encoder = Callable[[pa.Array, Zeros], CodedRows]
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], _Encoder], ...] = (
    (pat.is_boolean, _bools),
    (pat.is_floating, _floats),
    (lambda kind: bool(pat.is_decimal(kind) or pat.is_interval(kind)) and kind.bit_width > 64, _wide),
    (lambda kind: bool(pat.is_integer(kind) or pat.is_temporal(kind) or pat.is_decimal(kind)), _narrow),
    (_is_text, _texts),
    (pat.is_struct, _structs),
    (pat.is_map, _maps),
    (_is_list, _lists),
    (pat.is_dictionary, _encoded),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), _stored),
)


# --- comparing and hashing values


def _equal_plain(left: pa.Array, right: pa.Array) -> Any:
    if left.null_count == 0 and right.null_count == 0 and (number := _as_number(left.type)) is not None:
        # comparing numbers instead of bitmaps takes a third of the time
        return fixed_width_values(left, number) == fixed_width_values(right, number)
    equal = pc.equal(left, right)
    if equal.null_count == 0:
        return equal.to_numpy(zero_copy_only=False)
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.if_else(pc.is_valid(equal), equal, both).to_numpy(zero_copy_only=False)


def _as_number(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the number type with the same memory layout and equality as a type; None if there is none."""
    if not (pat.is_integer(kind) or _is_time(kind)):
        return None
    return np.dtype(f"<i{kind.bit_width // 8}")


def _equal_coded(left: pa.Array, right: pa.Array, zeros: Zeros) -> Any:
    coded = code_column(pa.concat_arrays([left, right]), zeros)
    half = len(left)
    return reduce(np.logical_and, (code[:half] == code[half:] for code in coded.codes), np.ones(half, bool))


def fixed_width_values(array: pa.Array, dtype: np.dtype[Any]) -> Any:
    """Return a view of the memory of a fixed-width array, including NULLs; it must not be modified."""
    data = array.buffers()[1]
    if data is None:  # no rows, or only NULLs
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype, count=len(array), offset=array.offset * dtype.itemsize)


def _sequences(ids: U64, ends: I64) -> U64:
    """Return a number for each row's sequence of ids: its place in a dictionary of the bytes."""
    width = ids.shape[1] * 8
    offsets = np.concatenate([np.zeros(1, np.int64), ends * width])
    packed = np.ascontiguousarray(ids)
    array = pa.Array.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(packed.tobytes())]
    )
    numbers: U64 = array.dictionary_encode().indices.to_numpy().astype(np.uint64)
    return numbers


def _sums(values: U64, ends: I64) -> U64:
    """Return the sum of each row's values, modulo 2^64."""
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
    total: U64 = running[ends] - running[begins]
    return total


def _text_mix(texts: pa.Array) -> U64:
    """Return a hash of each text's bytes, computed for eight bytes of all texts at a time."""
    binary = texts.cast(pa.large_binary())
    _, offsets_buffer, data = binary.buffers()
    if len(binary) == 0 or offsets_buffer is None:
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(offsets_buffer, np.int64)[binary.offset : binary.offset + len(binary) + 1]
    lengths = np.diff(offsets)
    mix = _mix2(np.full(len(binary), _SEED), lengths.view(np.uint64))
    if data is None or data.size == 0:
        return mix
    padded = np.concatenate([np.frombuffer(data, np.uint8)[: offsets[-1]], np.zeros(8, np.uint8)])
    windows = np.ndarray((len(padded) - 7,), np.dtype("<u8"), buffer=padded, strides=(1,))
    short = lengths <= _LONG_BYTES
    for place in range(0, int(lengths[short].max(initial=0)), 8):
        rows = np.flatnonzero(short & (lengths > place))
        left = np.minimum(lengths[rows] - place, 8)
        mask: U64 = np.where(
            left == 8, np.uint64(2**64 - 1), (np.uint64(1) << (left * 8).astype(np.uint64)) - np.uint64(1)
        )
        mix[rows] = _mix2(mix[rows], windows[offsets[rows] + place] & mask)
    for row in np.flatnonzero(~short):
        body = padded[offsets[row] : offsets[row + 1]].tobytes()
        mix[row] = int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little")
    return mix


def _mixed(numbers: Sequence[U64], rows: int) -> U64:
    """Combine each row's numbers into one number; every bit of the result depends on all of them.

    The upper half of each number is folded into the lower half first: doubles often differ only in their
    upper half, which would not affect the low bits of a product.
    """
    mix = np.empty(rows, np.uint64)
    for first in range(0, rows, _BLOCK):
        block = slice(first, first + _BLOCK)
        total = mix[block]
        total.fill(_SEED)
        for place, number in enumerate(numbers):
            part = number[block] >> np.uint64(32)
            part ^= number[block]
            part *= _factor(place)
            total += part
        total ^= total >> np.uint64(32)
        total *= _K2
        total ^= total >> np.uint64(29)
        total *= _K1
        total ^= total >> np.uint64(32)
    return mix


@cache
def _factor(place: int) -> np.uint64:
    """Return a pseudo-random odd number for a column at this place."""
    number = (0x9E3779B97F4A7C15 * (place + 1)) % 2**64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) % 2**64
    return np.uint64((number ^ (number >> 31)) | 1)


def _mix2(left: U64, right: U64) -> U64:
    return _mixed([left, right], len(left))
