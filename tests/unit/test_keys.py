import math
import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.store.keys import Part, Space, Versionstamp, after, pack, unpack

BIGGEST = 2**64 - 1

text = st.text(st.characters(exclude_categories=["Cs"])) | st.text("\x00a\xff", max_size=4)
raw = st.binary(max_size=6) | st.lists(st.sampled_from([b"\x00", b"\xff", b"a"]), max_size=4).map(b"".join)
versions = st.builds(Versionstamp, st.integers(0, 2**80 - 1), st.integers(0, 2**16 - 1))
numbers = st.integers(-BIGGEST, BIGGEST) | st.integers(-300, 300)
leaves = st.one_of(
    st.none(),
    raw,
    text,
    numbers,
    st.floats(allow_nan=False),
    st.booleans(),
    st.uuids(),
    versions,
)
parts: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6
)
tuples: st.SearchStrategy[tuple[Any, ...]] = st.lists(parts, max_size=4).map(tuple)


def rank(part: Part) -> tuple[int, Any]:
    """The order that keys.py promises, written down a second time: by type, then by value."""
    if part is None:
        return 0, 0
    if isinstance(part, bool):
        return 6, part
    if isinstance(part, bytes):
        return 1, part
    if isinstance(part, str):
        return 2, [ord(character) for character in part]
    if isinstance(part, Versionstamp):
        return 8, (part.commit, part.ordinal)
    if isinstance(part, tuple):
        return 3, order(part)
    if isinstance(part, int):
        return 4, part
    if isinstance(part, float):
        return 5, (part, math.copysign(1, part))  # -0.0 comes before 0.0
    return 7, part.bytes


def order(key: tuple[Part, ...]) -> list[tuple[int, Any]]:
    return [rank(part) for part in key]


def same(left: Any, right: Any) -> bool:
    """Equal in type as well: 1, 1.0 and True are three different parts."""
    return repr(left) == repr(right)


@pytest.mark.rule("STO-1")
@given(tuples)
@example((-0.0, 0.0, 1, 1.0, True, Versionstamp(1, 2), (1, 2), ((),), ((None,), None)))
def test_unpacking_reverses_packing(key: tuple[Part, ...]) -> None:
    assert same(unpack(pack(key)), key)


@pytest.mark.rule("STO-1")
@given(tuples, tuples)
@example(("a",), ("a\x00",))
@example((b"a", 1), (b"a\x00",))
@example(((),), ((None,),))
@example((((), None),), (((None,),),))
@example((-256,), (-255,))
@example((-0.0,), (0.0,))
def test_bytes_sort_as_the_tuples_do(first: tuple[Part, ...], second: tuple[Part, ...]) -> None:
    assert (pack(first) < pack(second)) == (order(first) < order(second))
    assert (pack(first) == pack(second)) == (order(first) == order(second))


@pytest.mark.rule("STO-1")
@given(tuples, parts, parts)
def test_a_common_beginning_does_not_change_the_order(
    begin: tuple[Part, ...], first: Part, second: Part
) -> None:
    assert (pack((*begin, first)) < pack((*begin, second))) == (rank(first) < rank(second))


@given(tuples, tuples)
def test_a_longer_tuple_packs_to_a_continuation(first: tuple[Part, ...], second: tuple[Part, ...]) -> None:
    assert pack((*first, *second)) == pack(first) + pack(second)


def test_integers_of_every_size_keep_their_order() -> None:
    edges = sorted({sign * (2**bits + step) for bits in range(64) for step in (-1, 0, 1) for sign in (-1, 1)})
    edges = [-BIGGEST, *edges, BIGGEST]
    packed = [pack((edge,)) for edge in edges]
    assert packed == sorted(packed)
    assert [unpack(key) for key in packed] == [(edge,) for edge in edges]


@pytest.mark.parametrize("value", [BIGGEST + 1, -BIGGEST - 1, 2**100])
def test_an_integer_of_more_than_8_bytes_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        pack((value,))


