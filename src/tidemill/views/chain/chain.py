"""A chain: the operators with state of a group in layers, and the segments between them (DBSP-9, DBSP-46).

A circuit is cut at its operators with state, the *nodes*. Rows reach a node over *edges*: from an input of
the step or from another node, through a segment. Nodes are put into layers, each behind all it reads, and
between two layers there is one exchange. An equal subtree of several views is one node, and computed once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemill.errors import TypeRefused
from tidemill.views.chain.finals import Kind, final, raw_width
from tidemill.views.chain.nodes import (
    AggregateNode,
    ChangesNode,
    JoinNode,
    Node,
    OutputNode,
    SetNode,
    UpsertsNode,
)
from tidemill.views.chain.prepare import Unsupported
from tidemill.views.chain.segments import Explode, Segment, Select
from tidemill.views.circuit import operators as ops
from tidemill.views.circuit.circuit import Circuit
from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.operators import Operator
from tidemill.views.circuit.properties import append_only
from tidemill.views.kernels.aggregate import Agg, Aggregate
from tidemill.views.kernels.extremes import BEST

Types = Mapping[Operator, tuple[str, ...]]
Arrow = Callable[[str], pa.DataType]
"""The Arrow type of a Spark type; `TypeRefused` for those that no kernel takes."""

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_FLOATING = ("float", "double")


@dataclass(frozen=True)
class Input:
    """The rows of a table that a step brings, as they come; `whole` is what it holds, for loading."""

    table: str
    width: int


@dataclass(frozen=True)
class Edge:
    """How rows come to a side of a node.

    Args:
        number: its place in the chain.
        origin: where they come from: the number of a node, or an input.
        target: the number of the node they go to.
        side: which of its sides.
        segment: what happens on the way.
        plain: which columns of the origin it chooses, if that is all that happens.
    """

    number: int
    origin: int | Input
    target: int
    side: int
    segment: Segment
    plain: tuple[int, ...] | None


@dataclass(frozen=True)
class Placed:
    """A node, its id, its layer, and which views need it."""

    number: int
    id: str
    node: Node
    layer: int
    views: frozenset[str]

    @property
    def traces(self) -> dict[str, str]:
        """The ids of its traces, by their names."""
        return {name: f"{self.id}.{name}" for name in self.node.layouts}


@dataclass(frozen=True)
class Chain:
    """Nodes by number, edges by number, and how many layers there are."""

    nodes: tuple[Placed, ...]
    edges: tuple[Edge, ...]
    depth: int

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tables whose changes it reads."""
        return tuple(sorted({edge.origin.table for edge in self.edges if isinstance(edge.origin, Input)}))

    @property
    def outputs(self) -> dict[str, Placed]:
        """The nodes of views."""
        return {one.node.view: one for one in self.nodes if isinstance(one.node, OutputNode)}

    @property
    def traces(self) -> frozenset[str]:
        return frozenset(name for one in self.nodes for name in one.traces.values())

    def layer(self, number: int) -> list[Placed]:
        return [one for one in self.nodes if one.layer == number]

    def below(self, numbers: Collection[int]) -> frozenset[int]:
        """These nodes and all that they read."""
        found = set(numbers)
        while (
            more := {
                edge.origin for edge in self.edges if edge.target in found and isinstance(edge.origin, int)
            }
            - found
        ):
            found |= more
        return frozenset(found)

    def above(self, numbers: Collection[int]) -> frozenset[int]:
        """These nodes and all that read them."""
        found = set(numbers)
        while more := {edge.target for edge in self.edges if edge.origin in found} - found:
            found |= more
        return frozenset(found)

    def leaving(self, origin: int | str) -> list[Edge]:
        """The edges out of a node, or of a table's changes."""
        return [
            edge
            for edge in self.edges
            if (edge.origin.table if isinstance(edge.origin, Input) else edge.origin) == origin
        ]


