"""Result storage: decide where a result is stored, and load it (FUT-28, FUT-29).

    up to 16 KiB    in the future's row
    larger          in a segment of the node: processes on its host map it, other hosts fetch it over Flight
    `durable`       in an object

Small results are always durable, because the row is durable. They are kept as long as the row: at least 24
hours after the future has ended (`protocol.sweep`). A larger result is deleted as soon as nothing needs it
(`protocol.results`). If a client requests it after that, the future is computed again.

`load` uses the nearest copy. If the result is on this host, `load` first tries to map the segment, because
mapping costs nothing. Mapping can fail: a container has the host id of its machine, but cannot see the
machine's memory. Then the result is fetched from the node.
"""

import contextlib
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tidemill import crash
from tidemill.errors import (
    CannotSerialize,
    CopyCorrupt,
    CopyGone,
    FetchFailed,
    ObjectMissing,
    SegmentsFull,
    UsageError,
)
from tidemill.futures.protocol.keys import result_object
from tidemill.futures.protocol.rows import Location, Result
from tidemill.futures.values import calls, layout, pickling
from tidemill.futures.values.flight import SegmentFetcher
from tidemill.futures.values.segment_writer import SegmentWriter
from tidemill.futures.values.segments import default_root, host_id, map_segment
from tidemill.futures.values.signatures import Signer
from tidemill.objects import Objects

INLINE_BYTES = 16 * 1024
"""Results up to this size are stored in the row, which every reader reads anyway."""

_NO_STORAGE = "run the call on a worker, use durable=True with objects=…, or make the value smaller"


class ResultStorage:
    """Stores and loads results for one process. Safe to share between threads.

    Args:
        signer: signs with the cluster key.
        node: the id of this node; empty for a client.
        node_epoch: the epoch of this node.
        address: the address where this node serves segments to other hosts.
        writer: writes segments; None for a process that does not belong to a worker.
        objects: stores durable results; None if there is no object storage.
        fetcher: fetches results from other hosts; None for a cluster on one host.
        root: the folder of this host's segments.
        announce: called with the name of an object before it is written, so that it is deleted if this
            process dies before it records the result (`protocol.drafts`).
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
        announce: Callable[[str], None] | None = None,
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
        self._announce = announce

    def store(
        self,
        value: object,
        future_id: bytes,
        version: int,
        *,
        durable: bool = False,
        subject: str = "the result",
    ) -> Result:
        """Store a value. The stored value is complete and readable when this returns.

        Other processes do not see the value until the result is in the future's row. Raise `CannotSerialize`
        if the value cannot be pickled, `SegmentsFull` if the node has no room.

        Args:
            value: the return value of the task.
            future_id: the future; the signature covers its id.
            version: the epoch of the claim, which differs for each result of a future.
            durable: whether the result must outlive the node.
            subject: names the value in errors.
        """
        dumped = calls.dump_value(value, subject)
        if dumped.size <= INLINE_BYTES:
            head = pickling.pack(dumped)
            signature = self._signer.sign("result", future_id, _octets(version), head)
            return Result(version, 0, len(head), Location("inline"), head, signature)
        if durable or self._writer is None:
            return self._store_object(dumped, future_id, version, subject)
        image = layout.plan(dumped, future_id + _octets(version))
        try:
            name = self._writer.write(future_id.hex(), version, image)
        except SegmentsFull:
            if self._objects is None:
                raise
            return self._store_object(dumped, future_id, version, subject)
        return Result(
            version,
            0,
            image.total,
            self._here(name),
            b"",
            self._sign(future_id, version, image.total, image.head),
        )

    def load(self, result: Result, future_id: bytes, *, subject: str = "the result") -> Any:
        """Load a result from the nearest copy.

        The error says what to do: `CopyGone` and `CopyCorrupt` (use another copy), `FetchFailed` (try again),
        `FetchRefused` and `BadSignature` (wrong key; nothing was unpickled), `CodeNotLoadable` (this process
        lacks a module).
        """
        kind = result.location.kind
        if kind == "inline":
            self._signer.check("result", result.signature, future_id, _octets(result.version), result.head)
            return pickling.unpack(result.head, subject=subject)
        return layout.load(
            self._image(result), lambda head: self._check(result, future_id, head), subject=subject
        )

    def clone(self, result: Result, future_id: bytes) -> Result:
        """Copy a result into a segment of this node, with its signature (FUT-31).

        The copy is checked like a value that is loaded, but it is not unpickled.
        """
        if result.location.kind == "inline":
            return result
        if self._writer is None:
            raise UsageError("only a worker process can store a copy of a result", hint="call this in a task")
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
        """Delete the object of a durable result. Other results are deleted by the node that stores them."""
        if result.location.kind == "object" and self._objects is not None:
            self._objects.delete(result.location.name)

    def _store_object(self, dumped: pickling.Dumped, future_id: bytes, version: int, subject: str) -> Result:
        if self._objects is None:
            raise CannotSerialize(
                f"{subject} has {dumped.size:,} bytes, and there is no storage for it", hint=_NO_STORAGE
            )
        image = layout.plan(dumped, future_id + _octets(version), digest_parts=True)
        name = result_object(future_id, version)
        if self._announce is not None:
            self._announce(name)
        crash.point("futures.result.before")
        self._objects.put(name, layout.joined(image))
        crash.point("futures.result.after")
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
        """Return all bytes of a result that is not in its row, read-only."""
        location = result.location
        if location.kind == "object":
            return self._object(location.name)
        if location.kind == "freed":
            raise CopyGone(
                "the result was deleted because no future object referred to it",
                hint="keep the future object, or submit the call again",
            )
        if location.kind != "segment":
            raise UsageError(
                f"this result is of kind {location.kind!r}, so there is no value to load",
                hint="call the methods of the actor instead",
            )
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
        """Return a view of a segment on this host; None if the segment must be fetched."""
        location = result.location
        if location.kind != "segment" or location.host != self._host:
            return None
        with contextlib.suppress(CopyGone):
            view = map_segment(location.name, self._root)
            if len(view) != result.size:
                raise CopyCorrupt(f"{location.name} has {len(view):,} bytes instead of {result.size:,}")
            return view
        if not location.address or self._fetcher is None:
            raise CopyGone(f"the stored result {location.name} is no longer on this host")
        return None

    def _fetch(self, result: Result, write: Any) -> None:
        location = result.location
        if self._fetcher is None or not location.address:
            raise FetchFailed(
                f"{location.name} is on another host, and its node does not serve results to other hosts",
                hint="start the workers with --listen and --certificate, or use durable=True",
            )
        self._fetcher.fetch(location, result.size, write)

    def _object(self, name: str) -> memoryview:
        if self._objects is None:
            raise FetchFailed(
                "cannot read the result: this process is not connected to object storage",
                hint="connect with objects=…, or start the worker with --objects",
            )
        try:
            return memoryview(self._objects.get(name)[0])
        except ObjectMissing:
            raise CopyGone(f"the object {name} does not exist") from None


def _octets(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _memory(size: int) -> memoryview:
    """Allocate memory that begins at a page, so that all parts are aligned. It is freed with its views."""
    try:
        return memoryview(mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:size]
    except OSError as error:
        raise MemoryError(f"no memory for a result of {size:,} bytes") from error
