"""Select a part of a pipeline with the selectors of dbt: `+revenue`, `clean+1`, `@orders`, `source:*`.

The graph has four kinds of nodes: sources, datasets, arcs and views. A selector names a node, and can add its
inputs and outputs:

    revenue           the node, or the arc that writes the table with this name
    +revenue          the node and everything that it is computed from
    2+revenue         the same, two steps back
    clean+            the node and everything that is computed from it
    clean+1           the same, one step forward
    @clean            the node, everything that is computed from it, and all inputs of these
    order*            every node whose name matches the pattern
    source:orders     only sources; also dataset:, arc:, view: and group:

Spaces join selectors, and commas intersect them, as in dbt: `"+revenue source:*"`, `"+revenue,arc:*"`.

Views of one group are updated in one step. So a selected view brings the other views of its group with it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from tidemill.errors import BadSelection
from tidemill.pipeline import graph
from tidemill.sources.source import source_id
from tidemill.views.steps.keys import group_id

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

KINDS: Final = ("source", "dataset", "arc", "view")
METHODS: Final = (*KINDS, "group")
_SELECTOR: Final = re.compile(r"(@)?(?:(\d*)(\+))?(.*?)(?:(\+)(\d*))?", re.DOTALL)
_GLOB: Final = re.compile(r"[*?\[]")
_FAR: Final = 1_000_000

Selectors = str | Sequence[str]


@dataclass(frozen=True, order=True)
class PipelineNode:
    """A source, dataset, arc or view, by its name. A source is called `orders`, or `orders#csv`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, kw_only=True)
class NodeGraph:
    """The nodes of a pipeline, in the order of their declarations.

    - inputs: the nodes that each node reads directly.
    - names: the names by which users call each node.
    - groups: the group of each view.
    """

    inputs: Mapping[PipelineNode, tuple[PipelineNode, ...]]
    names: Mapping[PipelineNode, tuple[str, ...]]
    groups: Mapping[str, str] = field(default_factory=dict)

    def upstream(self, nodes: Iterable[PipelineNode], steps: int = _FAR) -> set[PipelineNode]:
        """Return these nodes, and what they are computed from."""
        return _reached(set(nodes), lambda node: self.inputs[node], steps)

    def downstream(self, nodes: Iterable[PipelineNode], steps: int = _FAR) -> set[PipelineNode]:
        """Return these nodes, and what is computed from them."""
        readers: dict[PipelineNode, list[PipelineNode]] = {node: [] for node in self.inputs}
        for node, inputs in self.inputs.items():
            for read in inputs:
                readers[read].append(node)
        return _reached(set(nodes), lambda node: readers[node], steps)


