"""A chain under construction: stateful operators, the edges between them, and how they fall into jobs.

Add an operator before you connect its output. A job ends where rows must be in files: for the query of a
keyed operator, and for rows that are exploded after a kernel. Within a job operators lie in layers, each
after those it reads.
"""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from tidemill.views.chain.chain import Chain, ChainInput, Edge, KeyedQuery, PlacedOperator
from tidemill.views.chain.keyed_operators import ReplaceRows
from tidemill.views.chain.native_operators import StatefulJoin
from tidemill.views.chain.outputs import OutputSink, SpillSink
from tidemill.views.chain.row_expressions import RowExpressions
from tidemill.views.chain.stateful_operator import StatefulOperator
from tidemill.views.circuit.operators import Operator
from tidemill.views.trace.layout import Layout


class ChainGraph:
    """The operators, edges and queries of one chain."""

    def __init__(self) -> None:
        self._operators: list[tuple[str, StatefulOperator]] = []
        self._edges: list[tuple[int | ChainInput, int, int, RowExpressions]] = []
        self._queries: list[KeyedQuery] = []
        self._constants: dict[str, Operator] = {}

    def chain(self) -> Chain:
        """The chain of all that was added."""
        self._fuse()
        jobs = self._jobs()
        self._part(jobs)
        self._cross(jobs)
        layers = self._layers(jobs)
        operators = tuple(
            PlacedOperator(
                number, name, operator, jobs[number], layers[number], borrowed=self._borrowed(number)
            )
            for number, (name, operator) in enumerate(self._operators)
        )
        edges = []
        for number, (origin, target, side, expressions) in enumerate(self._edges):
            width = origin.width if isinstance(origin, ChainInput) else len(self.operator(origin).out) - 1
            operator = self.operator(target)
            asks = isinstance(operator, OutputSink) and operator.asks_spark
            plain = None if asks else expressions.plain(width)
            edges.append(Edge(number, origin, target, side, expressions, plain))
        chain = Chain(operators, tuple(edges), tuple(self._queries), tuple(self._constants.items()))
        needs = {view: chain.below({one.number}) for view, one in chain.outputs.items()}
        marked = [
            replace(one, views=frozenset(view for view, below in needs.items() if one.number in below))
            for one in operators
        ]
        return replace(chain, operators=tuple(marked))

    def _borrowed(self, number: int) -> tuple[tuple[str, str, Layout], ...]:
        """What a join reads of its sources' traces: its name for each, the trace's id and layout."""
        operator = self.operator(number)
        if not isinstance(operator, StatefulJoin):
            return ()
        from_source = {
            side: self._operators[origin][0]
            for origin, target, side, _ in self._edges
            if target == number and isinstance(origin, int)
        }
        return tuple(
            (f"{tag}.{name}", f"{from_source[side]}.{name}", layout)
            for side, tag, layouts in operator.borrowed
            for name, layout in layouts.items()
        )

    # --- putting together

    def add(self, name: str, operator: StatefulOperator) -> int:
        """An operator, under the name that its state is kept by; its number."""
        self._operators.append((name, operator))
        return len(self._operators) - 1

    def connect(self, origin: int | ChainInput, target: int, side: int, expressions: RowExpressions) -> None:
        """Rows go from there to a side of an operator, through a expressions."""
        self._edges.append((origin, target, side, expressions))

    def operator(self, number: int) -> StatefulOperator:
        """One that was added."""
        return self._operators[number][1]

    def constant(self, name: str, op: Operator) -> None:
        """An operator whose rows are the same in every step."""
        self._constants[name] = op

    def query(self, query: KeyedQuery) -> None:
        """What Spark computes from rows that were kept."""
        self._queries.append(query)

    def spill(self, origin: int, expressions: RowExpressions) -> str:
        """Keep the rows of an operator for a later job; the name of the input they are there."""
        width = len(self.operator(origin).out) - 1
        places = expressions.plain(width)
        assert places is not None
        types = tuple(self.operator(origin).out.field(place).type for place in places)
        return self.spilled(origin, expressions, types)

    def spilled(self, origin: int, expressions: RowExpressions, types: tuple[pa.DataType, ...]) -> str:
        """The same, where the expressions makes columns of these types."""
        name = f"spill:{len(self._operators)}"
        number = self.add(name, SpillSink(name, tuple(f"c{i}" for i in range(len(types))), types, local=True))
        self.connect(origin, number, 0, expressions)
        return name

    # --- jobs and layers

    def _fuse(self) -> None:
        """What happens to the result of a keyed operator on its only way is done by its query: what is left
        out there is neither stored nor compared.
        """
        for place, query in enumerate(self._queries):
            number = int(query.table.partition(":")[2])
            ways = [at for at, (origin, *_) in enumerate(self._edges) if origin == number]
            name, operator = self._operators[number]
            if len(ways) != 1 or not isinstance(operator, ReplaceRows):
                continue
            _, target, side, expressions = self._edges[ways[0]]
            if expressions.explodes or expressions.plain(len(operator.types)) is not None:
                continue
            shown = self.operator(target).takes(side)
            self._operators[number] = (f"{name}.{expressions.digest}", replace(operator, types=shown))
            self._queries[place] = replace(query, expressions=expressions)
            self._edges[ways[0]] = (number, target, side, RowExpressions())
            for at, (origin, to, where, way) in enumerate(self._edges):
                if isinstance(origin, ChainInput) and origin.table == query.table:
                    widened = replace(origin, width=len(shown) + len(query.key))
                    self._edges[at] = (widened, to, where, way)

    def _jobs(self) -> dict[int, int]:
        """The job of every operator: behind the queries that it reads."""
        queries = {one.table: one for one in self._queries}
        spills = {
            operator.view: n
            for n, (_, operator) in enumerate(self._operators)
            if isinstance(operator, SpillSink)
        }
        found: dict[int, int] = {}

        def job(number: int) -> int:
            if number not in found:
                found[number] = max(
                    (before(origin) for origin, target, _, _ in self._edges if target == number), default=0
                )
            return found[number]

        def before(origin: int | ChainInput) -> int:
            if isinstance(origin, int):
                return job(origin)
            reads = queries[origin.table].reads if origin.table in queries else (origin.table,)
            return max((1 + job(spills[name]) for name in reads if name in spills), default=0)

        for number in range(len(self._operators)):
            job(number)
        return found

    def _part(self, jobs: Mapping[int, int]) -> None:
        """A join in a later job than its source remembers rows itself: they reach it through files."""
        for origin, target, side, _ in self._edges:
            name, operator = self._operators[target]
            if isinstance(operator, StatefulJoin) and isinstance(origin, int) and jobs[origin] < jobs[target]:
                left, right = operator.lent
                lent = (left, None) if side else (None, right)
                self._operators[target] = (name, replace(operator, lent=lent))

    def _cross(self, jobs: dict[int, int]) -> None:
        """Have rows that go from one job to a later one pass through files."""
        for place, (origin, target, side, expressions) in enumerate(list(self._edges)):
            if isinstance(origin, int) and jobs[origin] < jobs[target]:
                types = self.operator(target).takes(side)
                name = self.spilled(origin, expressions, types)
                jobs[len(self._operators) - 1] = jobs[origin]
                self._edges[place] = (ChainInput(name, len(types)), target, side, RowExpressions())

    def _layers(self, jobs: Mapping[int, int]) -> dict[int, int]:
        """The layer of every operator in its job."""
        found: dict[int, int] = {}

        def layer(number: int) -> int:
            if number not in found:
                operator = self._operators[number][1]
                below = [
                    layer(origin) if isinstance(origin, int) else 0
                    for origin, target, _, _ in self._edges
                    if target == number
                ]
                stays = isinstance(operator, OutputSink) and operator.local
                found[number] = max(below, default=0) + (0 if stays else 1)
            return found[number]

        for number in range(len(self._operators)):
            layer(number)
        return found
