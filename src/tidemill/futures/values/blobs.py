"""Blobs: store code and arguments, in the store if they are small, as objects if they are large (FUT-21).

A large blob is an object. Its name is in the store before the object is written, so an object that a dead
process left is found and deleted (`protocol.code`, `protocol.drafts`).

Code is stored under a digest, which is computed with the cluster key. Only a process with the key can compute
such a digest, so the digest in a signed spec is also the signature of the code. A function is stored once,
however often it is submitted. Stored code never changes, because changed code has another digest.

Small arguments are part of the spec. Large arguments are stored as an object under the id of the future, so
that they can be deleted with the future. The signed spec contains their digest.
"""

import hmac
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tidemill import crash
from tidemill.clock import SYSTEM, Clock
from tidemill.errors import BadSignature, BlobMissing, CannotSerialize, ObjectMissing
from tidemill.futures.protocol import code, drafts
from tidemill.futures.protocol.keys import FutureKeys, args_object
from tidemill.futures.protocol.rows import Blob, Spec
from tidemill.futures.values import calls
from tidemill.futures.values.signatures import SIGNATURE_BYTES, Signer
from tidemill.objects import Objects, Put
from tidemill.store import Store, Tx

IN_STORE_BYTES = 48 * 1024
"""Code up to this size is stored as a value in the store. A value in the store has at most 64 KiB."""

IN_SPEC_BYTES = 16 * 1024
"""Arguments up to this size are stored in the spec's row. One transaction writes many specs."""

REGISTERED_S = 600.0
"""How long a process relies on code that it has stored. Unused code is kept for at least an hour."""

_REMEMBERED = 10_000
_NO_OBJECTS = "use objects=… for the client and the workers, or put() large values once and pass the futures"


