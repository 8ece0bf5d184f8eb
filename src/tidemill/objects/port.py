"""The interface of object storage: named bodies, which are replaced as a whole or not at all.

The store records which objects are current.

The contract is the same for every backend, and `tidemill.testing.objects_conformance` tests it:

- A body appears whole or not at all, and an acknowledged write survives a crash of the machine.
- Reads and listings see the last acknowledged write.
- `put_if_absent` creates an object exactly once, no matter how many writers try. It returns `Put.CREATED`,
  `Put.MINE` or `Put.OTHER`.
- `list` sorts by the bytes of the whole key, and can start after any key.
- Deleting a missing object is not an error.
- A key is valid on every backend or on none (`tidemill.objects.key`). There is one exception: whether `a` and
  `a/b` can both be objects depends on the provider. Local files refuse the second (`BadKey`).

**Mine or other.** A PUT whose response was lost may have succeeded, and the repeated PUT then finds an
object. That object is ours if, and only if, it has the bytes that we sent. For this to hold, no two writers
may send equal bodies. So the body contains a *nonce*: bytes that only this writer has, for example the id of
its attempt. `put_if_absent` takes the nonce and refuses a body without it. Objects stay plain files that any
program can read. When you repeat a PUT, send the same bytes. If you build the body again, it may contain a
different timestamp, and then it is a different body.

**ETags.** Providers use the MD5 of the body. So equal bodies have equal ETags, and an object that changed
from A to B and back to A has its first ETag again. The nonce solves this too: put a new nonce into each body
for `put_if_match`.

The class `Objects` does all the checks, so backends need none. A backend implements the methods that begin
with an underscore.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, NoReturn

from tidemill.errors import ObjectConflict, ObjectMissing, UsageError
from tidemill.objects.key import check_key, check_prefix

Body = bytes | bytearray | memoryview
Bodies = list[bytes]  # inside the class, `list` is the method

NONCE_BYTES = 8  # fewer could repeat by chance
_ROUNDS = 5  # tries, if an object exists but is deleted before we read it


class Put(enum.Enum):
    """The result of `put_if_absent`."""

    CREATED = "created"
    """There was no object; now ours is there."""
    MINE = "mine"
    """Our object is already there: an earlier try of the same put succeeded."""
    OTHER = "other"
    """Another writer's object is there, and was not changed."""


class ObjectInfo(NamedTuple):
    """The metadata of one object.

    `etag` is opaque and changes with the bytes. `modified_at` (seconds since 1970) is the storage's time. In
    the result of a put it is this machine's time, because providers do not return it. Do not use it to decide
    whether a lease has expired.
    """

    key: str
    size: int
    etag: str
    modified_at: float


