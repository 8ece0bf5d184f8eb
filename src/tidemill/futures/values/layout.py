"""The byte layout of a large value in a segment, in an object and between hosts: its *image*.

    64 bytes   magic, format, size of the head, total size, digest of the head
    head       sizes, kinds and digests of the stream and the parts (msgpack)
    stream     the pickle
    parts      each at a multiple of 64 bytes, as numpy and Arrow prefer

Only the head is signed. It contains the digest of the stream, so nothing unsigned is unpickled. The parts are
plain data. In a segment the parts have no digest, because computing one would cost more than copying the
parts. An image that leaves this user's account on this machine also has a digest of its parts. The digest is
in the head if the image goes to object storage, and at the end of the transfer if it goes to another host.
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
    """The head: describes the stream and the parts that follow it."""

    python: str
    stream: int  # bytes
    digest: bytes  # of the stream
    kinds: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()  # of the parts
    body: bytes = b""  # digest of all parts; empty for none
    label: bytes = b""  # future and version: two values may have equal streams and differ only in their parts


class ValueLayout(NamedTuple):
    """An image that has not been written yet. Its pieces are views of the value's memory."""

    head: bytes
    total: int
    pieces: tuple[memoryview, ...]  # joined, they are the image, including padding


_head = msgspec.msgpack.Decoder(LayoutHead)
_encode = msgspec.msgpack.Encoder().encode


def plan(dumped: Dumped, label: bytes = b"", *, digest_parts: bool = False) -> ValueLayout:
    """Return the layout of a value. Copies nothing.

    Args:
        dumped: the value.
        label: signed with the head, so that one image cannot be used in place of another.
        digest_parts: whether the head contains a digest of the parts.
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
    """Return a copy of an image's head. The caller must check this copy and use only this copy."""
    if len(view) < ALIGN:
        raise CopyCorrupt(f"the stored value has only {len(view)} bytes, too few for its header")
    magic, form, _, size, total, digest = _PREFIX.unpack_from(view)
    if magic != MAGIC or form != FORMAT:
        raise CopyCorrupt("the stored value has an unknown format; another release may have written it")
    if total != len(view) or size > total - ALIGN:
        raise CopyCorrupt(f"the stored value has {len(view):,} bytes instead of {total:,}")
    head = bytes(view[ALIGN : ALIGN + size])
    if _digest(head) != digest:
        raise CopyCorrupt("the header of the stored value is damaged")
    return head


def load(view: memoryview, check: Callable[[bytes], None], *, subject: str) -> Any:
    """Load the value of an image. The value uses the image's memory.

    Raise `CopyCorrupt` if the image is damaged.

    Args:
        view: the image, read-only for as long as the value exists.
        check: raises if the head is not signed; called before anything is unpickled.
        subject: names the value in errors.
    """
    raw = read_head(view)
    check(raw)
    head = _head.decode(raw)  # it is signed, so a release of Tidemill wrote it
    pieces = _split(view, len(raw), (head.stream, *head.sizes))
    stream = bytes(next(pieces))
    if blake2b(stream, digest_size=DIGEST_BYTES).digest() != head.digest:
        raise CopyCorrupt(f"{subject} was changed after it was stored")
    parts = [PicklePart(kind, piece) for kind, piece in zip(head.kinds, pieces, strict=True)]
    if head.body and _digest_of([part.view for part in parts]) != head.body:
        raise CopyCorrupt(f"{subject} was changed after it was stored")
    return pickling.load(stream, parts, python=head.python, subject=subject)


def joined(image: ValueLayout) -> bytearray:
    """Copy the pieces of an image into one block of memory."""
    out = bytearray(image.total)
    at = 0
    for piece in image.pieces:
        out[at : at + len(piece)] = piece
        at += len(piece)
    return out


def _split(view: memoryview, head: int, sizes: tuple[int, ...]) -> Iterator[memoryview]:
    at = ALIGN + head
    ends = []
    for size in sizes:
        at += -at % ALIGN
        ends.append((at, at + size))
        at += size
    if at != len(view):
        raise CopyCorrupt(f"the stored value has {len(view):,} bytes instead of {at:,}")
    return (view[low:high] for low, high in ends)


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def _digest_of(views: list[memoryview]) -> bytes:
    """Return the digest of several views without joining them. Their sizes are in the head."""
    state = blake2b(digest_size=DIGEST_BYTES)
    for view in views:
        state.update(view)
    return state.digest()
