"""Row equality: what makes two values the same, for every Arrow type that Spark produces.

`code_rows` turns columns into *words*: arrays of uint64. Two rows hold the same values exactly if all their
words are equal. Nothing is decided by a hash: a text is coded as its number in a dictionary, a nested value
as the number of its sequence of element numbers. Words can be compared within one call only, so rows to
compare are concatenated first.

Besides the words there is a `mix`, a hash of the content that does not depend on the other rows of the call.
Sorting by it puts equal rows together, in the same order on every replay. It may collide; `group_equal`
detects that. It sums one number for each column (the value itself where it is a number) times a factor for
the column's place, and scrambles the sum once for the whole row.

NULL is the same as NULL, and NaN as NaN. 0.0 and -0.0 are the same in Spark's keys (`zeros="equal"`), but not
in stored rows (`zeros="differ"`): bits that a user can see are never merged away. The order of a map's
entries does not count.
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
from tidemill.views.trace.order import I64, ascending, taken

U64 = np.ndarray[Any, np.dtype[np.uint64]]
Zeros = Literal["equal", "differ"]

SALTS = (0x7469_6465, 0x6D69_6C6C)
"""Of the two halves of a row's identity, H128, whoever computes it."""

_K1 = np.uint64(0x9E3779B97F4A7C15)
_K2 = np.uint64(0xBF58476D1CE4E5B9)
_NULL = np.uint64(0x6C62272E07BB0142)
_SEED = np.uint64(0xD6E8FEB86659FD93)
_BLOCK = 16_384  # rows whose words stay in a core's cache between two operations on them
_LONG = 64  # bytes of a text from which on hashlib is faster than a loop over words of all texts


class CodedRows(NamedTuple):
    """Words and mix of one or several columns; see above."""

    words: list[U64]
    mix: U64

    def take(self, rows: I64) -> "CodedRows":
        return CodedRows([taken(word, rows) for word in self.words], taken(self.mix, rows))


def code_column(array: pa.Array, zeros: Zeros = "equal") -> CodedRows:
    """Words and mix of one column."""
    return code_rows([array], len(array), zeros)


def code_rows(columns: Sequence[pa.Array], rows: int, zeros: Zeros = "equal") -> CodedRows:
    """Words and mix of rows of several columns; with no columns all rows are the same."""
    coded = [_column(column, zeros) for column in columns]
    return CodedRows(
        [word for each in coded for word in each.words], _mixed([each.mix for each in coded], rows)
    )


def _column(array: pa.Array, zeros: Zeros) -> CodedRows:
    """Words of one column, and a number for its content that is not scrambled yet."""
    coded = _values(array, zeros)
    if array.null_count == 0 or pat.is_null(array.type):
        return coded
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
    words = [np.where(valid, word, np.uint64(0)) for word in coded.words]
    return CodedRows([*words, valid.astype(np.uint64)], np.where(valid, coded.mix, _NULL))


def group_equal(coded: CodedRows, first: I64 | None = None) -> tuple[I64, I64]:
    """An order that puts equal rows together, and where in it each group begins.

    The order is by `first`, then by mix. Rows count as equal when `first` and all words are: where the mix of
    different rows collides, rows are sorted by the words themselves.
    """
    count = len(coded.mix)
    if count == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    for attempt in (_packed, _by_mix, _by_words):
        order, sorted_by = attempt(coded, first)
        fresh = np.ones(count, bool)
        fresh[1:] = sorted_by
        inner = _changes(coded.words, order)
        if not np.any(inner & ~fresh[1:]):
            break  # else different rows were taken for neighbours: sort by more
    return order, np.flatnonzero(fresh)


def equal_rows(left: Sequence[pa.Array], right: Sequence[pa.Array], zeros: Zeros = "equal") -> Any:
    """For each row whether all columns hold the same on both sides; a numpy array of bool."""
    verdict: Any = None
    for one, other in zip(left, right, strict=True):
        if one.type != other.type:
            raise TypeRefused(
                f"cannot compare {one.type} with {other.type}", hint="cast both to their common type"
            )
        agree = _leaf_same(one, other) if is_plain(one.type) else _coded_same(one, other, zeros)
        verdict = agree if verdict is None else verdict & agree
    if verdict is None:
        raise TypeRefused("nothing to compare: no columns", hint="rows without columns are all the same")
    return verdict


def value_ids(coded: CodedRows) -> U64:
    """A number for each row, the same for the same value."""
    if len(coded.words) == 1:
        return coded.words[0]
    order, starts = group_equal(coded)
    ids = np.empty(len(coded.mix), np.uint64)
    ids[order] = np.repeat(np.arange(len(starts), dtype=np.uint64), np.diff(np.append(starts, len(order))))
    return ids


