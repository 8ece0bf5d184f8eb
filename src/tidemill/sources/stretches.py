"""Stretches: a listing that is too long for one node is cut, and nodes share the pieces (CLU-21).

Each stretch of paths is a partition of the cluster: a node that looks takes whichever is due and free, lists
it, and hands it back; what a dead node held is anybody's when its lease has run out, and a node that joins
helps itself. Two nodes that look at one path all the same take each file once (`windows.add`).

The stretches are made by one listing that only counts, and made anew when one of them has grown to several
times its share. A generation of stretches has a group of its own: nobody mistakes an old one for a new one.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tidemill.cluster import partitions
from tidemill.cluster.partitions import Map, Partition
from tidemill.sources.declarations import MOST_STRETCHES
from tidemill.sources.keys import SourceKeys
from tidemill.store import Tx

GROWN = 3
"""A stretch with so many times its share of files is cut again."""

LEAST_FILES = 1000
"""A share as small as that is never cut."""


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Paths with after < path <= until; the last stretch has no end."""

    after: str
    until: str | None


class Arranged(msgspec.Struct, frozen=True, array_like=True):
    """The present stretches of a source, and how many files there were when they were made."""

    generation: int
    stretches: int
    files: int


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """When a stretch was last looked at (store time, µs, of the look's begin), and how many files it had."""

    at: int
    listed: int


def cut(paths: Iterable[str], stretches: int) -> tuple[list[Stretch], int]:
    """Stretches with about equally many of these paths, which are sorted, and how many paths there are.

    Keeps some hundreds of them, however many there are: every n-th, n being doubled when they get too many.
    """
    kept: list[str] = []
    every, count = 1, 0
    for path in paths:
        count += 1
        if count % every == 0:
            kept.append(path)
            if len(kept) >= 16 * MOST_STRETCHES:
                kept, every = kept[1::2], every * 2
    wanted = max(1, min(stretches, MOST_STRETCHES, count // LEAST_FILES + 1, len(kept)))
    ends = [kept[len(kept) * place // wanted - 1] for place in range(1, wanted)]
    return [Stretch(after, until) for after, until in zip(["", *ends], [*ends, None], strict=True)], count


def read(tx: Tx, keys: SourceKeys, source: str) -> Arranged | None:
    """The present stretches, if any were made."""
    raw = tx.get(keys.arranged[source])
    return None if raw is None else msgspec.msgpack.decode(raw, type=Arranged)


def arrange(
    tx: Tx, keys: SourceKeys, source: str, stretches: Sequence[Stretch], files: int, known: Arranged | None
) -> Arranged:
    """Replace the stretches; what others arranged meanwhile stays instead."""
    present = read(tx, keys, source)
    if present != known:
        assert present is not None
        return present
    new = Arranged((known.generation if known else 0) + 1, len(stretches), files)
    if known is not None:
        old = group(source, known.generation)
        cluster = keys.publish.cluster
        for space in (cluster.part, cluster.part_expiry):
            tx.clear_range(*space.under(old))
        tx.clear_range(*keys.seen.under(source))
    payloads = {f"{place:03}": msgspec.msgpack.encode(one) for place, one in enumerate(stretches)}
    made_from = Map(node_version=0, leader_epoch=0, count=len(stretches))
    partitions.create(tx, keys.publish.cluster, group(source, new.generation), payloads, made_from)
    tx.set(keys.arranged[source], msgspec.msgpack.encode(new))
    return new


def group(source: str, generation: int) -> str:
    """The cluster's name for a generation of stretches."""
    return f"look {source} {generation}"


def due(tx: Tx, keys: SourceKeys, source: str, arranged: Arranged, since: int) -> list[str]:
    """The stretches that nobody has looked at since a moment, whoever holds them: a hint and no more."""
    seen = {
        str(keys.seen.unpack(row.key)[2])
        for row in tx.range(*keys.seen.under(source, arranged.generation), snapshot=True)
        if msgspec.msgpack.decode(row.value, type=Seen).at > since
    }
    return [name for place in range(arranged.stretches) if (name := f"{place:03}") not in seen]


def take(
    tx: Tx, keys: SourceKeys, source: str, arranged: Arranged, name: str, holder: str, since: int, ttl_us: int
) -> Partition | None:
    """Hold a stretch, unless somebody does or has looked at it meanwhile."""
    raw = tx.get(keys.seen[source, arranged.generation, name])
    if raw is not None and msgspec.msgpack.decode(raw, type=Seen).at > since:
        return None
    part_group = group(source, arranged.generation)
    return partitions.take(tx, keys.publish.cluster, part_group, name, holder, ttl_us)


def stretch_of(part: Partition) -> Stretch:
    """What a held partition means."""
    return msgspec.msgpack.decode(part.payload, type=Stretch)


def finish(
    tx: Tx, keys: SourceKeys, source: str, arranged: Arranged, part: Partition, began: int, listed: int
) -> bool:
    """Hand a stretch back, looked at; True when it has grown so much that stretches should be made anew."""
    partitions.hand_back(tx, keys.publish.cluster, part)
    seen = msgspec.msgpack.encode(Seen(began, listed))
    tx.set(keys.seen[source, arranged.generation, part.id], seen, quiet=True)
    return listed > max(LEAST_FILES, GROWN * max(1, arranged.files // arranged.stretches))
