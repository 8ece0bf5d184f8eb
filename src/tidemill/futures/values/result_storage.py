"""Results: where a value goes, and how it comes back (FUT-28, FUT-29).

    up to 16 KiB    in the future's row
    more            a segment of the node: mapped by processes of its host, fetched by others over Flight
    `durable`       an object

Small ones are durable whatever was asked: the row is. `load` takes what is nearest: a mapping costs
nothing, so it is tried whenever the result is said to be on this host, and where that fails (a container
shares its host's id but not its memory) the node is asked.
"""

import contextlib
import mmap
from pathlib import Path
from typing import Any

import msgspec

from tidemill.errors import (
    CannotSerialize,
    CopyCorrupt,
    CopyGone,
    FetchFailed,
    ObjectMissing,
    SegmentsFull,
    UsageError,
)
from tidemill.futures.protocol.rows import Location, Result
from tidemill.futures.values import calls, layout, pickling
from tidemill.futures.values.flight import SegmentFetcher
from tidemill.futures.values.segment_writer import SegmentWriter
from tidemill.futures.values.segments import default_root, host_id, map_segment
from tidemill.futures.values.signatures import Signer
from tidemill.objects import Objects

INLINE_BYTES = 16 * 1024
"""Results up to this size are in the row, which every reader reads anyway."""

_NO_PLACE = "run it on a worker, give objects=… and durable=True, or return less"


def size_in_bytes(result: Result) -> int:
    """What a result takes where it is stored."""
    return result.size


