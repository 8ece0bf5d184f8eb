"""A chain while it is put together: stations and the edges between them, and how they fall into jobs.

A station is added before what it gives is connected; a job ends where rows have to be there as files: for the
query of a keyed operator, and for rows that are exploded behind a kernel. Inside of a job stations lie in
layers, each behind those it takes rows from.
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
    """The stations, edges and queries of one chain."""

    def __init__(self) -> None:
        self._stations: list[tuple[str, StatefulOperator]] = []
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
        stations = tuple(
            PlacedOperator(
                number, name, station, jobs[number], layers[number], borrowed=self._borrowed(number)
            )
            for number, (name, station) in enumerate(self._stations)
        )
        edges = []
        for number, (origin, target, side, leg) in enumerate(self._edges):
            width = origin.width if isinstance(origin, ChainInput) else len(self.station(origin).out) - 1
            station = self.station(target)
            asks = isinstance(station, OutputSink) and station.asks_spark
            plain = None if asks else leg.plain(width)
            edges.append(Edge(number, origin, target, side, leg, plain))
        chain = Chain(stations, tuple(edges), tuple(self._queries), tuple(self._constants.items()))
        needs = {view: chain.below({one.number}) for view, one in chain.outputs.items()}
        marked = [
            replace(one, views=frozenset(view for view, below in needs.items() if one.number in below))
            for one in stations
        ]
        return replace(chain, stations=tuple(marked))

    def _borrowed(self, number: int) -> tuple[tuple[str, str, Layout], ...]:
        """What a join reads of its sources' traces: its name for each, the trace's id and layout."""
        station = self.station(number)
        if not isinstance(station, StatefulJoin):
            return ()
        from_source = {
            side: self._stations[origin][0]
            for origin, target, side, _ in self._edges
            if target == number and isinstance(origin, int)
        }
        return tuple(
            (f"{tag}.{name}", f"{from_source[side]}.{name}", layout)
            for side, tag, layouts in station.borrowed
            for name, layout in layouts.items()
        )

    # --- putting together

    def add(self, name: str, station: StatefulOperator) -> int:
        """A station, under the name that its state is kept by; its number."""
        self._stations.append((name, station))
        return len(self._stations) - 1

    def connect(self, origin: int | ChainInput, target: int, side: int, leg: RowExpressions) -> None:
        """Rows go from there to a side of a station, through a leg."""
        self._edges.append((origin, target, side, leg))

    def station(self, number: int) -> StatefulOperator:
        """One that was added."""
        return self._stations[number][1]

    def constant(self, name: str, op: Operator) -> None:
        """An operator whose rows are the same in every step."""
        self._constants[name] = op

    def query(self, query: KeyedQuery) -> None:
        """What Spark computes from rows that were kept."""
        self._queries.append(query)

    def spill(self, origin: int, leg: RowExpressions) -> str:
        """Keep the rows of a station for a later job; the name of the input they are there."""
        width = len(self.station(origin).out) - 1
        places = leg.plain(width)
        assert places is not None
        types = tuple(self.station(origin).out.field(place).type for place in places)
        return self.spilled(origin, leg, types)

    def spilled(self, origin: int, leg: RowExpressions, types: tuple[pa.DataType, ...]) -> str:
        """The same, where the leg makes columns of these types."""
        name = f"spill:{len(self._stations)}"
        number = self.add(name, SpillSink(name, tuple(f"c{i}" for i in range(len(types))), types, local=True))
        self.connect(origin, number, 0, leg)
        return name

    # --- jobs and layers

    def _fuse(self) -> None:
        """What happens to the result of a keyed operator on its only way is done by its query: what is left
        out there is neither stored nor compared.
        """
        for place, query in enumerate(self._queries):
            number = int(query.table.partition(":")[2])
            ways = [at for at, (origin, *_) in enumerate(self._edges) if origin == number]
            name, station = self._stations[number]
            if len(ways) != 1 or not isinstance(station, ReplaceRows):
                continue
            _, target, side, leg = self._edges[ways[0]]
            if leg.explodes or leg.plain(len(station.types)) is not None:
                continue
            shown = self.station(target).takes(side)
            self._stations[number] = (f"{name}.{leg.digest}", replace(station, types=shown))
            self._queries[place] = replace(query, leg=leg)
            self._edges[ways[0]] = (number, target, side, RowExpressions())
            for at, (origin, to, where, way) in enumerate(self._edges):
                if isinstance(origin, ChainInput) and origin.table == query.table:
                    widened = replace(origin, width=len(shown) + len(query.key))
                    self._edges[at] = (widened, to, where, way)

    def _jobs(self) -> dict[int, int]:
        """The job of every station: behind the queries that it reads."""
        queries = {one.table: one for one in self._queries}
        spills = {
            station.view: n for n, (_, station) in enumerate(self._stations) if isinstance(station, SpillSink)
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

        for number in range(len(self._stations)):
            job(number)
        return found

    def _part(self, jobs: Mapping[int, int]) -> None:
        """A join in a later job than its source remembers rows itself: they reach it through files."""
        for origin, target, side, _ in self._edges:
            name, station = self._stations[target]
            if isinstance(station, StatefulJoin) and isinstance(origin, int) and jobs[origin] < jobs[target]:
                left, right = station.lent
                lent = (left, None) if side else (None, right)
                self._stations[target] = (name, replace(station, lent=lent))

    def _cross(self, jobs: dict[int, int]) -> None:
        """Have rows that go from one job to a later one pass through files."""
        for place, (origin, target, side, leg) in enumerate(list(self._edges)):
            if isinstance(origin, int) and jobs[origin] < jobs[target]:
                types = self.station(target).takes(side)
                name = self.spilled(origin, leg, types)
                jobs[len(self._stations) - 1] = jobs[origin]
                self._edges[place] = (ChainInput(name, len(types)), target, side, RowExpressions())

    def _layers(self, jobs: Mapping[int, int]) -> dict[int, int]:
        """The layer of every station in its job."""
        found: dict[int, int] = {}

        def layer(number: int) -> int:
            if number not in found:
                station = self._stations[number][1]
                below = [
                    layer(origin) if isinstance(origin, int) else 0
                    for origin, target, _, _ in self._edges
                    if target == number
                ]
                stays = isinstance(station, OutputSink) and station.local
                found[number] = max(below, default=0) + (0 if stays else 1)
            return found[number]

        for number in range(len(self._stations)):
            layer(number)
        return found