def _reached(
    nodes: set[PipelineNode], following: Callable[[PipelineNode], Iterable[PipelineNode]], steps: int
) -> set[PipelineNode]:
    reached, edge = set(nodes), set(nodes)
    while edge and steps:
        edge = {other for node in edge for other in following(node)} - reached
        reached |= edge
        steps -= 1
    return reached


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selected nodes of a pipeline.

    - text: the selectors, as the user wrote them.
    - nodes: the selected nodes, in the order of their declarations.
    - together: views that are not selected, but updated with a selected view of the same group.
    - jobs: the ids of the sources, arcs and view groups that a run starts.
    """

    text: str
    nodes: tuple[PipelineNode, ...]
    together: tuple[str, ...]
    jobs: frozenset[str]

    def has(self, kind: str, name: str) -> bool:
        """Return whether a node is selected."""
        return PipelineNode(kind, name) in self.nodes

    @property
    def views(self) -> frozenset[str]:
        """The views that a run updates."""
        return frozenset(node.name for node in self.nodes if node.kind == "view") | set(self.together)


def select(pipeline: "Pipeline", selectors: Selectors, exclude: Selectors = ()) -> Selection:
    """Select nodes of a pipeline. Raise `BadSelection` if a selector is invalid or matches nothing.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home")
    >>> orders = shop.dataset("orders", "id BIGINT")
    >>> shop.source(orders, tm.folder("landing/*.json"))
    >>> total = shop.view("total", "SELECT count(*) AS n FROM orders")
    >>> [str(node) for node in select(shop, "+total", exclude="dataset:*").nodes]
    ['source orders', 'view total']

    Args:
        pipeline: the pipeline.
        selectors: the selectors, as one text or as several; nothing selects all nodes.
        exclude: selectors of the nodes to leave out.
    """
    nodes = graph_of(pipeline)
    wanted, left_out = _texts(selectors), _texts(exclude)
    chosen = _union(nodes, wanted) if wanted else set(nodes.inputs)
    chosen -= _union(nodes, left_out)
    text = " ".join(wanted) + (f" without {' '.join(left_out)}" if left_out else "")
    if not chosen:
        raise BadSelection(f"nothing is selected by {text!r}", hint="try it with `tidemill ls --select`")
    views = {node.name for node in chosen if node.kind == "view"}
    groups = {nodes.groups[name] for name in views}
    jobs = {group_id(pipeline.name, group) for group in groups}
    jobs |= {source_id(pipeline.name, node.name) for node in chosen if node.kind == "source"}
    jobs |= {graph.arc_id(pipeline, name) for name in _arcs(pipeline, chosen)}
    return Selection(
        text=text,
        nodes=tuple(node for node in nodes.inputs if node in chosen),
        together=tuple(name for name, group in nodes.groups.items() if group in groups and name not in views),
        jobs=frozenset(jobs),
    )


def graph_of(pipeline: "Pipeline") -> NodeGraph:
    """Return the nodes of a pipeline."""
    arcs = pipeline.all_arcs()
    makers = {sink.name: PipelineNode("arc", arc.name) for arc in arcs.values() for sink in arc.sinks}
    tables = {name: PipelineNode("dataset", name) for name in pipeline.datasets} | makers
    tables |= {name: PipelineNode("view", name) for name in pipeline.views}
    inputs: dict[PipelineNode, tuple[PipelineNode, ...]] = {}
    names: dict[PipelineNode, tuple[str, ...]] = {}
    for decl in pipeline.sources.values():
        node = PipelineNode("source", decl.label)
        inputs[node], names[node] = (), tuple(dict.fromkeys((decl.label, decl.dataset)))
    for name in pipeline.datasets:
        sources = tuple(PipelineNode("source", decl.label) for decl in pipeline.sources_of(name))
        inputs[tables[name]], names[tables[name]] = sources, (name,)
    for arc in arcs.values():
        node = PipelineNode("arc", arc.name)
        inputs[node] = _known(arc.reads, tables, pipeline)
        others = (*(sink.name for sink in arc.sinks), *([arc.template] if arc.template else []))
        names[node] = (arc.name, *others)
    for name in pipeline.views:
        inputs[tables[name]] = _known(graph.inputs_of(pipeline, name), tables, pipeline)
        names[tables[name]] = (name,)
    groups = {name: view.group for name, view in pipeline.views.items()}
    return NodeGraph(inputs=inputs, names=names, groups=groups)


def _known(
    names: Iterable[str], tables: Mapping[str, PipelineNode], pipeline: "Pipeline"
) -> tuple[PipelineNode, ...]:
    """Return the nodes that make these tables; tables of other pipelines have none."""
    owners = [name.removesuffix("_quarantine") if name in pipeline.quarantines else name for name in names]
    return tuple(dict.fromkeys(tables[name] for name in owners if name in tables))


def _arcs(pipeline: "Pipeline", chosen: set[PipelineNode]) -> set[str]:
    """Return the selected arcs, and the templates all of whose arcs are selected."""
    arcs = {node.name for node in chosen if node.kind == "arc"}
    children: dict[str, set[str]] = {name: set() for name in pipeline.templates}
    for arc in pipeline.all_arcs().values():
        if arc.template:
            children[arc.template].add(arc.name)
    return arcs | {name for name, names in children.items() if names and names <= arcs}


def _texts(selectors: Selectors) -> list[str]:
    parts = [selectors] if isinstance(selectors, str) else selectors
    return [text for part in parts for text in part.split()]


def _union(nodes: NodeGraph, texts: Sequence[str]) -> set[PipelineNode]:
    chosen: set[PipelineNode] = set()
    for text in texts:
        chosen |= set.intersection(*(_resolve(nodes, part) for part in text.split(",")))
    return chosen


def _resolve(nodes: NodeGraph, text: str) -> set[PipelineNode]:
    """Return the nodes that one selector names."""
    parts = _SELECTOR.fullmatch(text)
    assert parts is not None
    childrens_parents, back, parents, value, children, forward = parts.groups()
    if not value or (childrens_parents and children):
        raise BadSelection(f"invalid selector {text!r}")
    matched = _matches(nodes, value)
    if childrens_parents:
        return nodes.upstream(nodes.downstream(matched))
    chosen = set(matched)
    if parents:
        chosen |= nodes.upstream(matched, int(back) if back else _FAR)
    if children:
        chosen |= nodes.downstream(matched, int(forward) if forward else _FAR)
    return chosen


def _matches(nodes: NodeGraph, value: str) -> set[PipelineNode]:
    """Return the nodes with this name, or whose names match this pattern."""
    method, colon, name = value.partition(":")
    known = {name for names in nodes.names.values() for name in names} | set(nodes.groups.values())
    if not colon or value in known:
        method, name = "", value
    elif method not in METHODS:
        near = get_close_matches(method, METHODS, 1)
        hint = f"did you mean {near[0]}:{name}?" if near else f"use one of: {', '.join(METHODS)}"
        raise BadSelection(f"unknown kind {method!r} in the selector {value!r}", hint=hint)
    is_wanted = (lambda text: fnmatchcase(text, name)) if _GLOB.search(name) else (lambda text: text == name)
    if method == "group":
        chosen = {PipelineNode("view", view) for view, group in nodes.groups.items() if is_wanted(group)}
    else:
        of_kind = [node for node in nodes.inputs if method in ("", node.kind)]
        chosen = {node for node in of_kind if any(map(is_wanted, nodes.names[node]))}
        if not method and len(chosen) > 1 and not _GLOB.search(name):
            # A dataset and its source have the same name; the dataset is the node that others read.
            chosen = {node for node in chosen if node.kind != "source"} or chosen
    if chosen:
        return chosen
    what = f"{method} " if method else "source, dataset, arc or view "
    names = sorted(known)
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"the names are: {', '.join(names) or '(none)'}"
    raise BadSelection(f"the pipeline has no {what}that matches {name!r}", hint=hint)
