"""Code and arguments where they are kept: in the store while small, as objects when large (FUT-21).

Code is named by its digest, which is keyed with the cluster's key: only who has the key could have made bytes
that fit the name, so that the name in a signed spec is the code's signature as well. The same function is
stored once, however often it is submitted; nobody changes it, because its name would be another.

Arguments are part of the spec while they are small. Large ones are an object under the future's own id, so
that they can be deleted with it; the signed spec has their digest.
"""

import hmac
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tidemill.errors import BadSignature, BlobMissing, CannotSerialize, ObjectMissing
from tidemill.futures.protocol.keys import FutureKeys, args_object
from tidemill.futures.protocol.rows import Blob, Spec
from tidemill.futures.values import calls
from tidemill.futures.values.signatures import SIGNATURE_BYTES, Signer
from tidemill.objects import Objects, Put
from tidemill.store import Store, Tx

IN_STORE_BYTES = 48 * 1024
"""Code up to this size is a value of the store, whose values have at most 64 KiB."""

IN_SPEC_BYTES = 16 * 1024
"""Arguments up to this size are in the spec's row: specs are written many in one transaction."""

_REMEMBERED = 10_000
_NO_OBJECTS = (
    "give the client and the workers objects=…, or pass less: put() large values and pass the future"
)


class Blobs:
    """The blobs of one cluster. Safe to share between threads.

    Args:
        store: where small code is.
        keys: the cluster's layout.
        signer: has the cluster's key.
        objects: where large blobs are; None for a cluster that has none.
    """

    def __init__(self, store: Store, keys: FutureKeys, signer: Signer, objects: Objects | None) -> None:
        self._store = store
        self._keys = keys
        self._signer = signer
        self._objects = objects
        self._stored: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def digest(self, content: bytes) -> bytes:
        """The name of code, which nobody can find without the key."""
        return self._signer.sign("code", content)

    def store_code(self, content: bytes) -> bytes:
        """Keep code and return its digest; code that we stored before costs nothing."""
        digest = self.digest(content)
        with self._lock:
            if digest in self._stored:
                self._stored.move_to_end(digest)
                return digest
        if len(content) <= IN_STORE_BYTES:
            self._store.run(lambda tx: _set_once(tx, self._keys.code[digest], content))
        else:
            self._put(_code_name(digest), digest, content, "this function is")
        with self._lock:
            self._stored[digest] = None
            if len(self._stored) > _REMEMBERED:
                self._stored.popitem(last=False)
        return digest

    def forget(self, digest: bytes) -> None:
        """Store this code again when it comes next: somebody found it missing."""
        with self._lock:
            self._stored.pop(digest, None)

    def load_code(self, digest: bytes) -> bytes:
        """The code of a digest; `BlobMissing` when there is none, `BadSignature` when it is other code."""
        raw = self._store.run(lambda tx: tx.get(self._keys.code[digest]))
        if raw is None:
            raw = self._object(_code_name(digest), "the code of this future")[SIGNATURE_BYTES:]
        self.check_code(digest, raw)
        return raw

    def check_code(self, digest: bytes, content: bytes) -> None:
        """Return if this is the code of that digest, else raise `BadSignature`."""
        if not hmac.compare_digest(self.digest(content), digest):
            raise BadSignature("this code was not signed with this cluster's key")

    def store_args(self, future_id: bytes, content: bytes) -> Blob:
        """Arguments for a spec: the bytes themselves, or the name of an object with them."""
        if len(content) <= IN_SPEC_BYTES:
            return Blob(content, size=len(content))
        digest = self._signer.sign("args", future_id, content)
        self._put(args_object(future_id, digest), digest, content, "these arguments are")
        return Blob(None, digest, len(content))

    def load_args(self, spec: Spec) -> bytes:
        """The arguments of a spec whose own signature was checked (`check_spec`)."""
        if spec.args.inline is not None:
            return spec.args.inline
        body = self._object(args_object(spec.id, spec.args.digest), f"the arguments of {spec.name}")
        content = body[SIGNATURE_BYTES:]
        self._signer.check("args", spec.args.digest, spec.id, content)
        return content

    def _put(self, name: str, digest: bytes, content: bytes, what: str) -> None:
        """Write an object that is a function of its name: whoever was there first has put the same."""
        if self._objects is None:
            raise CannotSerialize(
                f"{what} {len(content):,} bytes, too large for the store, and there is no object storage",
                hint=_NO_OBJECTS,
            )
        body = digest + content
        if self._objects.put_if_absent(name, body, digest) is Put.OTHER:
            self._objects.put(name, body)  # somebody without the key was there, or it was damaged

    def _object(self, name: str, what: str) -> bytes:
        if self._objects is None:
            raise BlobMissing(f"{what} is in object storage, and this process has none", hint=_NO_OBJECTS)
        try:
            return self._objects.get(name)[0]
        except ObjectMissing:
            raise BlobMissing(f"{what} is not there: {name} does not exist") from None


class FunctionCache:
    """The functions that a worker has loaded, by digest; the least recently used ones go first."""

    def __init__(self, blobs: Blobs, limit: int = 256) -> None:
        self._blobs = blobs
        self._limit = limit
        self._loaded: OrderedDict[bytes, Callable[..., Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: bytes, content: bytes = b"") -> Callable[..., Any]:
        """The function of a digest; it is loaded once.

        Args:
            digest: from a spec whose signature was checked.
            content: its code, if the caller has it; checked like any other.
        """
        with self._lock:
            if (known := self._loaded.get(digest)) is not None:
                self._loaded.move_to_end(digest)
                return known
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
    return f"futures/blobs/{digest.hex()}"


def _set_once(tx: Tx, key: bytes, value: bytes) -> None:
    if tx.get(key) is None:
        tx.set(key, value)
