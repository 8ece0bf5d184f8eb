"""Split a long listing into path ranges, called shards, that nodes share (CLU-21).

Each shard is a partition of the cluster. A node takes a shard that is due and free, lists it, and releases
it. When a node dies, its shards are free as soon as their leases expire. A node that joins takes some of the
free shards. If two nodes list the same path anyway, only one of them takes the file (`windows.add`).

To cut the shards, a node lists all paths once without taking files. A node cuts the shards again when one of
them has grown to several times the average size. Each cut creates a new group of partitions, so that no node
mistakes an old shard for a new one.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tidemill.cluster import partitions
from tidemill.cluster.leases import SECOND_US
from tidemill.cluster.partitions import Partition, PartitionMap
from tidemill.scope import Scope
from tidemill.sources.discovery import DiscoveryResult, FileDiscovery
from tidemill.sources.events import ListingShardDone, ListingSharded
from tidemill.sources.file_source import MOST_SHARDS
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import FileListing
from tidemill.store import Tx

GROWN = 3
"""Shards are cut again when one of them has this many times the average number of files."""

LEAST_FILES = 1000
"""A shard has at least about this many files. While it has fewer, it does not cause a new cut."""


class ListingShard(msgspec.Struct, frozen=True, array_like=True):
    """The paths with after < path <= until; `until` is None in the last shard."""

    after: str
    until: str | None


class ShardLayout(msgspec.Struct, frozen=True, array_like=True):
    """How the listing of a source is cut: the number of shards, and of files at the time of the cut."""

    generation: int
    shards: int
    files: int


class ShardListed(msgspec.Struct, frozen=True, array_like=True):
    """When the last listing of a shard began (store time, µs), and how many files the shard had."""

    at: int
    listed: int


class ShardedDiscovery:
    """One node's part in a shared listing: discovers files in the shards that are due and free.

    Args:
        source: the id of the source.
        discovery: takes the new files of a shard.
        listing: the listing to cut into shards.
        most: the maximum number of shards; there are fewer shards if there are few files.
        scope: the node. Its timing decides how long a node holds a shard without renewal.
    """

    def __init__(
        self,
        source: str,
        discovery: FileDiscovery,
        listing: FileListing,
        most: int,
        scope: Scope,
    ) -> None:
        self._source = source
        self._discovery = discovery
        self._listing = listing
        self._most = most
        self._scope = scope
        self._keys = SourceKeys(scope.cluster)
        self._holder = f"{scope.node.id}.{scope.node.epoch}"
        self._timing = scope.timing

    def discover(self, *, fresh_s: float = 0.0) -> DiscoveryResult:
        """Discover files in every free shard that no node has listed within the last `fresh_s` seconds.

        The result is `complete` if every shard has now been listed within that time, by any node.
        """
        since = self._scope.store.run(lambda tx: tx.now()) - int(fresh_s * SECOND_US)
        layout = self._scope.store.run(lambda tx: read(tx, self._keys, self._source))
        if layout is None:
            layout = self._cut(None)
        total = DiscoveryResult()
        grown = False
        listed: set[str] = set()  # needed because the store's clock can stand still between two listings
        more = True
        while more:
            names = [name for name in self._due(layout, since) if name not in listed]
            self._scope.chance.shuffle(names)  # so that nodes do not compete for the same shard
            more = False
            for name in names:
                part = self._scope.step(
                    "sources.take-shard",
                    lambda tx, name=name: take(  # type: ignore[misc]
                        tx, self._keys, self._source, layout, name, self._holder, since, self._timing.ttl_us
                    ),
                )
                if part is not None:
                    listed.add(name)
                    result, large = self._discover_shard(layout, part)
                    total, grown, more = total.merge(result), grown or large, True
        complete = listed.issuperset(self._due(layout, since))
        if grown:
            self._cut(layout)
        return total.merge(DiscoveryResult(complete=complete))

    def _due(self, layout: ShardLayout, since: int) -> list[str]:
        return self._scope.store.run(lambda tx: due(tx, self._keys, self._source, layout, since))

    def _discover_shard(self, layout: ShardLayout, part: Partition) -> tuple[DiscoveryResult, bool]:
        cluster, scope = self._keys.publish.cluster, self._scope
        began = scope.store.run(lambda tx: tx.now())
        renew_at = scope.clock.monotonic() + self._timing.every_s

        def renew() -> None:
            nonlocal renew_at
            if scope.clock.monotonic() >= renew_at:
                renew_at = scope.clock.monotonic() + self._timing.every_s
                scope.store.run(lambda tx: partitions.renew(tx, cluster, part, self._timing.ttl_us))

        def fence(tx: Tx) -> None:
            partitions.check(tx, cluster, part)

        shard = msgspec.msgpack.decode(part.payload, type=ListingShard)
        result = self._discovery.discover(after=shard.after, until=shard.until, fence=fence, each_page=renew)
        grown = scope.step(
            "sources.finish-shard",
            lambda tx: finish(tx, self._keys, self._source, layout, part, began, result.listed),
        )
        scope.emit(
            ListingShardDone(source=self._source, shard=part.id, holder=self._holder, listed=result.listed)
        )
        return result, grown

    def _cut(self, expected: ShardLayout | None) -> ShardLayout:
        paths = (file.path for file in self._listing.files(lambda *_: None))
        shards, files = cut(paths, self._most)
        layout = self._scope.step(
            "sources.cut-shards",
            lambda tx: replace(tx, self._keys, self._source, shards, files, expected),
        )
        self._scope.emit(ListingSharded(source=self._source, shards=layout.shards, files=layout.files))
        return layout


def cut(paths: Iterable[str], most: int) -> tuple[list[ListingShard], int]:
    """Cut sorted paths into shards of about equal size; return the shards and the number of paths.

    Only a sample stays in memory: every n-th path. When the sample gets too large, n doubles.
    """
    sample: list[str] = []
    every, count = 1, 0
    for path in paths:
        count += 1
        if count % every == 0:
            sample.append(path)
            if len(sample) >= 16 * MOST_SHARDS:
                sample, every = sample[1::2], every * 2
    pieces = max(1, min(most, MOST_SHARDS, count // LEAST_FILES + 1, len(sample)))
    ends = [sample[len(sample) * number // pieces - 1] for number in range(1, pieces)]
    bounds = zip(["", *ends], [*ends, None], strict=True)
    return [ListingShard(after, until) for after, until in bounds], count


def read(tx: Tx, keys: SourceKeys, source: str) -> ShardLayout | None:
    """Read the current shards, if there are any."""
    raw = tx.get(keys.shard_layout[source])
    return None if raw is None else msgspec.msgpack.decode(raw, type=ShardLayout)


def replace(
    tx: Tx,
    keys: SourceKeys,
    source: str,
    shards: Sequence[ListingShard],
    files: int,
    expected: ShardLayout | None,
) -> ShardLayout:
    """Replace the shards, unless another node has already done so; return the current layout."""
    present = read(tx, keys, source)
    if present != expected:
        assert present is not None
        return present
    layout = ShardLayout((expected.generation if expected else 0) + 1, len(shards), files)
    if expected is not None:
        old = group(source, expected.generation)
        cluster = keys.publish.cluster
        for space in (cluster.part, cluster.part_expiry):
            tx.clear_range(*space.under(old))
        tx.clear_range(*keys.shard_listed.under(source))
    payloads = {f"{number:03}": msgspec.msgpack.encode(shard) for number, shard in enumerate(shards)}
    made_from = PartitionMap(node_version=0, leader_epoch=0, count=len(shards))
    partitions.create(tx, keys.publish.cluster, group(source, layout.generation), payloads, made_from)
    tx.set(keys.shard_layout[source], msgspec.msgpack.encode(layout))
    return layout


def group(source: str, generation: int) -> str:
    """Return the name of the partition group for a generation of shards."""
    return f"look {source} {generation}"


def due(tx: Tx, keys: SourceKeys, source: str, layout: ShardLayout, since: int) -> list[str]:
    """Return the shards that no node has listed after `since`. This is a hint: another node may hold them."""
    listed = {
        str(keys.shard_listed.unpack(row.key)[2])
        for row in tx.range(*keys.shard_listed.under(source, layout.generation), snapshot=True)
        if msgspec.msgpack.decode(row.value, type=ShardListed).at > since
    }
    return [name for number in range(layout.shards) if (name := f"{number:03}") not in listed]


def take(
    tx: Tx,
    keys: SourceKeys,
    source: str,
    layout: ShardLayout,
    name: str,
    holder: str,
    since: int,
    ttl_us: int,
) -> Partition | None:
    """Take a shard; return None if another node holds it or has listed it after `since`."""
    raw = tx.get(keys.shard_listed[source, layout.generation, name])
    if raw is not None and msgspec.msgpack.decode(raw, type=ShardListed).at > since:
        return None
    part_group = group(source, layout.generation)
    return partitions.take(tx, keys.publish.cluster, part_group, name, holder, ttl_us)


def finish(
    tx: Tx, keys: SourceKeys, source: str, layout: ShardLayout, part: Partition, began: int, listed: int
) -> bool:
    """Release a shard that was listed; return whether it has grown so much that shards must be cut again."""
    partitions.hand_back(tx, keys.publish.cluster, part)
    row = msgspec.msgpack.encode(ShardListed(began, listed))
    tx.set(keys.shard_listed[source, layout.generation, part.id], row, quiet=True)
    return listed > max(LEAST_FILES, GROWN * max(1, layout.files // layout.shards))