@pytest.mark.parametrize("value", [[1], {1}, {}, object(), 1j, bytearray(b"a")])
def test_a_part_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=f"of type {type(value).__name__}"):
        pack((value,))


def test_a_string_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(UsageError, match="not valid Unicode"):
        pack(("\ud800",))


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1.7e308])
def test_every_float_is_kept_bit_for_bit(value: float) -> None:
    (unpacked,) = unpack(pack((value,)))
    assert isinstance(unpacked, float)
    assert struct.pack(">d", unpacked) == struct.pack(">d", value)


@pytest.mark.parametrize(
    ("key", "golden"),
    [
        # the examples of FoundationDB's specification of its tuple layer
        ((None,), "00"),
        ((b"foo\x00bar",), "01 66 6f 6f 00 ff 62 61 72 00"),
        (("F\u00d4O\x00bar",), "02 46 c3 94 4f 00 ff 62 61 72 00"),
        (((b"foo\x00bar", None, ()),), "05 01 66 6f 6f 00 ff 62 61 72 00 00 ff 05 00 00"),
        ((-5551212,), "11 ab 4b 93"),
        # and what follows from its rules
        ((), ""),
        ((b"",), "01 00"),
        (("",), "02 00"),
        (((),), "05 00"),
        (((None,),), "05 00 ff 00"),
        ((0,), "14"),
        ((1,), "15 01"),
        ((-1,), "13 fe"),
        ((255,), "15 ff"),
        ((256,), "16 01 00"),
        ((-255,), "13 00"),
        ((-256,), "12 fe ff"),
        ((BIGGEST,), "1c ff ff ff ff ff ff ff ff"),
        ((-BIGGEST,), "0c 00 00 00 00 00 00 00 00"),
        ((0.0,), "21 80 00 00 00 00 00 00 00"),
        ((42.0,), "21 c0 45 00 00 00 00 00 00"),
        ((-42.0,), "21 3f ba ff ff ff ff ff ff"),
        ((False, True), "26 27"),
        ((UUID("12345678-9abc-def0-1234-56789abcdef0"),), "30 12345678 9abc def0 1234 56789abcdef0"),
        ((Versionstamp(0x0102030405060708090A, 0x0B0C),), "33 01 02 03 04 05 06 07 08 09 0a 0b 0c"),
        (("a", 1, None), "02 61 00 15 01 00"),
    ],
)
def test_the_encoding_is_that_of_foundationdb(key: tuple[Part, ...], golden: str) -> None:
    assert pack(key) == bytes.fromhex(golden)
    assert same(unpack(bytes.fromhex(golden)), key)


@given(st.binary(max_size=30) | tuples.map(pack).flatmap(lambda key: st.just(key[:-1])))
@example(b"\x15")
@example(b"\x21\x80")
@example(b"\x30\x01")
@example(b"\x33")
@example(b"\x01abc")
@example(b"\x02\xff\x00")
@example(b"\x05")
@example(b"\x05\x15\x01")
@example(b"\x05\x00\xff")
@example(b"\x0b")
@example(b"\xff")
def test_bytes_that_are_no_tuple_are_a_value_error(key: bytes) -> None:
    try:
        parts = unpack(key)
    except ValueError:
        return
    assert same(unpack(pack(parts)), parts)


@pytest.mark.parametrize(
    "key",
    [
        b"\x15",
        b"\x21\x80",
        b"\x30\x01",
        b"\x33",
        b"\x01abc",
        b"\x02\xff\x00",
        b"\x05",
        b"\x05\x15\x01",
        b"\x03",
    ],
)
def test_a_truncated_or_unknown_part_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which of them matters to nobody
        unpack(key)


# --- spaces


def inside(key: bytes, bounds: tuple[bytes, bytes]) -> bool:
    return bounds[0] <= key < bounds[1]


