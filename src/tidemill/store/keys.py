"""Pack tuples into bytes that sort like the tuples.

The encoding is FoundationDB's tuple layer for the types we use: None, bytes, str, int, float, bool, UUID,
nested tuples and `Versionstamp`. Every backend uses the same encoding, so a store can be copied from one
backend to another row by row, and a range of tuples is a range of bytes.

Order: None < bytes < str < nested tuple < int < float < bool < UUID < Versionstamp, then by value.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tidemill.errors import UsageError

NULL, BYTES, STR, NESTED = 0x00, 0x01, 0x02, 0x05
INT_ZERO, DOUBLE, FALSE, TRUE, UUID_CODE, VERSION_CODE = 0x14, 0x21, 0x26, 0x27, 0x30, 0x33


class Versionstamp(NamedTuple):
    """The last part of the key of a row that `set_versioned` wrote.

    Such rows sort by commit, then by their ordinal within the commit. `commit` has 80 bits, as in
    FoundationDB, where the commits of one batch differ only in the last 16 bits.
    """

    commit: int
    ordinal: int

    def pack(self) -> bytes:
        return self.commit.to_bytes(10, "big") + self.ordinal.to_bytes(2, "big")

    @staticmethod
    def unpack(raw: bytes) -> "Versionstamp":
        return Versionstamp(int.from_bytes(raw[:10], "big"), int.from_bytes(raw[10:], "big"))


Part: TypeAlias = bytes | str | int | float | bool | UUID | Versionstamp | tuple["Part", ...] | None


def pack(parts: Sequence[Part]) -> bytes:
    """Pack a tuple into bytes; `pack(a) < pack(b)` if and only if `a` sorts before `b`."""
    out = bytearray()
    for part in parts:
        _encode(part, out, nested=False)
    return bytes(out)


def _encode(part: Part, out: bytearray, *, nested: bool) -> None:
    match part:
        case str():
            out.append(STR)
            out += _encoded(part).replace(b"\x00", b"\x00\xff") + b"\x00"
        case bool():
            out.append(TRUE if part else FALSE)
        case int():
            _encode_int(part, out)
        case bytes():
            out.append(BYTES)
            out += part.replace(b"\x00", b"\x00\xff") + b"\x00"
        case None:
            out += b"\x00\xff" if nested else b"\x00"
        case Versionstamp():
            out.append(VERSION_CODE)
            out += part.pack()
        case float():
            bits = bytearray(struct.pack(">d", part))
            out.append(DOUBLE)
            out += bytes(b ^ 0xFF for b in bits) if bits[0] & 0x80 else bytes([bits[0] ^ 0x80]) + bits[1:]
        case UUID():
            out.append(UUID_CODE)
            out += part.bytes
        case tuple():
            out.append(NESTED)
            for inner in part:
                _encode(inner, out, nested=True)
            out.append(0x00)
        case _:
            raise TypeError(f"a key part cannot be of type {type(part).__name__}")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the name {text!a:.80} is not valid Unicode", hint="use another name") from None


def _encode_int(value: int, out: bytearray) -> None:
    magnitude = abs(value)
    size = (magnitude.bit_length() + 7) // 8
    if size > 8:
        raise ValueError("integers in keys have at most 8 bytes")
    out.append(INT_ZERO + size if value >= 0 else INT_ZERO - size)
    if value < 0:
        magnitude = (1 << (8 * size)) - 1 - magnitude
    out += magnitude.to_bytes(size, "big")


def unpack(key: bytes) -> tuple[Part, ...]:
    """Return the tuple that was packed into these bytes."""
    parts: list[Part] = []
    at = 0
    while at < len(key):
        part, at = _decode(key, at)
        parts.append(part)
    return tuple(parts)


def _terminated(key: bytes, at: int) -> tuple[bytes, int]:
    end = at
    while True:
        end = key.index(b"\x00", end)
        if key[end + 1 : end + 2] != b"\xff":
            return key[at:end].replace(b"\x00\xff", b"\x00"), end + 1
        end += 2


def _exactly(key: bytes, at: int, size: int) -> bytes:
    raw = key[at : at + size]
    if len(raw) < size:
        raise ValueError(f"not a packed tuple: it ends in the middle of the part that starts at {at - 1}")
    return raw


def _decode(key: bytes, at: int) -> tuple[Part, int]:
    code = key[at]
    at += 1
    if code == NULL:
        return None, at
    if code == BYTES:
        return _terminated(key, at)
    if code == STR:
        raw, at = _terminated(key, at)
        return raw.decode(), at
    if code == NESTED:
        return _decode_nested(key, at)
    if INT_ZERO - 8 <= code <= INT_ZERO + 8:
        size = abs(code - INT_ZERO)
        magnitude = int.from_bytes(_exactly(key, at, size), "big")
        if code < INT_ZERO:
            magnitude -= (1 << (8 * size)) - 1
        return magnitude, at + size
    if code == DOUBLE:
        bits = _exactly(key, at, 8)
        bits = bytes([bits[0] ^ 0x80]) + bits[1:] if bits[0] & 0x80 else bytes(b ^ 0xFF for b in bits)
        return float(struct.unpack(">d", bits)[0]), at + 8
    if code in (FALSE, TRUE):
        return code == TRUE, at
    if code == UUID_CODE:
        return UUID(bytes=_exactly(key, at, 16)), at + 16
    if code == VERSION_CODE:
        return Versionstamp.unpack(_exactly(key, at, 12)), at + 12
    raise ValueError(f"not a packed tuple: unknown type code 0x{code:02x} at {at - 1}")


def _decode_nested(key: bytes, at: int) -> tuple[Part, int]:
    inner: list[Part] = []
    while True:
        if _exactly(key, at, 1) != b"\x00":
            part, at = _decode(key, at)
            inner.append(part)
        elif key[at + 1 : at + 2] == b"\xff":
            inner.append(None)
            at += 2
        else:
            return tuple(inner), at + 1


def after(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with this packed tuple."""
    return prefix + b"\xff"


class Space:
    """The keys that begin with one tuple: `Space("node")["id-1"]`, `Space("node").all()`.

    >>> nodes = Space("shop", "node")
    >>> nodes.unpack(nodes["n1", 7])
    ('n1', 7)
    """

    __slots__ = ("prefix",)

    def __init__(self, *parts: Part) -> None:
        self.prefix = pack(parts)

    def __getitem__(self, parts: Part) -> bytes:
        # space[a, b] has two parts; for one part that is a tuple, write space[(a, b),]
        if type(parts) is bytes:  # most keys end in an id; this takes a third of the time of `_encode`
            return self.prefix + b"\x01" + parts.replace(b"\x00", b"\x00\xff") + b"\x00"
        return self.prefix + pack(parts if type(parts) is tuple else (parts,))

    def all(self) -> tuple[bytes, bytes]:
        """Return the range of all keys in this space, without the prefix itself."""
        return self.prefix + b"\x00", after(self.prefix)

    def under(self, *parts: Part) -> tuple[bytes, bytes]:
        """Return the range of all keys in this space that begin with these parts."""
        inner = self.prefix + pack(parts)
        return inner + b"\x00", after(inner)

    def space(self, *parts: Part) -> "Space":
        inner = Space()
        inner.prefix = self.prefix + pack(parts)
        return inner

    def unpack(self, key: bytes) -> tuple[Part, ...]:
        """Return the parts of a key that follow the parts of this space."""
        if not key.startswith(self.prefix):
            raise ValueError("the key does not begin with the prefix of this key space")
        return unpack(key[len(self.prefix) :])

    def __repr__(self) -> str:
        return f"Space{unpack(self.prefix)!r}"
