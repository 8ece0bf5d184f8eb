"""Objects in memory: the strictest implementation of `Objects`, for simulation and tests."""

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from tidemill.clock import Clock
from tidemill.errors import BadKey, ObjectConflict, ObjectMissing
from tidemill.objects.port import Bodies, Body, ObjectInfo, Objects

Fault = Callable[[Literal["before", "after"], str, str], None]
"""Called with (moment, operation, key).

An error raised at the moment "before" simulates a lost request; an error at "after", a lost response.
"""


def no_fault(moment: Literal["before", "after"], operation: str, key: str) -> None:
    """Inject no fault."""


class MemoryObjects(Objects):
    """A dictionary with a sorted list of its keys, private to this process.

    Args:
        clock: for the times of modification.
        fault: lets simulation lose requests and responses.
    """

    def __init__(self, clock: Clock, *, fault: Fault = no_fault) -> None:
        self._clock = clock
        self._fault = fault
        self._lock = threading.Lock()
        self._bodies: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._keys: list[str] = []
        self._writes = 0

    @property
    def url(self) -> str:
        return "memory://"

    @property
    def supports_if_match(self) -> bool:
        return True

    def _put(self, key: str, body: Body) -> ObjectInfo:
        self._fault("before", "put", key)
        with self._lock:
            info = self._write(key, body)
        self._fault("after", "put", key)
        return info

    def _create(self, key: str, body: Body) -> bool:
        self._fault("before", "put_if_absent", key)
        with self._lock:
            absent = key not in self._bodies
            if absent:
                self._write(key, body)
        self._fault("after", "put_if_absent", key)
        return absent

    def _put_if_match(self, key: str, body: Body, etag: str) -> ObjectInfo:
        self._fault("before", "put_if_match", key)
        with self._lock:
            current = self._bodies.get(key)
            if current is None or current[1].etag != etag:
                raise ObjectConflict(f"{key!r} was changed or deleted: its ETag is no longer {etag}")
            info = self._write(key, body)
        self._fault("after", "put_if_match", key)
        return info

    def _write(self, key: str, body: Body) -> ObjectInfo:
        if key not in self._bodies:
            self._refuse_folders(key)
            insort(self._keys, key)
        self._writes += 1
        info = ObjectInfo(key, len(body), f"{self._writes}", self._clock.wall())
        self._bodies[key] = bytes(body), info
        return info

    def _refuse_folders(self, key: str) -> None:
        index = bisect_left(self._keys, key + "/")
        if index < len(self._keys) and self._keys[index].startswith(key + "/"):
            raise BadKey(f"{key!r} is a folder that contains other objects", hint="use a different key")
        folder = key
        while folder := folder.rpartition("/")[0]:
            if folder in self._bodies:
                raise BadKey(f"{key!r} is inside the object {folder!r}", hint="use a different key")

    def _get(self, key: str) -> tuple[bytes, ObjectInfo]:
        self._fault("before", "get", key)
        with self._lock:
            current = self._bodies.get(key)
        if current is None:
            raise ObjectMissing(f"{self.url} has no object {key!r}")
        return current

    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Bodies:
        body, _ = self._get(key)
        return [body[start : start + length] for start, length in ranges]

    def _head(self, key: str) -> ObjectInfo:
        return self._get(key)[1]

    def _list(self, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
        self._fault("before", "list", prefix)
        last = after
        while True:
            with self._lock:
                low = bisect_left(self._keys, prefix)
                if last is not None:
                    low = max(low, bisect_right(self._keys, last))
                page = [self._bodies[key][1] for key in self._keys[low : low + 100] if key.startswith(prefix)]
            if not page:
                return
            yield from page
            last = page[-1].key

    def _delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._fault("before", "delete", key)
            with self._lock:
                if self._bodies.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
            self._fault("after", "delete", key)