class Builder:
    """Builds the chain of a circuit.

    Args:
        types: of every operator's columns, as Spark writes them.
        ids: of every operator.
        arrow: from Spark's types to Arrow's.
        kinds: how the rows of each table come: "rows", "changes" or "keyed".
    """

    def __init__(
        self,
        circuit: Circuit,
        types: Types,
        ids: Mapping[Operator, str],
        arrow: Arrow,
        kinds: Mapping[str, str],
    ) -> None:
        self._circuit = circuit
        self._types = types
        self._ids = ids
        self._arrow = arrow
        self._kinds = kinds
        self._grows: dict[Operator, bool] = {}
        for output in circuit.outputs.values():
            self._grows |= append_only(output)
        self._nodes: list[tuple[str, Node]] = []
        self._edges: list[tuple[int | Input, int, int, Segment]] = []
        self._made: dict[Operator, int] = {}
        self._views: dict[int, set[str]] = {}
        self._below: dict[int, set[int]] = {}

    def build(self, views: Sequence[str]) -> Chain:
        """The chain of these views; `Unsupported` says which operator no kernel computes, and why."""
        for view in views:
            self._output(view)
        layers = self._layers()
        nodes = tuple(
            Placed(number, name, node, layers[number], frozenset(self._views.get(number, ())))
            for number, (name, node) in enumerate(self._nodes)
        )
        edges = []
        for number, (origin, target, side, segment) in enumerate(self._edges):
            width = origin.width if isinstance(origin, Input) else len(self._nodes[origin][1].out) - 1
            written = isinstance(
                self._nodes[target][1], OutputNode
            )  # Spark computes the identity of its rows
            plain = None if written else segment.plain(width)
            edges.append(Edge(number, origin, target, side, segment, plain))
        return Chain(nodes, tuple(edges), max(layers.values(), default=0))

    # --- views

    def _output(self, view: str) -> None:
        output = self._circuit.outputs[view]
        types = self._types.get(output, ())
        if not types:
            raise Unsupported("a view without columns")
        flows = self._flows(output)
        local = len(flows) == 1 and isinstance(flows[0][0], int) and self._meets(*flows[0])
        node = OutputNode(view, output.names, tuple(map(self._arrow, types)), local)
        number = self._add(f"view:{view}", node)
        for origin, segment in flows:
            self._connect(origin, number, 0, segment)
        self._mark(number, view)

    def _meets(self, origin: int | Input, segment: Segment) -> bool:
        """Whether equal rows of a view come from one range: the whole key of their node is among them."""
        assert isinstance(origin, int)
        node = self._nodes[origin][1]
        keys = 0
        if isinstance(node, AggregateNode):
            keys = len(node.kernel.keys)
        elif isinstance(node, SetNode):
            keys = len(node.types)
        if not keys or segment.explodes:
            return False
        here: list[int | None] = list(range(len(node.out) - 1))
        for step in segment.steps:
            if isinstance(step, Select):
                chosen = [one.column for one in step.expressions]
                here = [None if place is None else here[place] for place in chosen]
        return set(range(keys)) <= set(here)

    def _mark(self, number: int, view: str) -> None:
        self._views.setdefault(number, set()).add(view)
        for origin, target, _, _ in self._edges:
            if target == number and isinstance(origin, int) and view not in self._views.get(origin, ()):
                self._mark(origin, view)

    # --- row by row

    def _flows(self, op: Operator) -> list[tuple[int | Input, Segment]]:
        """From where the rows of an operator come, and through which segments."""
        if isinstance(op, ops.Source):
            return [(self._source(op), Segment())]
        if isinstance(op, ops.Values):
            return []
        if isinstance(op, ops.Filter):
            self._no_clock(op.conditions)
            return [(origin, segment.where(op.conditions)) for origin, segment in self._flows(op.input)]
        if isinstance(op, ops.Project):
            self._no_clock(op.expressions)
            return [(origin, segment.select(op.expressions)) for origin, segment in self._flows(op.input)]
        if isinstance(op, ops.Generate):
            step = Explode(op.call, op.input.width, op.produces, op.outer)
            flows = self._flows(op.input)
            if any(isinstance(origin, int) for origin, _ in flows):
                raise Unsupported("rows are exploded behind an operator with state")
            return [(origin, segment.explode(step)) for origin, segment in flows]
        if isinstance(op, ops.UnionAll):
            return [
                (origin, segment.cast(self._types[part], self._types[op]))
                for part in op.parts
                for origin, segment in self._flows(part)
            ]
        if isinstance(op, ops.Output):
            return self._flows(op.input)
        if op not in self._made:
            self._made[op] = self._stateful(op)
        number = self._made[op]
        return [(number, self._finals(op))]

    def _no_clock(self, expressions: Sequence[Expr]) -> None:
        if any(one.reads_clock for one in expressions):
            raise Unsupported("it reads the clock")

    def _source(self, op: ops.Source) -> int | Input:
        kind = self._kinds[op.table]
        if kind not in {"rows", "changes", "keyed"}:
            raise Unsupported(f"the rows of {op.table} come {kind}")
        if kind == "rows":
            return Input(op.table, op.width)
        if op not in self._made:
            types = tuple(self._arrow(each.type) for each in op.columns)
            node: Node = ChangesNode(types) if kind == "changes" else UpsertsNode(types, op.key)
            extra = 0 if kind == "changes" else 3
            number = self._add(self._ids[op], node)
            self._connect(Input(op.table, op.width + extra), number, 0, Segment())
            self._made[op] = number
        return self._made[op]

    # --- operators with state

    def _stateful(self, op: Operator) -> int:
        if isinstance(op, ops.Join):
            return self._join(op)
        if isinstance(op, ops.Aggregate):
            return self._aggregate(op)
        if isinstance(op, ops.Distinct):
            return self._sets(op, "distinct", (op.input,))
        if isinstance(op, ops.SetOp):
            kind = op.operation + ("_all" if op.keep_all else "")
            return self._sets(op, kind, (op.left, op.right))
        raise Unsupported(f"a {op.kind} has no kernel")

    def _join(self, op: ops.Join) -> int:
        if op.join != "inner" or not op.keys:
            raise Unsupported(f"{'a' if op.keys else 'no key of a'} {op.join} join has no kernel")
        assert not op.residual
        sides = []
        widened = [self._common(op, key) for key in op.keys]
        for place, child in enumerate((op.left, op.right)):
            keys = [(key.left, key.right)[place].column for key in op.keys]
            types = list(self._types[child]) if child.width else []
            given = [column(i) for i in range(child.width)]
            at = []
            for key, wanted in zip(keys, widened, strict=True):
                assert key is not None
                if types[key] == wanted:
                    at.append(key)
                else:
                    at.append(len(given))
                    given.append(Expr(("CAST(", key, f" AS {wanted})"), frozenset({"cast"})))
                    types.append(wanted)
            sides.append((child, tuple(given), tuple(at), tuple(map(self._arrow, types))))
        (left, left_given, left_at, left_types), (right, right_given, right_at, right_types) = sides
        safe = tuple(key.null_safe for key in op.keys)
        node = JoinNode(left_types, right_types, left_at, right_at, safe)
        number = self._add(self._ids[op], node)
        self._feed(left, number, 0, left_given)
        self._feed(right, number, 1, right_given)
        return number

    def _common(self, op: ops.Join, key: ops.Key) -> str:
        """The type that both parts of a pair of keys are compared in, as Spark would."""
        assert key.left.column is not None
        assert key.right.column is not None
        one, other = self._types[op.left][key.left.column], self._types[op.right][key.right.column]
        if one == other:
            return one
        for ladder in (_WHOLE, _FLOATING):
            if one in ladder and other in ladder:
                return max(one, other, key=ladder.index)
        raise Unsupported(f"a join compares {one} with {other}")

    def _aggregate(self, op: ops.Aggregate) -> int:
        below = self._types[op.input] if op.input.width else ()
        keys, aggs, values = [], [], {}
        for group in op.groups:
            if group.column is None:
                raise Unsupported("an aggregate has no kernel")
            keys.append(group.column)
        for n, one in enumerate(op.calls):
            if any(argument.column is None for argument in one.arguments) or not _is_native(one):
                raise Unsupported(f"{one.name} has no kernel")
            kind = _kind(one)
            if one.arguments:
                place = one.arguments[0].column
                assert place is not None
                values[place] = f"v{place}"
                aggs.append(Agg(kind, f"v{place}", f"a{n}"))
                final(kind, below[place], self._types[op][len(op.groups) + n], 0)
            else:
                aggs.append(Agg("count_rows", None, f"a{n}"))
        fields = [pa.field(f"k{n}", self._arrow(below[place])) for n, place in enumerate(keys)]
        if op.sets is not None:
            fields.append(pa.field(f"k{len(keys)}", pa.int64()))
        inputs = [pa.field(name, self._arrow(below[place])) for place, name in values.items()]
        best = 1 if self._grows.get(op.input) else BEST
        try:
            always = not op.groups and op.sets is None
            kernel = Aggregate(pa.schema(fields), pa.schema(inputs), tuple(aggs), best, always)
        except TypeRefused as error:
            raise Unsupported(error.message) from None
        sent = [[*map(column, keys), *map(column, values)]]
        if op.sets is not None:
            sent = [_set(one, keys, list(values), below) for one in op.sets]
        node = AggregateNode(kernel)
        number = self._add(f"{self._ids[op]}.{best}", node)
        for place, given in enumerate(sent):
            self._feed(op.input, number, place, given)
        return number

    def _sets(self, op: Operator, kind: str, children: Sequence[Operator]) -> int:
        types = self._types.get(op, ())
        if not types:
            raise Unsupported("rows without columns")
        node = SetNode(kind, tuple(map(self._arrow, types)))
        number = self._add(self._ids[op], node)
        for place, child in enumerate(children):
            for origin, segment in self._flows(child):
                self._connect(origin, number, place, segment.cast(self._types[child], types))
        return number

    def _finals(self, op: Operator) -> Segment:
        """From the columns a node gives to those of its operator."""
        if not isinstance(op, ops.Aggregate):
            if isinstance(op, ops.Join):
                return self._unwidened(op)
            return Segment()
        below = self._types[op.input] if op.input.width else ()
        keys = len(op.groups) + (op.sets is not None)
        given, at = [column(i) for i in range(len(op.groups))], keys
        for n, one in enumerate(op.calls):
            place = one.arguments[0].column if one.arguments else None
            argument = "" if place is None else below[place]
            kind: Kind = _kind(one) if one.arguments else "count_rows"
            given.append(final(kind, argument, self._types[op][len(op.groups) + n], at))
            at += raw_width(kind, argument)
        if op.sets is not None:
            given.append(column(keys - 1))
        return Segment().select(given)

    def _unwidened(self, op: ops.Join) -> Segment:
        """A join's node may give columns that are keys of a wider type alone: they are left out."""
        node = self._nodes[self._made[op]][1]
        assert isinstance(node, JoinNode)
        width = op.left.width
        kept = [*range(width), *range(len(node.left), len(node.left) + op.right.width)]
        every = list(range(len(node.left) + len(node.right)))
        return Segment() if kept == every else Segment().select([column(i) for i in kept])

    # --- wiring

    def _feed(self, child: Operator, number: int, side: int, given: Sequence[Expr]) -> None:
        for origin, segment in self._flows(child):
            plain = [one.column for one in given] == list(range(child.width))
            self._connect(origin, number, side, segment if plain else segment.select(given))

    def _add(self, name: str, node: Node) -> int:
        self._nodes.append((name, node))
        return len(self._nodes) - 1

    def _connect(self, origin: int | Input, target: int, side: int, segment: Segment) -> None:
        self._edges.append((origin, target, side, segment))

    def _layers(self) -> dict[int, int]:
        found: dict[int, int] = {}

        def layer(number: int) -> int:
            if number not in found:
                node = self._nodes[number][1]
                below = [
                    layer(origin) if isinstance(origin, int) else 0
                    for origin, target, _, _ in self._edges
                    if target == number
                ]
                stays = isinstance(node, OutputNode) and node.local
                found[number] = max(below, default=0) + (0 if stays else 1)
            return found[number]

        for number in range(len(self._nodes)):
            layer(number)
        return found


def _is_native(one: ops.AggregateCall) -> bool:
    return (
        one.plain
        and not one.distinct
        and one.filter is None
        and one.name in {"count", "sum", "avg", "min", "max"}
    )


def _kind(one: ops.AggregateCall) -> Kind:
    match one.name:
        case "count" | "sum" | "avg" | "min" | "max":
            return one.name
        case _:
            raise Unsupported(f"{one.name} has no kernel")


def _set(one: Sequence[int], keys: Sequence[int], values: Sequence[int], types: Sequence[str]) -> list[Expr]:
    """The columns that one grouping set sends: keys that are not of it are NULL; then its id, then values."""
    given = [
        column(place) if n in one else Expr((f"CAST(NULL AS {types[place]})",), frozenset({"cast"}))
        for n, place in enumerate(keys)
    ]
    count = len(keys)
    number = sum(1 << (count - 1 - n) for n in range(count) if n not in one)
    given.append(Expr((f"CAST({number} AS BIGINT)",), frozenset({"cast"})))
    return [*given, *(column(place) for place in values)]
