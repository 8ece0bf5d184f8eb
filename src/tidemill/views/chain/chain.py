"""A chain: the stateful operators of a group in layers, with row expressions between them (DBSP-9, DBSP-46).

A circuit is cut at its stateful operators. Rows reach one over *edges*: from an input of the step or from
another stateful operator, through row expressions. Operators are put into layers, each after all it reads,
with one exchange between two layers. An equal subtree of several views is one operator, computed once.

An operator without a kernel, but with a key, is *keyed*: one operator gathers all rows of the keys that
changed, Spark SQL computes their result, and another operator replaces the stored result. The query splits
the step: everything after it is another job. Rows that pass from one job to a later one are written to files
of the attempt.
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
    """How rows come to a side of an operator.

    Args:
        number: its place in the chain.
        origin: where they come from: the number of an operator, or an input.
        target: the number of the operator they go to.
        side: which of its sides.
        expressions: what happens on the way.
        plain: which columns of the origin it chooses, if that is all that happens.
    """

    number: int
    origin: int | ChainInput
    target: int
    side: int
    expressions: RowExpressions
    plain: tuple[int, ...] | None


@dataclass(frozen=True)
class PlacedOperator:
    """An operator, its id, its job and layer, and which views need it.

    What it reads of others' traces is `borrowed`: its name for each, the trace's id and layout.
    """

    number: int
    id: str
    operator: StatefulOperator
    job: int
    layer: int
    views: frozenset[str] = frozenset()
    borrowed: tuple[tuple[str, str, Layout], ...] = ()

    @property
    def traces(self) -> dict[str, str]:
        """The ids of its traces, by their names."""
        return {name: f"{self.id}.{name}" for name in self.operator.layouts}

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
        expressions: what happens to the operator's rows before they are stored.
    """

    table: str
    operator: Operator
    key: tuple[Expr, ...]
    reads: tuple[str, ...]
    expressions: RowExpressions = field(default_factory=RowExpressions)


@dataclass(frozen=True)
class Chain:
    """Nodes by number, edges by number, the queries between jobs, and inputs that never change."""

    operators: tuple[PlacedOperator, ...]
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
        """The operators whose rows are inputs of later jobs, by the names of these."""
        return {one.operator.view: one for one in self.operators if isinstance(one.operator, SpillSink)}

    @property
    def jobs(self) -> int:
        """How many jobs a step has."""
        return 1 + max((one.job for one in self.operators), default=0)

    def depth(self, job: int) -> int:
        """How many layers a job has."""
        return max((one.layer for one in self.operators if one.job == job), default=0)

    @property
    def outputs(self) -> dict[str, PlacedOperator]:
        """The operators of views."""
        found = [
            one for one in self.operators if isinstance(one.operator, OutputSink) and one.operator.identified
        ]
        return {one.operator.view: one for one in found if isinstance(one.operator, OutputSink)}

    @property
    def traces(self) -> frozenset[str]:
        return frozenset(name for one in self.operators for name in one.traces.values())

    def below(self, numbers: Collection[int]) -> frozenset[int]:
        """These operators and all that they read."""
        found = set(numbers)
        while more := {one for one, other in self._links if other in found} - found:
            found |= more
        return frozenset(found)

    def above(self, numbers: Collection[int]) -> frozenset[int]:
        """These operators and all that read them."""
        found = set(numbers)
        while more := {other for one, other in self._links if one in found} - found:
            found |= more
        return frozenset(found)

    @cached_property
    def _links(self) -> frozenset[tuple[int, int]]:
        """Pairs of operators of which the second reads the first, also through files and queries."""
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
        """The edges out of an operator, or of a table's changes."""
        return [
            edge
            for edge in self.edges
            if (edge.origin.table if isinstance(edge.origin, ChainInput) else edge.origin) == origin
        ]
