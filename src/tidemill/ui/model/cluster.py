"""The cluster: nodes, leases and claims, the heap, and subscriptions."""

from functools import partial

from tidemill.cluster import node_list
from tidemill.cluster.node_list import NodeLine
from tidemill.store import Tx
from tidemill.triggers import listing
from tidemill.ui.model.answers import ClusterDetail, NodeAnswer, TriggerPage
from tidemill.ui.model.overview import MOST_TRIGGERS, all_triggers, describe_trigger
from tidemill.ui.model.reader import StoreReader

MOST_NODES = 500
MOST_CLAIMS = 1_000


def detail(reader: StoreReader) -> ClusterDetail:
    """Describe the nodes, the heap and the schedules of the cluster."""
    nodes = reader.run(partial(node_list.read, keys=reader.keys.cluster))
    order = {"live": 0, "draining": 1, "gone": 2}
    nodes.sort(key=lambda node: (order[node.state], node.kind == "client", node.id))
    overview = listing.overview(reader.store, reader.keys.triggers)
    return ClusterDetail(
        cluster=reader.cluster,
        leader=next((node.id for node in nodes if node.leader), ""),
        nodes=tuple(_node(reader, node) for node in nodes[:MOST_NODES]),
        heap=overview.heap,
        heap_lag_s=overview.lag_s,
        rebuilding=overview.rebuilding,
        templates=tuple(f"{row.name}: {row.reads} → {row.writes or '-'}" for row in overview.templates),
        schedules=tuple(
            f"{row.schedule.name}: {row.schedule.expression} {row.schedule.zone}"
            for row in overview.schedules
        ),
    )


def triggers(reader: StoreReader, name: str = "", after: str = "", limit: int = 100) -> TriggerPage:
    """Return a page of subscriptions; `name` is a part of their names."""
    infos = [info for info in all_triggers(reader, name, MOST_TRIGGERS) if info.name > after]
    items = tuple(describe_trigger(info) for info in infos[:limit])
    return TriggerPage(items=items, next=infos[limit - 1].name if len(infos) > limit else "")


def _node(reader: StoreReader, node: NodeLine) -> NodeAnswer:
    def claims(tx: Tx) -> int:
        return len(tx.range(*reader.futures.own.under(node.id), limit=MOST_CLAIMS, snapshot=True))

    return NodeAnswer(
        id=node.id,
        kind=node.kind,
        state=node.state,
        leader=node.leader,
        address=node.address,
        slots=node.slots,
        lease_s=node.lease_s,
        claims=reader.run(claims) if node.kind != "client" else 0,
        total=node.total,
        free=node.free,
    )
