"""A chain under construction: its stateful operators, their edges, and their division into jobs and layers.

Add an operator before you connect its output. A job ends where rows must be written to files: before the
query of a keyed or recomputed operator, and before rows from a kernel are exploded. Within a job, each
operator is in a later layer than the operators it reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from tidemill.views.chain.chain import Chain, ChainInput, Edge, KeyedQuery, PlacedOperator
from tidemill.views.chain.join_operators import StatefulJoin
from tidemill.views.chain.keyed_operators import ReplaceRows
from tidemill.views.chain.outputs import OutputSink, SpillSink
from tidemill.views.chain.recomputed_operators import StoredResult
from tidemill.views.chain.row_expressions import RowExpressions
from tidemill.views.chain.stateful_operator import StatefulOperator
from tidemill.views.circuit.operators import Operator
from tidemill.views.kernels.scalars import ArrowRows
from tidemill.views.trace.layout import Layout

CompileRows = Callable[
    [RowExpressions, Sequence[pa.DataType], Sequence[pa.DataType]],
    ArrowRows | None,
]
"""Compiles row expressions to Arrow kernels, from the types of the columns before and after them.

Returns None if Spark must evaluate them.
"""


class ChainGraph:
    """The operators, edges and queries of one chain.

    - compile_rows: compiles row expressions to Arrow kernels.
    """

    def __init__(self, compile_rows: CompileRows = lambda *_: None) -> None:
        self._compile_rows = compile_rows
        self._operators: list[tuple[str, StatefulOperator]] = []
        self._edges: list[tuple[int | ChainInput, int, int, RowExpressions]] = []
        self._queries: list[KeyedQuery] = []
        self._constants: dict[str, Operator] = {}

    def chain(self) -> Chain:
        """Return the finished chain."""
        self._fuse_queries()
        jobs = self._jobs()
        self._unshare_across_jobs(jobs)
        self._spill_across_jobs(jobs)
        layers = self._layers()
        operators = tuple(
            PlacedOperator(
                number, name, operator, jobs[number], layers[number], borrowed=self._borrowed(number)
            )
            for number, (name, operator) in enumerate(self._operators)
        )
        edges = []
        for number, (origin, target, side, expressions) in enumerate(self._edges):
            edges.append(self._edge(number, origin, target, side, expressions))
        chain = Chain(operators, tuple(edges), tuple(self._queries), tuple(self._constants.items()))
        needed = {view: chain.below({sink.number}) for view, sink in chain.outputs.items()}
        with_views = [
            replace(placed, views=frozenset(view for view, below in needed.items() if placed.number in below))
            for placed in operators
        ]
        return replace(chain, operators=tuple(with_views))

    def _edge(
        self, number: int, origin: int | ChainInput, target: int, side: int, expressions: RowExpressions
    ) -> Edge:
        if isinstance(origin, ChainInput):
            width, types = origin.width, list(origin.types)
        else:
            types = list(self.operator(origin).out.types)[:-1]
            width = len(types)
        operator = self.operator(target)
        if isinstance(operator, OutputSink) and operator.needs_spark:
            return Edge(number, origin, target, side, expressions, None)
        plain = expressions.plain(width)
        arrow = None
        if plain is None and len(types) == width:
            arrow = self._compile_rows(expressions, types, operator.takes(side))
        return Edge(number, origin, target, side, expressions, plain, arrow)

    def _borrowed(self, number: int) -> tuple[tuple[str, str, Layout], ...]:
        """Return the traces of sources that a join reads: the join's name for each, its id and its layout."""
        operator = self.operator(number)
        if not isinstance(operator, StatefulJoin):
            return ()
        sources = {
            side: self._operators[origin][0]
            for origin, target, side, _ in self._edges
            if target == number and isinstance(origin, int)
        }
        return tuple(
            (f"{tag}.{name}", f"{sources[side]}.{name}", layout)
            for side, tag, layouts in operator.borrowed
            for name, layout in layouts.items()
        )

    # --- adding

    def add(self, name: str, operator: StatefulOperator) -> int:
        """Add an operator under the name of its stored state; return its number."""
        self._operators.append((name, operator))
        return len(self._operators) - 1

    def connect(self, origin: int | ChainInput, target: int, side: int, expressions: RowExpressions) -> None:
        """Send rows from an operator or input to a side of an operator, through row expressions."""
        self._edges.append((origin, target, side, expressions))

    def operator(self, number: int) -> StatefulOperator:
        """Return an operator by its number."""
        return self._operators[number][1]

    def add_constant(self, name: str, op: Operator) -> None:
        """Add an input with the same rows in every step."""
        self._constants[name] = op

    def add_query(self, query: KeyedQuery) -> None:
        """Add the query of a keyed or recomputed operator."""
        self._queries.append(query)

    def spill(
        self, origin: int, expressions: RowExpressions, types: tuple[pa.DataType, ...] | None = None
    ) -> str:
        """Write the rows of an operator for a later job; return the name of the input they become.

        - types: the types after the row expressions; None if these only select columns.
        """
        if types is None:
            out = self.operator(origin).out
            places = expressions.plain(len(out) - 1)
            assert places is not None
            types = tuple(out.field(place).type for place in places)
        name = f"spill:{len(self._operators)}"
        number = self.add(name, SpillSink(name, tuple(f"c{i}" for i in range(len(types))), types, local=True))
        self.connect(origin, number, 0, expressions)
        return name

    # --- jobs and layers

    def _fuse_queries(self) -> None:
        """Move row expressions into the query of the operator below, if it has only one reader.

        Rows and columns that these expressions drop are then neither stored nor compared.
        """
        for place, query in enumerate(self._queries):
            number = int(query.table.partition(":")[2])
            leaving = [at for at, (origin, *_) in enumerate(self._edges) if origin == number]
            name, operator = self._operators[number]
            if len(leaving) != 1 or not isinstance(operator, ReplaceRows | StoredResult):
                continue
            _, target, side, expressions = self._edges[leaving[0]]
            if expressions.explodes or expressions.plain(len(operator.types)) is not None:
                continue
            types = self.operator(target).takes(side)
            self._operators[number] = (f"{name}.{expressions.digest}", replace(operator, types=types))
            self._queries[place] = replace(query, expressions=expressions)
            self._edges[leaving[0]] = (number, target, side, RowExpressions())
            for at, edge in enumerate(self._edges):
                origin = edge[0]
                if isinstance(origin, ChainInput) and origin.table == query.table:
                    self._edges[at] = (replace(origin, width=len(types) + len(query.key)), *edge[1:])

    def _jobs(self) -> dict[int, int]:
        """Return the job of every operator.

        This job comes after all jobs whose files or queries the operator reads.
        """
        queries = {query.table: query for query in self._queries}
        spills = {
            operator.view: n
            for n, (_, operator) in enumerate(self._operators)
            if isinstance(operator, SpillSink)
        }
        jobs: dict[int, int] = {}

        def job(number: int) -> int:
            if number not in jobs:
                jobs[number] = max(
                    (before(origin) for origin, target, _, _ in self._edges if target == number), default=0
                )
            return jobs[number]

        def before(origin: int | ChainInput) -> int:
            if isinstance(origin, int):
                return job(origin)
            reads = queries[origin.table].reads if origin.table in queries else (origin.table,)
            return max((1 + job(spills[name]) for name in reads if name in spills), default=0)

        for number in range(len(self._operators)):
            job(number)
        return jobs

    def _unshare_across_jobs(self, jobs: Mapping[int, int]) -> None:
        """Give a join its own trace if its source is in an earlier job, as rows then arrive through files."""
        for origin, target, side, _ in self._edges:
            name, operator = self._operators[target]
            if isinstance(operator, StatefulJoin) and isinstance(origin, int) and jobs[origin] < jobs[target]:
                left, right = operator.shared
                shared = (left, None) if side else (None, right)
                self._operators[target] = (name, replace(operator, shared=shared))

    def _spill_across_jobs(self, jobs: dict[int, int]) -> None:
        """Route rows from one job to a later one through files."""
        for place, (origin, target, side, expressions) in enumerate(list(self._edges)):
            if isinstance(origin, int) and jobs[origin] < jobs[target]:
                types = self.operator(target).takes(side)
                name = self.spill(origin, expressions, types)
                jobs[len(self._operators) - 1] = jobs[origin]
                self._edges[place] = (ChainInput(name, len(types)), target, side, RowExpressions())

    def _layers(self) -> dict[int, int]:
        """Return the layer of every operator within its job."""
        layers: dict[int, int] = {}

        def layer(number: int) -> int:
            if number not in layers:
                operator = self._operators[number][1]
                below = [
                    layer(origin) if isinstance(origin, int) else 0
                    for origin, target, _, _ in self._edges
                    if target == number
                ]
                local = isinstance(operator, OutputSink) and operator.local
                layers[number] = max(below, default=0) + (0 if local else 1)
            return layers[number]

        for number in range(len(self._operators)):
            layer(number)
        return layers
