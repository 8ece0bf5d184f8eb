"""A chain: the operators with state of a group in layers, and the legs between them (DBSP-9, DBSP-46).

A circuit is cut at its operators with state, the *stations*. Rows reach a station over *edges*: from an input
of the step or from another station, through a leg. Stations are put into layers, each behind all it
reads, and between two layers there is one exchange. An equal subtree of several views is one station, and
computed once.

An operator without a kernel of its own, but with a key, is *keyed*: stations gather all rows of the keys that
changed, Spark SQL computes their result, and another one puts it in the place of the stored one. The query
cuts the step: what lies behind it is another job. Rows that cross from one job to a later one are written to
files of the attempt, and read from there.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from tidemill.views.chain.outputs import OutputSink, SpillSink
from tidemill.views.chain.row_expressions import RowExpressions
from tidemill.views.chain.stateful_operator import StatefulOperator
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.operators import Operator
from tidemill.views.trace.layout import Layout


@dataclass(frozen=True)
class ChainInput:
    """The rows of a table that a step brings, as they come; or rows of an earlier job, or of a query."""

    table: str
    width: int


@dataclass(frozen=True)
class Edge:
    """How rows come to a side of a station.

    Args:
        number: its place in the chain.
        origin: where they come from: the number of a station, or an input.
        target: the number of the station they go to.
        side: which of its sides.
        leg: what happens on the way.
        plain: which columns of the origin it chooses, if that is all that happens.
    """

    number: int
    origin: int | ChainInput
    target: int
    side: int
    leg: RowExpressions
    plain: tuple[int, ...] | None


@dataclass(frozen=True)
class PlacedOperator:
    """A station, its id, its job and layer, and which views need it.

    What it reads of others' traces is `borrowed`: its name for each, the trace's id and layout.
    """

    number: int
    id: str
    station: StatefulOperator
    job: int
    layer: int
    views: frozenset[str] = frozenset()
    borrowed: tuple[tuple[str, str, Layout], ...] = ()

    @property
    def traces(self) -> dict[str, str]:
        """The ids of its traces, by their names."""
        return {name: f"{self.id}.{name}" for name in self.station.layouts}

    @property
    def reads(self) -> frozenset[str]:
        """The ids of all traces that it needs: its own, and those that it reads of others."""
        return frozenset(self.traces.values()) | {trace for _, trace, _ in self.borrowed}


@dataclass(frozen=True)
class KeyedQuery:
    """A keyed operator's query.

    Args:
        table: the input that its result is.
        operator: what is computed.
        key: the key of a result's row, over the operator's columns.
        reads: the inputs with the rows of each of the operator's inputs.
        leg: what happens to the operator's rows before they are stored.
    """

    table: str
    operator: Operator
    key: tuple[Expr, ...]
    reads: tuple[str, ...]
    leg: RowExpressions = field(default_factory=RowExpressions)


@dataclass(frozen=True)
class Chain:
    """Nodes by number, edges by number, the queries between jobs, and inputs that never change."""

    stations: tuple[PlacedOperator, ...]
    edges: tuple[Edge, ...]
    queries: tuple[KeyedQuery, ...] = ()
    constants: tuple[tuple[str, Operator], ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tables whose changes it reads."""
        ours = {one.table for one in self.queries} | self.spills.keys() | dict(self.constants).keys()
        named = {edge.origin.table for edge in self.edges if isinstance(edge.origin, ChainInput)}
        return tuple(sorted(named - ours))

    @property
    def spills(self) -> dict[str, PlacedOperator]:
        """The stations whose rows are inputs of later jobs, by the names of these."""
        return {one.station.view: one for one in self.stations if isinstance(one.station, SpillSink)}

    @property
    def jobs(self) -> int:
        """How many jobs a step has."""
        return 1 + max((one.job for one in self.stations), default=0)

    def depth(self, job: int) -> int:
        """How many layers a job has."""
        return max((one.layer for one in self.stations if one.job == job), default=0)

    @property
    def outputs(self) -> dict[str, PlacedOperator]:
        """The stations of views."""
        found = [
            one for one in self.stations if isinstance(one.station, OutputSink) and one.station.identified
        ]
        return {one.station.view: one for one in found if isinstance(one.station, OutputSink)}

    @property
    def traces(self) -> frozenset[str]:
        return frozenset(name for one in self.stations for name in one.traces.values())

    def below(self, numbers: Collection[int]) -> frozenset[int]:
        """These stations and all that they read."""
        found = set(numbers)
        while more := {one for one, other in self._links if other in found} - found:
            found |= more
        return frozenset(found)

    def above(self, numbers: Collection[int]) -> frozenset[int]:
        """These stations and all that read them."""
        found = set(numbers)
        while more := {other for one, other in self._links if one in found} - found:
            found |= more
        return frozenset(found)

    @cached_property
    def _links(self) -> frozenset[tuple[int, int]]:
        """Pairs of stations of which the second reads the first, also through files and queries."""
        behind = {name: [placed.number] for name, placed in self.spills.items()}
        for query in self.queries:
            behind[query.table] = [number for name in query.reads for number in behind[name]]
        found = set()
        for edge in self.edges:
            origin = edge.origin
            before = [origin] if isinstance(origin, int) else behind.get(origin.table, [])
            found |= {(number, edge.target) for number in before}
        return frozenset(found)

    def leaving(self, origin: int | str) -> list[Edge]:
        """The edges out of a station, or of a table's changes."""
        return [
            edge
            for edge in self.edges
            if (edge.origin.table if isinstance(edge.origin, ChainInput) else edge.origin) == origin
        ]
