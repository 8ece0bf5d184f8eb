"""Keep the heap in object storage: one immutable object per item, named after the item (HEAP-9, HEAP-19).

    heap/v1/shard=NN/{minute}/{subscription}.{epoch}

A push creates the object unless it exists. No object is ever rewritten, so schedulers cannot undo each
other's work. A delete needs no condition, because an epoch is never used again. Names sort by time, so a
listing finds the due items with one request per 1,000 items, without reading their bodies.

Each shard is listed separately. With more shards, more schedulers can write at the same time, but a listing
takes at least one request per shard.

The minutes are store time. Objects that are not items are ignored and reported.
"""

import heapq
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from tidemill.errors import ObjectMissing, UsageError
from tidemill.events import Emit, ignore
from tidemill.lots.layout import quote, unquoted
from tidemill.objects import Objects
from tidemill.triggers.events import StrangeKey
from tidemill.triggers.heap import MINUTE_US, Heap, Item

ROOT = "heap/v1"
THREADS = 16  # concurrent pushes; each is a round trip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORM = "%Y-%m-%dT%H:%MZ"


class ObjectHeap(Heap):
    """A heap in an object storage.

    Args:
        objects: the object storage.
        shards: the number of folders that subscriptions are distributed over; the same for all runners.
        emit: receives an event for each key that is not an item.
    """

    def __init__(self, objects: Objects, *, shards: int = 1, emit: Emit = ignore) -> None:
        if not 1 <= shards <= 100:
            raise UsageError(f"invalid number of heap shards: {shards}", hint="use 1 to 100")
        self._objects = objects
        self._shards = shards
        self._emit = emit
        self._reported: set[str] = set()

    @property
    def form(self) -> str:
        return f"objects, {self._shards} shards"

    def push(self, items: Sequence[Item]) -> None:
        if len(items) == 1:
            self._create(items[0])
        elif items:
            with ThreadPoolExecutor(min(THREADS, len(items))) as threads:
                list(threads.map(self._create, items))

    def _create(self, item: Item) -> None:
        # Every push of an item writes the same bytes, so an existing object is fine.
        body = f"{item.name} {item.epoch:012d} {item.at}".encode()
        self._objects.put_if_absent(self.key(item), body, body)

    def listed(self, lo_us: int, hi_us: int) -> Iterator[Item]:
        lists = [self._shard(shard, lo_us, hi_us) for shard in range(self._shards)]
        return lists[0] if len(lists) == 1 else heapq.merge(*lists)

    def _shard(self, shard: int, lo_us: int, hi_us: int) -> Iterator[Item]:
        prefix = f"{ROOT}/shard={shard:02d}/"
        # If `after` were the name of a folder, servers that list by folder would skip the folder's content.
        after = prefix + minute(lo_us)[:-1] if lo_us > 0 else None
        for info in self._objects.list(prefix, after=after, ahead=False):
            item = parse(info.key)
            if item is None:
                self._report(info.key)
            elif item.at >= hi_us:
                return
            elif item.at >= lo_us // MINUTE_US * MINUTE_US:
                yield item

    def _report(self, key: str) -> None:
        if key not in self._reported and len(self._reported) < 1000:
            self._reported.add(key)
            self._emit(StrangeKey(key=key))

    def has(self, item: Item) -> bool:
        try:
            self._objects.head(self.key(item))
        except ObjectMissing:
            return False
        return True

    def remove(self, items: Sequence[Item]) -> None:
        self._objects.delete_many([self.key(item) for item in items])

    def key(self, item: Item) -> str:
        """Return the key of an item."""
        shard = zlib.crc32(item.name.encode()) % self._shards
        return f"{ROOT}/shard={shard:02d}/{minute(item.at)}/{quote(item.name)}.{item.epoch:012d}"


def minute(at: int) -> str:
    """Format the minute of a time for a key.

    >>> minute(90_000_000)
    '1970-01-01T00:01Z'
    """
    # strftime omits the leading zeros of years before 1000 on some systems.
    moment = _EPOCH + timedelta(microseconds=at)
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M}Z"


def parse(key: str) -> Item | None:
    """Parse an item from its key, with the time rounded down to the minute; None if it is not an item.

    >>> parse("heap/v1/shard=00/1970-01-01T00:01Z/clean.000000000007")
    Item(at=60000000, name='clean', epoch=7)
    """
    parts = key.removeprefix(ROOT + "/").split("/")
    if len(parts) != 3:
        return None
    name, dot, epoch = parts[2].rpartition(".")
    try:
        moment = datetime.strptime(parts[1], _FORM).replace(tzinfo=UTC)
        at = (moment - _EPOCH) // timedelta(microseconds=1)
        item = Item(at, unquoted(name), int(epoch))
        exact = f"{minute(at)}/{quote(item.name)}.{item.epoch:012d}" == "/".join(parts[1:])
    except (ValueError, UnicodeError):
        return None
    return item if dot and exact and at % MINUTE_US == 0 else None
