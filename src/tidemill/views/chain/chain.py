"""A chain: the stateful operators of a group in layers, with row expressions between them (DBSP-9, DBSP-46).

A circuit is cut at its stateful operators. Rows reach a stateful operator over *edges*. An edge starts at an
input of the step or at another stateful operator, and applies row expressions. Each operator is in a later
layer than the operators it reads, and rows are exchanged between layers. If several views have an equal
subtree, the chain has one operator for it and computes it once.

An operator that has a key but no kernel is *keyed*. One operator gathers all rows of the keys that changed,
Spark SQL computes the result for these keys, and another operator replaces the stored result. The query
splits the step: everything after the query runs in a later job. Rows that pass from one job to a later one
are written to files of the attempt.

An operator that has neither is *recomputed*, in the same way but for all its rows: operators store its inputs
and its result, and only the difference of the result goes to the operators above.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from tidemill.views.chain.outputs import OutputSink, SpillSink
from tidemill.views.chain.recomputed_operators import StoredInput
from tidemill.views.chain.row_expressions import RowExpressions
from tidemill.views.chain.stateful_operator import StatefulOperator
from tidemill.views.circuit.expr import Expr
from tidemill.views.circuit.operators import Operator
from tidemill.views.kernels.scalars import ArrowRows
from tidemill.views.trace.layout import Layout


class InputKind(NamedTuple):
    """How the rows of a table arrive.

    - rows: "rows" (only added), "changes" (rows with weights) or "keyed" (writes of keys).
    - order: for a keyed table, the columns that decide which write of a key is newer; later writes win if
      they are equal or if there are none.
    """

    rows: str
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class ChainInput:
    """An input of a chain: the rows of a table in this step, of an earlier job, or of a query.

    - types: the types of its columns; none if only Spark knows them.
    """

    table: str
    width: int
    types: tuple[pa.DataType, ...] = ()


@dataclass(frozen=True)
class Edge:
    """A path of rows to one side of an operator.

    Args:
        number: the edge's place in the chain.
        origin: where the rows come from: the number of an operator, or an input.
        target: the number of the operator that receives the rows.
        side: the side of that operator.
        expressions: the row expressions that are applied.
        plain: the columns that the expressions select, if they do nothing else; None otherwise.
        arrow: the expressions as Arrow kernels; None if Spark must evaluate them.
    """

    number: int
    origin: int | ChainInput
    target: int
    side: int
    expressions: RowExpressions
    plain: tuple[int, ...] | None
    arrow: ArrowRows | None = None


@dataclass(frozen=True)
class PlacedOperator:
    """A stateful operator with its id, its job and layer, and the views that need it.

    `borrowed` lists the traces of other operators that this operator reads. Each entry has this operator's
    name for the trace, the id of the trace, and its layout.
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
        """Return the ids of its traces by name."""
        return {name: f"{self.id}.{name}" for name in self.operator.layouts}

    @property
    def reads(self) -> frozenset[str]:
        """Return the ids of all traces that the operator reads: its own traces and borrowed ones."""
        return frozenset(self.traces.values()) | {trace for _, trace, _ in self.borrowed}


@dataclass(frozen=True)
class KeyedQuery:
    """The query of a keyed or recomputed operator.

    Args:
        table: the name of the chain input that holds the result.
        operator: the operator to compute.
        key: the expressions that compute the key of a result row from the operator's columns; none for a
            recomputed operator.
        reads: for each input of the operator, the chain input that holds the rows of that input.
        expressions: the row expressions applied to the result before it is stored.
    """

    table: str
    operator: Operator
    key: tuple[Expr, ...]
    reads: tuple[str, ...]
    expressions: RowExpressions = field(default_factory=RowExpressions)

    @property
    def recomputed(self) -> bool:
        """Return whether the query computes the whole result, not that of changed keys."""
        return not self.key


@dataclass(frozen=True)
class Chain:
    """The operators by number, the edges by number, the queries between jobs, and the constant inputs."""

    operators: tuple[PlacedOperator, ...]
    edges: tuple[Edge, ...]
    queries: tuple[KeyedQuery, ...] = ()
    constants: tuple[tuple[str, Operator], ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the tables whose changes the chain reads."""
        internal = {query.table for query in self.queries} | self.spills.keys() | dict(self.constants).keys()
        inputs = {edge.origin.table for edge in self.edges if isinstance(edge.origin, ChainInput)}
        return tuple(sorted(inputs - internal))

    @cached_property
    def spills(self) -> dict[str, PlacedOperator]:
        """Return the operators that write rows for later jobs, by the name of the input they write."""
        return {
            placed.operator.view: placed
            for placed in self.operators
            if isinstance(placed.operator, SpillSink)
        }

    @property
    def jobs(self) -> int:
        """Return how many jobs a step has."""
        return 1 + max((placed.job for placed in self.operators), default=0)

    def depth(self, job: int) -> int:
        """Return how many layers a job has."""
        return max((placed.layer for placed in self.operators if placed.job == job), default=0)

    @cached_property
    def outputs(self) -> dict[str, PlacedOperator]:
        """Return the sink of each view."""
        return {
            placed.operator.view: placed
            for placed in self.operators
            if isinstance(placed.operator, OutputSink) and placed.operator.identified
        }

    @property
    def stored_inputs(self) -> tuple[PlacedOperator, ...]:
        """Return the operators that store the inputs of recomputed operators."""
        return tuple(placed for placed in self.operators if isinstance(placed.operator, StoredInput))

    @property
    def traces(self) -> frozenset[str]:
        return frozenset(trace for placed in self.operators for trace in placed.traces.values())

    def below(self, numbers: Collection[int]) -> frozenset[int]:
        """Return these operators and all operators they read, directly or indirectly."""
        reached = set(numbers)
        while more := {lower for lower, upper in self._links if upper in reached} - reached:
            reached |= more
        return frozenset(reached)

    def above(self, numbers: Collection[int]) -> frozenset[int]:
        """Return these operators and all operators that read them, directly or indirectly."""
        reached = set(numbers)
        while more := {upper for lower, upper in self._links if lower in reached} - reached:
            reached |= more
        return frozenset(reached)

    @cached_property
    def _links(self) -> frozenset[tuple[int, int]]:
        """Return pairs of operators: the second reads the first, directly or through files and queries."""
        writers = {name: [placed.number] for name, placed in self.spills.items()}
        for query in self.queries:
            writers[query.table] = [number for name in query.reads for number in writers[name]]
        links = set()
        for edge in self.edges:
            origin = edge.origin
            lower = [origin] if isinstance(origin, int) else writers.get(origin.table, [])
            links |= {(number, edge.target) for number in lower}
        return frozenset(links)

    def leaving(self, origin: int | str) -> list[Edge]:
        """Return the edges that begin at an operator or at an input."""
        return self._edges_by_origin.get(origin, [])

    @cached_property
    def _edges_by_origin(self) -> dict[int | str, list[Edge]]:
        edges: dict[int | str, list[Edge]] = {}
        for edge in self.edges:
            origin = edge.origin.table if isinstance(edge.origin, ChainInput) else edge.origin
            edges.setdefault(origin, []).append(edge)
        return edges
