"""Which node holds which claims and leases now, and how far the pipeline is: read from the store alone."""

from typing import NamedTuple

import msgspec

from tidemill.arcs import rows as arc_rows
from tidemill.arcs.keys import ArcKeys
from tidemill.cluster import leases, nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.lots import events
from tidemill.pipeline.context import PipelineContext
from tidemill.sources.keys import SourceKeys
from tidemill.store import Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.subscriptions import Scheduled


class Holdings(NamedTuple):
    """The live nodes by their number of threads, and what each node holds, by its id.

    A holding is `claim …` (a part), `lot …` (a lot of an arc), `run …` (of an arc or a group of views) or
    `lease …`. The entry of a node in the node list is a lease too.

    - known: False if the store did not answer.
    """

    alive: dict[int, Node]
    held: dict[str, list[str]]
    known: bool = True

    def entry(self, threads: int, started_at_us: int) -> Node | None:
        """Return the entry of the node with this number of threads, if the process that runs now wrote it."""
        node = self.alive.get(threads)
        return node if node is not None and node.started_at >= started_at_us else None


def read(tx: Tx, cluster: str) -> Holdings:
    """Read the node list, claims, running lots, runs and leases."""
    now, keys = tx.now(), ClusterKeys(cluster)
    listed = [node for node in nodes.read_all(tx, keys) if node.kind == "runner" and node.expires_at > now]
    alive = {node.slots: node for node in sorted(listed, key=lambda node: node.started_at)}
    held = {node.id: ["lease node list"] for node in listed}
    futures, arcs, triggers = FutureKeys(cluster), ArcKeys(cluster), TriggerKeys(cluster)
    for row in tx.range(*futures.own.all(), snapshot=True):
        node, future_id = futures.own.unpack(row.key)
        assert isinstance(future_id, bytes)
        held.setdefault(str(node), []).append(f"claim {future_id.hex()[:12]}")
    for row in tx.range(*arcs.running.all(), snapshot=True):
        arc, lot, _ = arcs.running.unpack(row.key)
        holder = arc_rows.decode_holder(row.value)
        held.setdefault(holder.node, []).append(f"lot {arc} {lot}")
    for row in tx.range(*triggers.subscription.all(), snapshot=True):
        subscription = subscriptions.decode(row.value)
        if isinstance(subscription, Scheduled) and subscription.run is not None:
            name = triggers.subscription.unpack(row.key)[0]
            held.setdefault(subscription.run.node, []).append(f"run {name}")
    for row in tx.range(*keys.lease.all(), snapshot=True):
        lease = leases.decode(row.value)
        if lease.expires_at > now:
            name = " ".join(map(str, keys.lease.unpack(row.key)))
            held.setdefault(lease.holder, []).append(f"lease {name}")
    return Holdings(alive, held)


class Progress(NamedTuple):
    """How many lots and view steps are published."""

    lots: int
    steps: int


def progress(tx: Tx, context: PipelineContext) -> Progress:
    """Count the events of all datasets, and the commits of all groups of views."""
    keys = context.keys
    lots = steps = 0
    for row in tx.range(*keys.lots.head.all(), snapshot=True):
        name = str(keys.lots.head.unpack(row.key)[0])
        if ":" not in name:
            lots += msgspec.msgpack.decode(row.value, type=int)
    for group in {str(keys.group.unpack(row.key)[1]) for row in tx.range(*keys.group.all(), snapshot=True)}:
        steps += len(tx.range(*keys.step.under("soak", group), snapshot=True))
    return Progress(lots, steps)


def dead(tx: Tx, cluster: str) -> list[str]:
    """Return the nodes that are dead, but whose entries or shares of a topic are not removed yet."""
    listed = nodes.read_all(tx, ClusterKeys(cluster))
    names = {node.id for node in listed}
    members = SourceKeys(cluster).member
    readers = [str(members.unpack(row.key)[1]) for row in tx.range(*members.all())]
    return [node.id for node in listed if node.expires_at <= tx.now()] + [
        name for name in readers if name not in names
    ]


def backlog(tx: Tx, context: PipelineContext) -> int:
    """Return how many lots the arcs have not processed yet."""
    keys, total = context.keys, 0
    for row in tx.range(*keys.triggers.subscription.all(), snapshot=True):
        if str(keys.triggers.subscription.unpack(row.key)[0]).startswith("arc:"):
            seen = subscriptions.decode(row.value).tally.seen
            heads = events.heads(tx, keys.lots, tuple(seen))
            total += sum(max(0, heads[source] - position) for source, position in seen.items())
    return total
