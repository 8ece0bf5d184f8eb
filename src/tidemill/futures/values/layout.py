"""A large value as one run of bytes: what a segment, an object and a transfer between hosts hold.

    64 bytes   magic, format, size of the head, size of the whole, digest of the head
    head       what follows: sizes, kinds, digests (msgpack)
    stream     the pickle
    parts      each at a multiple of 64 bytes, as numpy and Arrow like it

Only the head is signed. It holds the digest of the stream, so that nothing is unpickled that was not signed;
the parts are plain data and get no digest in a segment, which would cost more than copying them. An image
that leaves this user's account on this machine has one for its parts too: in the head when it goes to object
storage, over the connection when it goes to another host.
"""

import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from tidemill.errors import CopyCorrupt
from tidemill.futures.values import pickling
from tidemill.futures.values.pickling import Dumped, PicklePart

ALIGN = 64
FORMAT = 1
MAGIC = b"\x89tidemil"
DIGEST_BYTES = 32

_PREFIX = struct.Struct("<8sIIQQ32s")
_ZEROS = memoryview(bytes(ALIGN))
assert _PREFIX.size == ALIGN


class LayoutHead(msgspec.Struct, frozen=True, array_like=True):
    """What there is behind the head."""

    python: str
    stream: int  # bytes
    digest: bytes  # of the stream
    kinds: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()  # of the parts
    body: bytes = b""  # digest of all parts, if they have one
    label: bytes = b""  # whose it is: two values may have equal streams and differ in their parts alone


class ValueLayout(NamedTuple):
    """An image that is yet to be written: its pieces still are the value's own memory."""

    head: bytes
    total: int
    pieces: tuple[memoryview, ...]  # joined they are the image, padding included


_head = msgspec.msgpack.Decoder(LayoutHead)
_encode = msgspec.msgpack.Encoder().encode


def plan(dumped: Dumped, label: bytes = b"", *, digest_parts: bool = False) -> ValueLayout:
    """Lay a value out; copies nothing.

    Args:
        dumped: the value.
        label: what is signed with the head, so that no image passes for another.
        digest_parts: whether the head vouches for the parts as well.
    """
    views = [part.view.cast("B") if part.view.nbytes else _ZEROS[:0] for part in dumped.parts]
    head = _encode(
        LayoutHead(
            python=dumped.python,
            stream=len(dumped.stream),
            digest=blake2b(dumped.stream, digest_size=DIGEST_BYTES).digest(),
            kinds=tuple(part.kind for part in dumped.parts),
            sizes=tuple(len(view) for view in views),
            body=_digest_of(views) if digest_parts else b"",
            label=label,
        )
    )
    pieces: list[memoryview] = []
    at = 0
    for piece in (_ZEROS, memoryview(head), memoryview(dumped.stream), *views):
        if pad := -at % ALIGN:
            pieces.append(_ZEROS[:pad])
        if len(piece):
            pieces.append(piece)
        at += pad + len(piece)
    prefix = _PREFIX.pack(MAGIC, FORMAT, 0, len(head), at, _digest(head))
    return ValueLayout(head, at, (memoryview(prefix), *pieces[1:]))


def read_head(view: memoryview) -> bytes:
    """The head of an image, as bytes of our own: what is checked is what is used."""
    if len(view) < ALIGN:
        raise CopyCorrupt(f"{len(view)} bytes are no image")
    magic, form, _, size, total, digest = _PREFIX.unpack_from(view)
    if magic != MAGIC or form != FORMAT:
        raise CopyCorrupt("this is no image of a value, or one of another release")
    if total != len(view) or size > total - ALIGN:
        raise CopyCorrupt(f"an image of {total:,} bytes has {len(view):,}")
    head = bytes(view[ALIGN : ALIGN + size])
    if _digest(head) != digest:
        raise CopyCorrupt("the head of an image was changed")
    return head


def load(view: memoryview, check: Callable[[bytes], None], *, what: str) -> Any:
    """The value of an image, built around it; `CopyCorrupt` if the image is not what was written.

    Args:
        view: the image, read-only for as long as the value lives.
        check: returns if its head is signed, else raises; called before anything is unpickled.
        what: names the value in errors.
    """
    raw = read_head(view)
    check(raw)
    head = _head.decode(raw)  # signed, so that it is what a release of ours wrote
    pieces = _cut(view, len(raw), (head.stream, *head.sizes))
    stream = bytes(next(pieces))
    if blake2b(stream, digest_size=DIGEST_BYTES).digest() != head.digest:
        raise CopyCorrupt(f"{what} was changed where it was stored")
    parts = [PicklePart(kind, piece) for kind, piece in zip(head.kinds, pieces, strict=True)]
    if head.body and _digest_of([part.view for part in parts]) != head.body:
        raise CopyCorrupt(f"{what} was changed where it was stored")
    return pickling.load(stream, parts, python=head.python, what=what)


def joined(image: ValueLayout) -> bytearray:
    """The image in memory: one copy of everything."""
    out = bytearray(image.total)
    at = 0
    for piece in image.pieces:
        out[at : at + len(piece)] = piece
        at += len(piece)
    return out


def _cut(view: memoryview, head: int, sizes: tuple[int, ...]) -> Iterator[memoryview]:
    at = ALIGN + head
    ends = []
    for size in sizes:
        at += -at % ALIGN
        ends.append((at, at + size))
        at += size
    if at != len(view):
        raise CopyCorrupt(f"an image of {at:,} bytes has {len(view):,}")
    return (view[low:high] for low, high in ends)


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def _digest_of(views: list[memoryview]) -> bytes:
    """Of several, without joining them; their sizes are in the head."""
    state = blake2b(digest_size=DIGEST_BYTES)
    for view in views:
        state.update(view)
    return state.digest()
