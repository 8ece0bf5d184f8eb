"""The base class of the tests of object storage."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from tidemill.objects import Objects

_numbers = itertools.count()


class ObjectLaws:
    """The base of the suite: a fixture `objects`, empty for each test, and what differs between backends."""

    etags_differ: ClassVar[bool] = True
    """False where the etag is a digest of the body, so that equal bytes written twice have one etag."""

    race_width: ClassVar[int] = 8
    """How many threads race for one object."""
    race_rounds: ClassVar[int] = 12
    """For how many objects, one after the other."""

    @pytest.fixture
    def objects(self) -> Objects:
        """Overridden by each backend: a fresh, empty root."""
        raise pytest.UsageError(f"{type(self).__name__} has no fixture `objects`")

    @pytest.fixture
    def objects_url(self) -> str | None:
        """Overridden where another process can open the same root: its URL, with its secrets."""
        return None


def nonce() -> bytes:
    """A nonce that no other writer of this run has."""
    return b"nonce-%012d" % next(_numbers)


def keys(
    objects: Objects, prefix: str = "", *, after: str | None = None, limit: int | None = None
) -> list[str]:
    """The keys of a listing."""
    return [info.key for info in objects.list(prefix, after=after, limit=limit)]


def fill(objects: Objects, names: list[str]) -> None:
    """Put objects whose body is their key, several at a time."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: objects.put(name, name.encode()), names))