@pytest.mark.rule("STO-1")
@given(tuples, tuples)
@example((b"foo",), (b"foo\x00bar",))
@example((b"foo",), (b"foo", b"\xff\xff"))
@example(("a",), ("a\x00", 1))
@example((None,), ((None,),))
@example(((),), ((None,),))
@example(((),), ((), None))
@example((1,), (256,))
@example((), (Versionstamp(0, 0),))
def test_a_space_holds_exactly_the_tuples_that_begin_with_its_own(
    own: tuple[Part, ...], key: tuple[Part, ...]
) -> None:
    longer = len(key) > len(own) and same(key[: len(own)], own)
    assert inside(pack(key), Space(*own).all()) == longer
    assert inside(pack(key), Space().under(*own)) == longer
    assert inside(pack((*own, *key)), Space(*own).all()) == bool(key)


@pytest.mark.rule("STO-1")
@given(tuples, tuples, tuples)
def test_under_is_the_range_of_its_continuations(
    own: tuple[Part, ...], parts: tuple[Part, ...], rest: tuple[Part, ...]
) -> None:
    space = Space(*own)
    key = space[(*parts, *rest)]
    assert inside(key, space.under(*parts)) == bool(rest)
    assert inside(key, space.space(*parts).all()) == bool(rest)
    assert inside(key, Space(*own, *parts).all()) == bool(rest)
    assert same(space.unpack(key), (*parts, *rest))
    assert same(space.space(*parts).unpack(key), rest)


@given(tuples, st.binary(max_size=5))
def test_after_sorts_after_every_continuation(own: tuple[Part, ...], tail: bytes) -> None:
    prefix = pack(own)
    assert pack((*own, tail)) < after(prefix)
    assert pack((*own, b"\xff" + tail)) < after(prefix)
    assert pack((*own, "\U0010ffff")) < after(prefix)
    assert pack((*own, Versionstamp(2**80 - 1, 2**16 - 1))) < after(prefix)


@pytest.mark.rule("STO-1")
@given(tuples, st.binary(max_size=4), st.integers(0, 2**80 - 1))
def test_a_versioned_row_lies_in_its_space(own: tuple[Part, ...], value: bytes, commit: int) -> None:
    space = Space("log", *own)
    key = space.prefix + pack((Versionstamp(commit, 3),))
    assert inside(key, space.all())
    assert space.unpack(key) == (Versionstamp(commit, 3),)
    assert key == space[Versionstamp(commit, 3)]


@pytest.mark.rule("STO-1")
@given(st.binary(max_size=20))
def test_an_id_alone_in_brackets_is_packed_like_any_other_part(future_id: bytes) -> None:
    assert Space("shop", "node")[future_id] == pack(("shop", "node", future_id))


def test_brackets_take_one_part_or_several_and_a_nested_tuple_in_a_tuple() -> None:
    space = Space("shop", "node")
    assert space["n1"] == pack(("shop", "node", "n1"))
    assert space["n1", 7] == pack(("shop", "node", "n1", 7))
    assert space[("n1", 7),] == pack(("shop", "node", ("n1", 7)))
    assert space[None] == pack(("shop", "node", None))
    assert space[()] == space.prefix
    assert repr(space) == "Space('shop', 'node')"


@pytest.mark.parametrize("key", [b"", pack(("other", 1)), pack(("shop",)), pack(("shop\x00", 1))])
def test_a_key_of_another_space_is_not_unpacked(key: bytes) -> None:
    with pytest.raises(ValueError, match=r"does not begin with the prefix|not a packed tuple"):
        Space("shop").space("node").unpack(key)
    with pytest.raises(ValueError, match=r"does not begin with the prefix|not a packed tuple"):
        Space("shop", "node").unpack(key)


def test_versions_sort_by_commit_then_by_ordinal() -> None:
    ordered = [
        Versionstamp(0, 0),
        Versionstamp(0, 65535),
        Versionstamp(1, 0),
        Versionstamp(2**16, 0),
        Versionstamp(2**80 - 1, 65535),
    ]
    assert sorted(ordered, key=lambda version: pack((version,))) == ordered == sorted(ordered)
    assert all(len(version.pack()) == 12 for version in ordered)
    assert [Versionstamp.unpack(version.pack()) for version in ordered] == ordered