class Blobs:
    """The blobs of one cluster. Safe to share between threads.

    Args:
        store: contains small code.
        keys: the keys of futures.
        signer: signs with the cluster key.
        objects: contains large blobs; None if the cluster has no object storage.
        clock: the source of time.
    """

    def __init__(
        self,
        store: Store,
        keys: FutureKeys,
        signer: Signer,
        objects: Objects | None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._store = store
        self._keys = keys
        self._signer = signer
        self._objects = objects
        self._clock = clock
        self._stored: OrderedDict[bytes, float] = OrderedDict()  # until when to rely on it
        self._lock = threading.Lock()

    def digest(self, content: bytes) -> bytes:
        """Return the digest of code. It cannot be computed without the key."""
        return self._signer.sign("code", content)

    def store_code(self, content: bytes) -> bytes:
        """Store code and return its digest. Code that this object has stored before is not written again."""
        digest = self.digest(content)
        with self._lock:
            if self._stored.get(digest, float("-inf")) > self._clock.monotonic():
                self._stored.move_to_end(digest)
                return digest
        until = self._clock.monotonic() + REGISTERED_S
        in_store = len(content) <= IN_STORE_BYTES
        if not in_store:
            self._check_objects("the function has", content)
        state = self._store.run(
            lambda tx: code.register(tx, self._keys, digest, content if in_store else None)
        )
        if not in_store:
            self._put(state.object, digest, content, "the function has")
        with self._lock:
            self._stored[digest] = until
            if len(self._stored) > _REMEMBERED:
                self._stored.popitem(last=False)
        return digest

    def forget(self, digest: bytes) -> None:
        """Forget that this code is stored, because it was missing. The next `store_code` writes it again."""
        with self._lock:
            self._stored.pop(digest, None)

    def load_code(self, digest: bytes) -> bytes:
        """Return the code with this digest.

        Raise `BlobMissing` if there is none, `BadSignature` if the stored code does not match the digest.
        """

        def read(tx: Tx) -> tuple[bytes | None, str]:
            state = code.read(tx, self._keys, digest)
            return tx.get(self._keys.code[digest]), (state.object if state else "") or _code_name(digest)

        raw, name = self._store.run(read)
        if raw is None:
            try:
                body = self._object(name, "the code of this future")
            except (
                BlobMissing
            ):  # a client may have died before it stored again what an earlier release stored
                if name == _code_name(digest):
                    raise
                body = self._object(_code_name(digest), "the code of this future")
            raw = body[SIGNATURE_BYTES:]
        self.check_code(digest, raw)
        return raw

    def check_code(self, digest: bytes, content: bytes) -> None:
        """Raise `BadSignature` if this code does not match the digest."""
        if not hmac.compare_digest(self.digest(content), digest):
            raise BadSignature("this code was not signed with this cluster's key")

    def store_args(self, future_id: bytes, content: bytes) -> Blob:
        """Store arguments, and return the `Blob` for the spec.

        The blob contains the bytes themselves, or the digest of an object that contains the bytes.
        """
        if len(content) <= IN_SPEC_BYTES:
            return Blob(content, size=len(content))
        self._check_objects("the arguments have", content)
        digest = self._signer.sign("args", future_id, content)
        name = args_object(future_id, digest)
        self._store.run(lambda tx: drafts.announce(tx, self._keys, name))
        self._put(name, digest, content, "the arguments have")
        return Blob(None, digest, len(content))

    def load_args(self, spec: Spec) -> bytes:
        """Return the arguments of a spec. The caller has checked the spec's signature (`check_spec`)."""
        if spec.args.inline is not None:
            return spec.args.inline
        body = self._object(args_object(spec.id, spec.args.digest), f"the arguments of {spec.name}")
        content = body[SIGNATURE_BYTES:]
        self._signer.check("args", spec.args.digest, spec.id, content)
        return content

    def _check_objects(self, subject: str, content: bytes) -> Objects:
        if self._objects is None:
            raise CannotSerialize(
                f"{subject} {len(content):,} bytes, more than the store accepts, and there is no"
                " object storage",
                hint=_NO_OBJECTS,
            )
        return self._objects

    def _put(self, name: str, digest: bytes, content: bytes, subject: str) -> None:
        """Write an object whose name determines its content. Replace it if it exists with other content."""
        objects, body = self._check_objects(subject, content), digest + content
        crash.point("futures.blob.before")
        if objects.put_if_absent(name, body, digest) is Put.OTHER:
            objects.put(name, body)  # it was written without the key, or is damaged
        crash.point("futures.blob.after")

    def _object(self, name: str, subject: str) -> bytes:
        if self._objects is None:
            raise BlobMissing(
                f"cannot read {subject}: this process is not connected to object storage",
                hint=_NO_OBJECTS,
            )
        try:
            return self._objects.get(name)[0]
        except ObjectMissing:
            raise BlobMissing(f"cannot read {subject}: the object {name} does not exist") from None


class FunctionCache:
    """A least-recently-used cache of the functions that a worker has loaded, by digest."""

    def __init__(self, blobs: Blobs, limit: int = 256) -> None:
        self._blobs = blobs
        self._limit = limit
        self._loaded: OrderedDict[bytes, Callable[..., Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: bytes, content: bytes = b"") -> Callable[..., Any]:
        """Return the function with this digest. A function in the cache is not loaded again.

        Args:
            digest: from a spec whose signature was checked.
            content: the function's code, if the caller has it; the code is checked too.
        """
        with self._lock:
            if (cached := self._loaded.get(digest)) is not None:
                self._loaded.move_to_end(digest)
                return cached
        if content:
            self._blobs.check_code(digest, content)
        else:
            content = self._blobs.load_code(digest)
        function = calls.load_code(content)
        with self._lock:
            self._loaded[digest] = function
            if len(self._loaded) > self._limit:
                self._loaded.popitem(last=False)
        return function


def _code_name(digest: bytes) -> str:
    """Return the name that an earlier release gave to large code."""
    return f"futures/blobs/{digest.hex()}"
