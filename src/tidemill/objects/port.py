"""Object storage: named, immutable bodies. Data lies here; what is true of it is in the store.

Contract, the same on every backend (`tidemill.testing.objects_conformance` is its executable form):

- A body appears whole or not at all, and what was answered survives a crash of the machine.
- Reads see the last write that was answered, listings included.
- `put_if_absent` creates an object exactly once, however many try: it answers `Put.CREATED`, `Put.MINE` or
  `Put.OTHER`.
- `list` goes by key: the byte order of the whole key, from behind any key.
- Deleting what is not there is no error.
- A key is a key on every backend or on none (`tidemill.objects.key`). One exception: whether `a` and `a/b`
  can both be objects is up to the provider. Local files refuse the second (`BadKey`): do not rely on it.

**Mine or other.** A PUT whose answer was lost may have landed, and the repeated PUT then finds an object. It
is ours exactly when its bytes are the bytes we sent. That holds if no two writers send equal bodies, so the
body carries a *nonce*: bytes that only this writer has, e.g. the id of its attempt. `put_if_absent` asks for
the nonce and refuses a body without it; objects stay plain files that anything can read. Repeat with the
same body: a body that was built again, with another time in it, is another body.

**ETags.** Providers take the MD5 of the body, so equal bodies have equal etags and an object that went from
A to B and back to A matches. The nonce settles that as well: give bodies for `put_if_match` one of their own
per write.

All checks live here, above the backends; a backend implements the methods that begin with an underscore.
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

NONCE_BYTES = 8  # fewer could be drawn twice
_ROUNDS = 5  # of: it exists, but it is gone when we look


class Put(enum.Enum):
    """What `put_if_absent` found."""

    CREATED = "created"
    """There was nothing; now there is our object."""
    MINE = "mine"
    """Our object is there already: an earlier try of the same put landed."""
    OTHER = "other"
    """Somebody else's object is there and was not touched."""


class Info(NamedTuple):
    """What a storage says of one object.

    `etag` is opaque and changes with the bytes. `modified_at` (seconds since 1970) is the storage's time; in
    the answer of a put it is this machine's, because providers do not say. Judge no lease by it.
    """

    key: str
    size: int
    etag: str
    modified_at: float