# --- sorting


def _packed(coded: CodedRows, first: I64 | None) -> tuple[I64, Any]:
    """By one number: which `first`, then the upper half of the mix."""
    if first is None:
        return _by_mix(coded, first)
    order = ascending(first)
    change = _changes([first], order)
    if change.all():
        return order, change
    group = np.zeros(len(order), np.uint64)
    np.cumsum(change, out=group[1:])
    packed = (group << np.uint64(32)) | (coded.mix[order] >> np.uint64(32))
    within = np.argsort(packed, kind="stable")  # it is sorted but for the rows of one `first`
    return order[within], _changes([packed], within)


def _by_mix(coded: CodedRows, first: I64 | None) -> tuple[I64, Any]:
    order = ascending(coded.mix) if first is None else np.lexsort((coded.mix, first))
    return order, _changes([coded.mix] if first is None else [first, coded.mix], order)


def _by_words(coded: CodedRows, first: I64 | None) -> tuple[I64, Any]:
    keys = [coded.mix] if first is None else [first, coded.mix]
    order = np.lexsort([*reversed(coded.words), *reversed(keys)])
    return order, _changes([*keys, *coded.words], order)


def _changes(words: Sequence[Any], order: I64) -> Any:
    """Where a row differs from the one before it."""
    change = np.zeros(len(order) - 1, bool)
    for word in words:
        sorted_word = taken(word, order)
        change |= sorted_word[1:] != sorted_word[:-1]
    return change


# --- one column


def _values(array: pa.Array, zeros: Zeros) -> CodedRows:
    """Words and mix as if nothing were NULL; the caller overwrites the values of NULLs."""
    kind = array.type
    if pat.is_null(kind):
        return CodedRows([], np.full(len(array), _NULL))
    for known, handle in _KINDS:
        if known(kind):
            return handle(array, zeros)
    raise TypeRefused(f"no comparison for values of type {kind}", hint="leave the column out, or cast it")


def _single(word: U64) -> CodedRows:
    return CodedRows([word], word)


def _bools(array: pa.Array, _zeros: Zeros) -> CodedRows:
    return _single(pc.fill_null(array, fill_value=False).cast(pa.uint8()).to_numpy().astype(np.uint64))


def _floats(array: pa.Array, zeros: Zeros) -> CodedRows:
    width = array.type.bit_width
    values = fixed_width_values(array, np.dtype(f"<f{width // 8}"))
    if zeros == "equal":
        values = values + values.dtype.type(0)  # -0.0 + 0.0 is 0.0, and nothing else changes
    bits = values.view(f"<u{width // 8}").astype(np.uint64)
    bits[np.isnan(values)] = np.uint64(2**64 - 1)
    return _single(bits)


def _narrow(array: pa.Array, _zeros: Zeros) -> CodedRows:
    values = fixed_width_values(array, np.dtype(f"<i{array.type.bit_width // 8}"))
    return _single(values.astype(np.int64).view(np.uint64))


def _wide(array: pa.Array, _zeros: Zeros) -> CodedRows:
    parts = array.type.bit_width // 64
    limbs = fixed_width_values(array, np.dtype((np.uint64, (parts,))))
    words = [np.ascontiguousarray(limbs[:, part]) for part in range(parts)]
    return CodedRows(words, _mixed(words, len(array)))


def _texts(array: pa.Array, _zeros: Zeros) -> CodedRows:
    kind = array.type
    if pat.is_fixed_size_binary(kind) or pat.is_binary_view(kind):
        array = array.cast(pa.large_binary())
    elif pat.is_string_view(kind):
        array = array.cast(pa.large_string())
    encoded = array.dictionary_encode()
    ids = pc.fill_null(encoded.indices, pa.scalar(0, encoded.indices.type)).to_numpy().astype(np.int64)
    mixes = _text_mix(encoded.dictionary)
    return CodedRows([ids.view(np.uint64)], taken(mixes, ids) if len(mixes) else np.full(len(ids), _NULL))


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
    """As lists of entries that are sorted by the number of their key."""
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
    """As its values would be, each coded once."""
    if array.dictionary.null_count or len(array.dictionary) == 0:
        return _column(array.dictionary_decode(), zeros)
    ids = pc.fill_null(array.indices, pa.scalar(0, array.indices.type)).to_numpy()
    return _column(array.dictionary, zeros).take(ids)


def _stored(array: pa.Array, zeros: Zeros) -> CodedRows:
    return code_column(array.storage, zeros)


