"""Objects in memory: the strictest reading of the contract, for simulation and tests."""

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from tidemill.clock import Clock
from tidemill.errors import BadKey, ObjectConflict, ObjectMissing
from tidemill.objects.port import Bodies, Body, Info, Objects

Fault = Callable[[Literal["before", "after"], str, str], None]
"""Called with (moment, operation, key). Raising before loses the request, raising after the answer."""


def no_fault(moment: Literal["before", "after"], operation: str, key: str) -> None:
    """The fault of those who want none."""


class MemoryObjects(Objects):
    """A dictionary with a sorted list of its keys. Gone with the process, and private to it.

    Args:
        clock: says when an object was modified.
        fault: lets simulation lose requests and answers.
    """

    def __init__(self, clock: Clock, *, fault: Fault = no_fault) -> None:
        self._clock = clock
        self._fault = fault
        self._lock = threading.Lock()
        self._bodies: dict[str, tuple[bytes, Info]] = {}
        self._keys: list[str] = []
        self._writes = 0

    @property
    def url(self) -> str:
        return "memory://"

    @property
    def supports_if_match(self) -> bool:
        return True

    def _put(self, key: str, body: Body) -> Info:
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

    def _put_if_match(self, key: str, body: Body, etag: str) -> Info:
        self._fault("before", "put_if_match", key)
        with self._lock:
            there = self._bodies.get(key)
            if there is None or there[1].etag != etag:
                raise ObjectConflict(f"{key!r} is not the object with etag {etag}")
            info = self._write(key, body)
        self._fault("after", "put_if_match", key)
        return info

    def _write(self, key: str, body: Body) -> Info:
        if key not in self._bodies:
            self._refuse_folders(key)
            insort(self._keys, key)
        self._writes += 1
        info = Info(key, len(body), f"{self._writes}", self._clock.wall())
        self._bodies[key] = bytes(body), info
        return info

    def _refuse_folders(self, key: str) -> None:
        at = bisect_left(self._keys, key + "/")
        if at < len(self._keys) and self._keys[at].startswith(key + "/"):
            raise BadKey(f"{key!r} is a folder of other objects")
        folder = key
        while folder := folder.rpartition("/")[0]:
            if folder in self._bodies:
                raise BadKey(f"{key!r} would lie inside the object {folder!r}")

    def _get(self, key: str) -> tuple[bytes, Info]:
        self._fault("before", "get", key)
        with self._lock:
            there = self._bodies.get(key)
        if there is None:
            raise ObjectMissing(f"no object {key!r} in {self.url}")
        return there

    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Bodies:
        body, _ = self._get(key)
        return [body[start : start + length] for start, length in ranges]

    def _head(self, key: str) -> Info:
        return self._get(key)[1]

    def _list(self, prefix: str, after: str | None) -> Iterator[Info]:
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