class Objects(ABC):
    """One root in one object storage. Safe to share between threads; open it again in another process.

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
        """Where this is, with secrets blotted out (STO-14): for people, not for opening it again."""

    @property
    @abstractmethod
    def supports_if_match(self) -> bool:
        """Whether `put_if_match` can be used."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def __reduce__(self) -> NoReturn:
        # a pickle would carry the secrets of the URL to wherever it is stored
        raise UsageError(
            "object storage cannot be pickled", hint="pass its URL, and open it where it is used"
        )

    # --- writing

    def put(self, key: str, body: Body) -> Info:
        """Write an object, replacing what is there. May be repeated, also by us when an answer is lost."""
        check_key(key)
        return self._put(key, _octets(body))

    def put_if_absent(self, key: str, body: Body, nonce: bytes) -> Put:
        """Write an object unless there is one.

        Safe to repeat after any failure, with the same body: then `MINE` says that it had landed.

        Args:
            key: its name.
            body: what to write; contains the nonce.
            nonce: bytes that no other writer of this key has, 8 or more.
        """
        check_key(key)
        body = _octets(body)
        if len(nonce) < NONCE_BYTES or nonce not in bytes(body):
            raise UsageError(
                "put_if_absent needs a nonce in the body",
                hint=f"write an id that only this writer has ({NONCE_BYTES} bytes or more) into the body",
            )
        for _ in range(_ROUNDS):
            if self._create(key, body):
                return Put.CREATED
            try:
                if self._head(key).size != len(body):
                    return Put.OTHER
                return Put.MINE if self._get(key)[0] == body else Put.OTHER
            except ObjectMissing:
                continue  # deleted between the two, or a folder: see below
        raise ObjectConflict(
            f"something is at {key!r} that cannot be read",
            hint="a key cannot also be a folder of other keys; or it is deleted as fast as it is written",
        )

    def put_if_match(self, key: str, body: Body, etag: str) -> Info:
        """Replace the object that has this etag; `ObjectConflict` if it has another or is gone.

        The body carries a nonce of its own for each write, see above. A conflict says that our body is not
        there now; after a lost answer it may have been there for a while.
        """
        check_key(key)
        if not self.supports_if_match:
            raise UsageError(
                f"no conditional replacement on {self.url}",
                hint="use put_if_absent with a new key per version",
            )
        if not etag:
            raise UsageError(
                "put_if_match needs an etag", hint="take it from head, get, list or the last put"
            )
        return self._put_if_match(key, _octets(body), etag)

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens when there is none."""
        check_key(key)
        self._delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects. After an error some are gone and some are not; may be repeated."""
        rest = iter(keys)
        while page := list(islice(rest, 1000)):
            for key in page:
                check_key(key)
            self._delete_many(page)

    # --- reading

    def get(self, key: str) -> tuple[bytes, Info]:
        """The body of an object; `ObjectMissing` when there is none."""
        check_key(key)
        return self._get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes start to start + length: fewer at the end of the object, none behind it."""
        return self.get_ranges(key, [(start, length)])[0]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Bodies:
        """Several ranges (start, length) of one object at once; near ones may be fetched together."""
        check_key(key)
        for start, length in ranges:
            if start < 0 or length < 1:
                raise UsageError(
                    f"not a range: start {start}, length {length}", hint="start >= 0, length >= 1"
                )
        return self._get_ranges(key, ranges) if ranges else []

    def head(self, key: str) -> Info:
        """What there is to know of an object without its body; `ObjectMissing` when there is none."""
        check_key(key)
        return self._head(key)

    def list(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None, ahead: bool = True
    ) -> Iterator[Info]:
        """Objects whose key begins with `prefix` and sorts behind `after`, in key order, read as you go.

        Args:
            prefix: as on S3 just characters; end it with `/` to mean a folder.
            after: the last key you have had; it need not exist.
            limit: stop after so many.
            ahead: let a provider look for the next page while one is gone through; without it no request is
                made whose answer nobody reads.
        """
        check_prefix(prefix)
        if limit is not None and limit < 0:
            raise UsageError(f"not a limit: {limit}", hint="0 or more, or None for all")
        return islice(self._list(prefix, after) if ahead else self._list_lazily(prefix, after), limit)

    def list_foreign(
        self, skip: Callable[[str, str], None], prefix: str = "", *, after: str | None = None
    ) -> Iterator[Info]:
        """As `list`, of a place that others write to: names that are no keys are told of and passed over.

        Args:
            skip: told the name, or the folder it is in where a provider says no more, and what is wrong.
            prefix: as in `list`.
            after: as in `list`.
        """
        check_prefix(prefix)
        return self._list_foreign(prefix, after, skip)

    # --- the backend

    def _list_lazily(self, prefix: str, after: str | None) -> Iterator[Info]:
        return self._list(prefix, after)

    def _list_foreign(
        self, prefix: str, after: str | None, skip: Callable[[str, str], None]
    ) -> Iterator[Info]:
        return self._list(prefix, after)

    @abstractmethod
    def _put(self, key: str, body: Body) -> Info: ...

    @abstractmethod
    def _create(self, key: str, body: Body) -> bool:
        """True when the object was created now; False when something is there (perhaps ours)."""

    @abstractmethod
    def _put_if_match(self, key: str, body: Body, etag: str) -> Info: ...

    @abstractmethod
    def _get(self, key: str) -> tuple[bytes, Info]: ...

    @abstractmethod
    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Bodies: ...

    @abstractmethod
    def _head(self, key: str) -> Info: ...

    @abstractmethod
    def _list(self, prefix: str, after: str | None) -> Iterator[Info]: ...

    @abstractmethod
    def _delete_many(self, keys: Sequence[str]) -> None: ...


def _octets(body: Body) -> Body:
    """The body as something whose length is its size in bytes."""
    return body.cast("B") if isinstance(body, memoryview) else body