class Objects(ABC):
    """One root in one object storage. Threads can share it; each process opens its own.

    >>> from tidemill.clock import SYSTEM
    >>> from tidemill.objects import open_objects
    >>> objects = open_objects("memory://", clock=SYSTEM)
    >>> objects.put_if_absent("lots/7", b'{"attempt": "a1b2c3d4"}', nonce=b"a1b2c3d4")
    <Put.CREATED: 'created'>
    >>> objects.get("lots/7")[0]
    b'{"attempt": "a1b2c3d4"}'
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL without secrets (STO-14): for messages, not for opening the storage again."""

    @property
    @abstractmethod
    def supports_if_match(self) -> bool:
        """Whether `put_if_match` can be used."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def __reduce__(self) -> NoReturn:
        # a pickle would store the secrets of the URL
        raise UsageError(
            "object storage cannot be pickled", hint="pass its URL, and open it in the other process"
        )

    # --- writing

    def put(self, key: str, body: Body) -> ObjectInfo:
        """Write an object, or replace the existing one. Repeating this is safe."""
        check_key(key)
        return self._put(key, _octets(body))

    def put_if_absent(self, key: str, body: Body, nonce: bytes) -> Put:
        """Write an object unless the key already has one.

        It is safe to repeat this after any failure, with the same body. `MINE` then means that an earlier try
        succeeded.

        Args:
            key: the name of the object.
            body: what to write; it contains the nonce.
            nonce: 8 or more bytes that no other writer of this key has.
        """
        check_key(key)
        body = _octets(body)
        if len(nonce) < NONCE_BYTES or nonce not in bytes(body):
            raise UsageError(
                "put_if_absent needs a nonce in the body",
                hint=f"put an id of at least {NONCE_BYTES} bytes, unique to this writer, into the body",
            )
        for _ in range(_ROUNDS):
            if self._create(key, body):
                return Put.CREATED
            try:
                if self._head(key).size != len(body):
                    return Put.OTHER
                return Put.MINE if self._get(key)[0] == body else Put.OTHER
            except ObjectMissing:
                continue  # deleted in between, or a folder: see below
        raise ObjectConflict(
            f"{key!r} exists, but cannot be read",
            hint="check whether the key is a folder that contains other objects, or whether another process"
            " keeps deleting the object",
        )

    def put_if_match(self, key: str, body: Body, etag: str) -> ObjectInfo:
        """Replace the object with this ETag; raise `ObjectConflict` if it was changed or deleted.

        Put a new nonce into the body for each write, as the module's docstring explains. A conflict means
        that the object does not have our body now. If an earlier response was lost, the object may have had
        our body for a while.
        """
        check_key(key)
        if not self.supports_if_match:
            raise UsageError(
                f"{self.url} does not support conditional replacement",
                hint="use put_if_absent with a new key per version",
            )
        if not etag:
            raise UsageError(
                "put_if_match needs an ETag", hint="use the ETag from head, get, list or the last put"
            )
        return self._put_if_match(key, _octets(body), etag)

    def delete(self, key: str) -> None:
        """Delete an object if it exists."""
        check_key(key)
        self._delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects. After an error some are deleted and some are not; repeating it is safe."""
        rest = iter(keys)
        while page := list(islice(rest, 1000)):
            for key in page:
                check_key(key)
            self._delete_many(page)

    # --- reading

    def get(self, key: str) -> tuple[bytes, ObjectInfo]:
        """Read the body of an object. Raise `ObjectMissing` if there is none."""
        check_key(key)
        return self._get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read bytes from start to start + length.

        If the object ends before that, return fewer bytes, or none.
        """
        return self.get_ranges(key, [(start, length)])[0]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Bodies:
        """Read several ranges (start, length) of one object. Nearby ranges may be fetched together."""
        check_key(key)
        for start, length in ranges:
            if start < 0 or length < 1:
                raise UsageError(
                    f"invalid range: start {start}, length {length}", hint="use start >= 0 and length >= 1"
                )
        return self._get_ranges(key, ranges) if ranges else []

    def head(self, key: str) -> ObjectInfo:
        """Read the metadata of an object. Raise `ObjectMissing` if there is none."""
        check_key(key)
        return self._head(key)

    def list(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, ahead: bool = True
    ) -> Iterator[ObjectInfo]:
        """List the objects whose key begins with `prefix` and sorts after `after`, in key order.

        Args:
            prefix: the first characters of the keys, as on S3; end it with `/` to list a folder.
            after: list only keys after this one, which need not exist.
            limit: the maximum number of objects to list.
            ahead: fetch the next page while the caller reads the current one. If False, fetch each page only
                when the caller reaches it.
        """
        check_prefix(prefix)
        if limit is not None and limit < 0:
            raise UsageError(f"invalid limit={limit}", hint="use 0 or more, or None for no limit")
        return islice(self._list(prefix, after) if ahead else self._list_lazily(prefix, after), limit)

    def list_foreign(
        self, skip: Callable[[str, str], None], prefix: str = "", *, after: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List objects like `list`, where other programs may write too. Pass invalid names to `skip`.

        Args:
            skip: called with the name and the reason. If the provider does not report the name, the first
                argument is the folder.
            prefix: as in `list`.
            after: as in `list`.
        """
        check_prefix(prefix)
        return self._list_foreign(prefix, after, skip)

    # --- the backend

    def _list_lazily(self, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
        return self._list(prefix, after)

    def _list_foreign(
        self, prefix: str, after: str | None, skip: Callable[[str, str], None]
    ) -> Iterator[ObjectInfo]:
        return self._list(prefix, after)

    @abstractmethod
    def _put(self, key: str, body: Body) -> ObjectInfo: ...

    @abstractmethod
    def _create(self, key: str, body: Body) -> bool:
        """Create an object. Return False if one already exists, which may be ours."""

    @abstractmethod
    def _put_if_match(self, key: str, body: Body, etag: str) -> ObjectInfo: ...

    @abstractmethod
    def _get(self, key: str) -> tuple[bytes, ObjectInfo]: ...

    @abstractmethod
    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Bodies: ...

    @abstractmethod
    def _head(self, key: str) -> ObjectInfo: ...

    @abstractmethod
    def _list(self, prefix: str, after: str | None) -> Iterator[ObjectInfo]: ...

    @abstractmethod
    def _delete_many(self, keys: Sequence[str]) -> None: ...


def _octets(body: Body) -> Body:
    """Return the body as an object whose length is its size in bytes."""
    return body.cast("B") if isinstance(body, memoryview) else body