class ResultStorage:
    """Stores and loads results for one process. Safe to share between threads.

    Args:
        signer: has the cluster's key.
        node: our node's id; empty for a client.
        node_epoch: and its epoch.
        address: where our node serves segments to other hosts.
        writer: for segments; None for a process that belongs to no worker.
        objects: for durable results; None if there is no object storage.
        fetcher: for results of other hosts; None for a cluster of one host.
        root: where this host's segments are.
    """

    def __init__(
        self,
        signer: Signer,
        *,
        node: str = "",
        node_epoch: int = 0,
        address: str = "",
        writer: SegmentWriter | None = None,
        objects: Objects | None = None,
        fetcher: SegmentFetcher | None = None,
        root: Path | None = None,
    ) -> None:
        self._signer = signer
        self._node = node
        self._node_epoch = node_epoch
        self._address = address
        self._writer = writer
        self._objects = objects
        self._fetcher = fetcher
        self._root = root or (writer.folder.parent if writer is not None else default_root())
        self._host = host_id()

    def store(
        self,
        value: object,
        future_id: bytes,
        version: int,
        *,
        durable: bool = False,
        what: str = "the result",
    ) -> Result:
        """Put a value where it belongs; it is whole and readable there when this returns.

        Nobody knows of it before the result is in the future's row. `CannotSerialize` if it cannot be
        pickled, `SegmentsFull` if the node has no room.

        Args:
            value: what the task returned.
            future_id: whose result it is; the signature says so.
            version: the claim's epoch; no two results of a future have the same one.
            durable: whether it shall outlive the node.
            what: names the value in errors.
        """
        dumped = calls.dump_value(value, what)
        if dumped.size <= INLINE_BYTES:
            head = pickling.pack(dumped)
            signature = self._signer.sign("result", future_id, _octets(version), head)
            return Result(version, 0, len(head), Location("inline"), head, signature)
        if durable or self._writer is None:
            return self._store_object(dumped, future_id, version, what)
        image = layout.plan(dumped, future_id + _octets(version))
        try:
            name = self._writer.write(future_id.hex(), version, image)
        except SegmentsFull:
            if self._objects is None:
                raise
            return self._store_object(dumped, future_id, version, what)
        return Result(
            version,
            0,
            image.total,
            self._here(name),
            b"",
            self._sign(future_id, version, image.total, image.head),
        )

    def load(self, result: Result, future_id: bytes, *, what: str = "the result") -> Any:
        """The value of a result, from the nearest place.

        Raises what tells the caller what to do: `CopyGone` and `CopyCorrupt` (look for another copy),
        `FetchFailed` (try again), `FetchRefused` and `BadSignature` (wrong key: nothing was unpickled),
        `CodeNotLoadable` (this process lacks a module).
        """
        kind = result.location.kind
        if kind == "inline":
            self._signer.check("result", result.signature, future_id, _octets(result.version), result.head)
            return pickling.unpack(result.head, what=what)
        return layout.load(self._image(result), lambda head: self._check(result, future_id, head), what=what)

    def clone(self, result: Result, future_id: bytes) -> Result:
        """A copy of a result in a segment of our node (FUT-31); the signature goes with it.

        What is copied is checked like a value that is loaded, but for the unpickling.
        """
        if result.location.kind == "inline":
            return result
        if self._writer is None:
            raise UsageError("only a worker's process can hold a copy", hint=_NO_PLACE)
        with self._writer.begin(future_id.hex(), result.version, result.size) as draft:
            view = self._mapped(result)
            if view is not None:
                draft.write([view])
            elif result.location.kind == "segment":
                self._fetch(result, lambda piece: draft.write([piece]))
            else:
                draft.write([self._image(result)])
            self._check(result, future_id, layout.read_head(draft.view()))
            return msgspec.structs.replace(result, location=self._here(draft.seal()))

    def delete_object(self, result: Result) -> None:
        """Remove a durable result's object; nothing for others, whose owner is their node."""
        if result.location.kind == "object" and self._objects is not None:
            self._objects.delete(result.location.name)

    def _store_object(self, dumped: pickling.Dumped, future_id: bytes, version: int, what: str) -> Result:
        if self._objects is None:
            raise CannotSerialize(
                f"{what} has {dumped.size:,} bytes and there is nowhere to store it", hint=_NO_PLACE
            )
        image = layout.plan(dumped, future_id + _octets(version), digest_parts=True)
        name = f"futures/results/{future_id.hex()}/{version}"
        self._objects.put(name, layout.joined(image))
        signature = self._sign(future_id, version, image.total, image.head)
        return Result(version, 0, image.total, Location("object", name), b"", signature)

    def _here(self, name: str) -> Location:
        assert self._writer is not None
        return Location(
            "segment",
            name=f"{self._writer.boot}/{name}",
            node=self._node,
            node_epoch=self._node_epoch,
            host=self._host,
            address=self._address,
        )

    def _sign(self, future_id: bytes, version: int, size: int, head: bytes) -> bytes:
        return self._signer.sign("result", future_id, _octets(version), _octets(size), head)

    def _check(self, result: Result, future_id: bytes, head: bytes) -> None:
        self._signer.check(
            "result", result.signature, future_id, _octets(result.version), _octets(result.size), head
        )

    def _image(self, result: Result) -> memoryview:
        """All bytes of a result that is not in its row, read-only."""
        place = result.location
        if place.kind == "object":
            return self._object(place.name)
        if place.kind == "freed":
            raise CopyGone("this result was freed: nobody held it any more")
        if place.kind != "segment":
            raise UsageError(f"no value is at {place.kind!r}", hint="only results can be loaded")
        if (view := self._mapped(result)) is not None:
            return view
        memory = _memory(result.size)
        at = 0

        def write(piece: memoryview) -> None:
            nonlocal at
            memory[at : at + len(piece)] = piece
            at += len(piece)

        self._fetch(result, write)
        return memory.toreadonly()

    def _mapped(self, result: Result) -> memoryview | None:
        """A view of a segment on this host; None when it has to be fetched."""
        place = result.location
        if place.kind != "segment" or place.host != self._host:
            return None
        with contextlib.suppress(CopyGone):
            view = map_segment(place.name, self._root)
            if len(view) != result.size:
                raise CopyCorrupt(f"{place.name} has {len(view):,} bytes and should have {result.size:,}")
            return view
        if not place.address or self._fetcher is None:
            raise CopyGone(f"the segment {place.name} is not on this host any more")
        return None

    def _fetch(self, result: Result, write: Any) -> None:
        place = result.location
        if self._fetcher is None or not place.address:
            raise FetchFailed(
                f"{place.name} is on another host, and its node serves nothing to others",
                hint="start the workers with an address and a certificate, or use durable=True",
            )
        self._fetcher.fetch(place, result.size, write)

    def _object(self, name: str) -> memoryview:
        if self._objects is None:
            raise FetchFailed("the result is in object storage, and this process has none", hint=_NO_PLACE)
        try:
            return memoryview(self._objects.get(name)[0])
        except ObjectMissing:
            raise CopyGone(f"the object {name} is gone") from None


def _octets(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _memory(size: int) -> memoryview:
    """Memory of our own that begins at a page, so that everything in it is aligned; freed with its views."""
    try:
        return memoryview(mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:size]
    except OSError as error:
        raise MemoryError(f"no memory for a result of {size:,} bytes") from error
