"""The lineage of tables: sources, datasets, arcs and views, left to right."""

from functools import partial

import msgspec

from tidemill.arcs import lot_status
from tidemill.lots.keys import DatasetId
from tidemill.pipeline import descriptions
from tidemill.store import Tx
from tidemill.triggers.listing import TriggerInfo, TriggerState
from tidemill.ui.model.answers import Graph, GraphEdge, GraphNode
from tidemill.ui.model.catalog import Declarations
from tidemill.ui.model.overview import all_triggers
from tidemill.ui.model.reader import StoreReader
from tidemill.views.steps.keys import group_id

MOST_NODES = 600
"""How many nodes the drawing has at most."""

STATES = {
    TriggerState.DEAD: "stopped",
    TriggerState.PAUSED: "paused",
    TriggerState.RUNNING: "running",
    TriggerState.DUE: "waiting to run",
    TriggerState.SCHEDULED: "scheduled",
    TriggerState.WAITING: "up to date",
    TriggerState.UNREADY: "not ready",
}


def lineage(reader: StoreReader) -> Graph:
    """Return the lineage of all tables of the cluster."""
    catalog = reader.catalog()
    triggers = {info.name: info for info in all_triggers(reader)}
    nodes = _tables(catalog)
    source_nodes, edges = _sources(reader, {node.id for node in nodes})
    arc_nodes, arc_edges = _arcs(catalog, triggers, _failing(reader, catalog))
    view_nodes, view_edges = _views(catalog, triggers)
    edges += arc_edges + view_edges
    everything = [*source_nodes, *nodes, *arc_nodes, *view_nodes]
    shown = everything[:MOST_NODES]
    names = {node.id for node in shown}
    kept = [edge for edge in edges if edge.source in names and edge.target in names]
    columns = _columns(names, kept)
    return Graph(
        nodes=tuple(msgspec.structs.replace(node, column=columns[node.id]) for node in shown),
        edges=tuple(kept),
        left_out=len(everything) - len(shown),
    )


def _tables(catalog: Declarations) -> list[GraphNode]:
    return [
        GraphNode(
            id=f"table:{table}",
            kind="dataset",
            name=table.name,
            pipeline=", ".join(sorted(catalog.owners.get(table, {}))),
        )
        for table in catalog.ordered
        if not catalog.is_retired(table) and table not in catalog.quarantines
    ]


def _sources(reader: StoreReader, tables: set[str]) -> tuple[list[GraphNode], list[GraphEdge]]:
    nodes, edges = [], []
    described = reader.run(partial(descriptions.sources, keys=reader.descriptions))
    for (pipeline, label), row in described.items():
        target = f"table:{DatasetId(row.dataset or label)}"
        if target in tables:
            id_ = f"source:{pipeline}/{label}"
            nodes.append(
                GraphNode(id=id_, kind="source", name=row.origin, pipeline=pipeline, detail=row.where)
            )
            edges.append(GraphEdge(source=id_, target=target))
    return nodes, edges


def _failing(reader: StoreReader, catalog: Declarations) -> set[str]:
    """Return the arcs that have failed lots."""

    def read(tx: Tx) -> set[str]:
        arcs = list(catalog.arcs)[:MOST_NODES]
        return {arc for arc in arcs if lot_status.failed(tx, reader.arcs, arc, limit=1)}

    return reader.run(read)


def _arcs(
    catalog: Declarations, triggers: dict[str, TriggerInfo], failing: set[str]
) -> tuple[list[GraphNode], list[GraphEdge]]:
    nodes, edges = [], []
    for spec in catalog.arcs.values():
        state, detail = _state(triggers.get(spec.id))
        if spec.id in failing and state in ("up to date", "scheduled", "waiting to run"):
            state, detail = "lots failed", "see the runs"
        nodes.append(
            GraphNode(
                id=spec.id, kind="arc", name=spec.name, pipeline=spec.pipeline, state=state, detail=detail
            )
        )
        edges += [GraphEdge(source=f"table:{read}", target=spec.id) for read in spec.reads]
        edges += [GraphEdge(source=spec.id, target=f"table:{sink.dataset}") for sink in spec.sinks]
    return nodes, edges


def _views(
    catalog: Declarations, triggers: dict[str, TriggerInfo]
) -> tuple[list[GraphNode], list[GraphEdge]]:
    nodes, edges = [], []
    for entry in catalog.views.values():
        group = group_id(entry.pipeline, entry.group.spec.name)
        state, detail = _state(triggers.get(group))
        id_ = f"view:{entry.pipeline}/{entry.name}"
        nodes.append(
            GraphNode(
                id=id_, kind="view", name=entry.name, pipeline=entry.pipeline, state=state, detail=detail
            )
        )
        edges += [GraphEdge(source=f"table:{read}", target=id_) for read in entry.spec.reads]
        edges += [GraphEdge(source=f"view:{entry.pipeline}/{used}", target=id_) for used in entry.spec.uses]
    return nodes, edges


def _state(trigger: TriggerInfo | None) -> tuple[str, str]:
    return ("never run", "") if trigger is None else (STATES[trigger.state], trigger.why)


def _columns(names: set[str], edges: list[GraphEdge]) -> dict[str, int]:
    """Return the column of each node: one more than its rightmost input."""
    inputs: dict[str, list[str]] = {name: [] for name in names}
    for edge in edges:
        inputs[edge.target].append(edge.source)
    columns: dict[str, int] = {}
    open_nodes: set[str] = set()

    def column(name: str) -> int:
        if name in columns or name in open_nodes:  # a circle has no column; it is drawn from here
            return columns.get(name, 0)
        open_nodes.add(name)
        columns[name] = 1 + max((column(source) for source in inputs[name]), default=-1)
        open_nodes.discard(name)
        return columns[name]

    for name in sorted(names):
        column(name)
    _draw_close(columns, inputs)
    return columns


def _draw_close(columns: dict[str, int], inputs: dict[str, list[str]]) -> None:
    """Move nodes without inputs to the right, next to the first node that reads them."""
    nearest: dict[str, int] = {}
    for name, sources in inputs.items():
        for source in sources:
            nearest[source] = min(nearest.get(source, columns[name]), columns[name])
    for name, sources in inputs.items():
        if not sources and name in nearest and not name.startswith("source:"):
            columns[name] = max(columns[name], nearest[name] - 1)
