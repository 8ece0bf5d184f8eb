"""Count the deaths of runners during jobs that are neither futures nor runs: polls and compactions.

A record that ends the process while a source converts it, or a lot that ends Spark while it is compacted,
would otherwise do so for ever: each new runner would start the same job again. So a runner marks such a job
in the store before it starts. The mark names the node and its epoch. A node that finds its own mark of an
earlier epoch, or the mark of a dead node, counts a death. A success resets the count of its node. After too
many deaths in a row, a node does not start the job again.

Each node has its own count, because nodes may share a topic: only some of them read the bad record. The mark
of a source stays while the runner polls it. So a poll costs one read of the store, and no write.
"""

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.runner.keys import RunnerKeys
from tidemill.store import Tx

MOST_DEATHS = 10
"""A source is not polled any more after this many deaths in a row. Runs and futures have the same limit."""

MOST_COMPACTION_DEATHS = 3
"""A lot is not compacted any more after this many deaths. Nothing is lost: compaction is optional."""


class NodeMark(msgspec.Struct, frozen=True, array_like=True):
    """A node that runs a job, and how many times in a row it died while it ran the job."""

    epoch: int
    deaths: int = 0


_decoder = msgspec.msgpack.Decoder(dict[str, NodeMark])


def read(tx: Tx, keys: RunnerKeys, name: str) -> dict[str, NodeMark]:
    """Return the marks of a job, by the ids of the nodes that run it."""
    raw = tx.get(keys.job[name])
    return {} if raw is None else _decoder.decode(raw)


def deaths(tx: Tx, keys: RunnerKeys, name: str) -> int:
    """Return how many times in a row a node died while it ran a job."""
    return max((mark.deaths for mark in read(tx, keys, name).values()), default=0)


def begin(tx: Tx, keys: RunnerKeys, cluster: ClusterKeys, node: Node, name: str) -> int:
    """Mark a job as run by this node; return how many times in a row it died while it ran the job.

    The deaths of nodes that are gone for good count for this node, which takes over their work.
    """
    marks = read(tx, keys, name)
    gone = {
        other: mark
        for other, mark in marks.items()
        if other != node.id and not nodes.is_alive(tx, cluster, other, mark.epoch)
    }
    own = marks.get(node.id)
    if own is not None and own.epoch == node.epoch and not gone:
        return own.deaths
    counts = [mark.deaths + 1 for mark in gone.values()]
    if own is not None:
        counts.append(own.deaths + (own.epoch != node.epoch))
    new = NodeMark(node.epoch, max(counts, default=0))
    kept = {other: mark for other, mark in marks.items() if other not in gone}
    _write(tx, keys, name, kept | {node.id: new})
    return new.deaths


def succeed(tx: Tx, keys: RunnerKeys, node: Node, name: str) -> None:
    """Reset the count of this node, because it has run the job without dying."""
    marks = read(tx, keys, name)
    own = marks.get(node.id)
    if own is not None and own.epoch == node.epoch and own.deaths:
        _write(tx, keys, name, marks | {node.id: NodeMark(node.epoch)})


def end(tx: Tx, keys: RunnerKeys, node: Node, name: str) -> None:
    """Remove the mark of this node, because the job has ended or the node stops.

    The mark of a job that is not started any more stays.
    """
    marks = read(tx, keys, name)
    own = marks.get(node.id)
    if own is not None and own.epoch == node.epoch and own.deaths < MOST_DEATHS:
        _write(tx, keys, name, {other: mark for other, mark in marks.items() if other != node.id})


def forgive(tx: Tx, keys: RunnerKeys, name: str) -> None:
    """Reset all counts, after a user has fixed the cause."""
    marks = read(tx, keys, name)
    if any(mark.deaths for mark in marks.values()):
        _write(tx, keys, name, {node: NodeMark(mark.epoch) for node, mark in marks.items()})


def _write(tx: Tx, keys: RunnerKeys, name: str, marks: dict[str, NodeMark]) -> None:
    if marks:
        tx.set(keys.job[name], msgspec.msgpack.encode(marks), quiet=True)
    else:
        tx.clear(keys.job[name], quiet=True)