def is_plain(kind: pa.DataType) -> bool:
    """Whether Arrow's own comparison is exact for the type: no NaN, no zeros with a sign, nothing nested."""
    return any(test(kind) for test in (pat.is_boolean, pat.is_integer, pat.is_decimal, _is_time, _is_text))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pat.is_temporal(kind)) and not pat.is_interval(kind)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pat.is_string, pat.is_large_string, pat.is_binary, pat.is_large_binary, pat.is_fixed_size_binary)
    return any(test(kind) for test in (*tests, pat.is_string_view, pat.is_binary_view))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind))


_Handler = Callable[[pa.Array, Zeros], CodedRows]
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], _Handler], ...] = (
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


# --- the smallest pieces


def _leaf_same(one: pa.Array, other: pa.Array) -> Any:
    if one.null_count == 0 and other.null_count == 0 and (number := _as_number(one.type)) is not None:
        return fixed_width_values(one, number) == fixed_width_values(
            other, number
        )  # no bitmaps: a third of the time
    equal = pc.equal(one, other)
    if equal.null_count == 0:
        return equal.to_numpy(zero_copy_only=False)
    both = pc.and_(pc.is_null(one), pc.is_null(other))
    return pc.if_else(pc.is_valid(equal), equal, both).to_numpy(zero_copy_only=False)


def _as_number(kind: pa.DataType) -> np.dtype[Any] | None:
    """The numbers that values of a plain type lie in memory as, if they are the same when these are."""
    if not (pat.is_integer(kind) or _is_time(kind)):
        return None
    return np.dtype(f"<i{kind.bit_width // 8}")


def _coded_same(one: pa.Array, other: pa.Array, zeros: Zeros) -> Any:
    coded = code_column(pa.concat_arrays([one, other]), zeros)
    half = len(one)
    return reduce(np.logical_and, (word[:half] == word[half:] for word in coded.words), np.ones(half, bool))


def fixed_width_values(array: pa.Array, dtype: np.dtype[Any]) -> Any:
    """The values of a fixed-width array as they lie in memory, NULLs too; not to be written to."""
    data = array.buffers()[1]
    if data is None:  # no rows, or all of them NULL
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype, count=len(array), offset=array.offset * dtype.itemsize)


def _sequences(ids: U64, ends: I64) -> U64:
    """The number of each row's sequence of ids, by way of a dictionary of their bytes."""
    width = ids.shape[1] * 8
    offsets = np.concatenate([np.zeros(1, np.int64), ends * width])
    packed = np.ascontiguousarray(ids)
    array = pa.Array.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(packed.tobytes())]
    )
    numbers: U64 = array.dictionary_encode().indices.to_numpy().astype(np.uint64)
    return numbers


def _sums(values: U64, ends: I64) -> U64:
    """The sum of each row's values, modulo 2^64."""
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
    total: U64 = running[ends] - running[begins]
    return total


def _text_mix(texts: pa.Array) -> U64:
    """A hash of each text's bytes: words of eight bytes, one place of all texts after the other."""
    octets = texts.cast(pa.large_binary())
    _, offsets_buffer, data = octets.buffers()
    if len(octets) == 0 or offsets_buffer is None:
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(offsets_buffer, np.int64)[octets.offset : octets.offset + len(octets) + 1]
    lengths = np.diff(offsets)
    mix = _mix2(np.full(len(octets), _SEED), lengths.view(np.uint64))
    if data is None or data.size == 0:
        return mix
    padded = np.concatenate([np.frombuffer(data, np.uint8)[: offsets[-1]], np.zeros(8, np.uint8)])
    windows = np.ndarray((len(padded) - 7,), np.dtype("<u8"), buffer=padded, strides=(1,))
    short = lengths <= _LONG
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
    """One number for each row's numbers, of which every bit depends on all of theirs.

    The upper half of each number is folded into the lower one first: that of doubles is all that differs, and
    a product's low bits would not know of it.
    """
    mix = np.empty(rows, np.uint64)
    for first in range(0, rows, _BLOCK):
        here = slice(first, first + _BLOCK)
        total = mix[here]
        total.fill(_SEED)
        for place, number in enumerate(numbers):
            part = number[here] >> np.uint64(32)
            part ^= number[here]
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
    """An odd number with no pattern, for a column at this place."""
    number = (0x9E3779B97F4A7C15 * (place + 1)) % 2**64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) % 2**64
    return np.uint64((number ^ (number >> 31)) | 1)


def _mix2(one: U64, other: U64) -> U64:
    return _mixed([one, other], len(one))
