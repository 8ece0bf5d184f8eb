"""Build the chain of a circuit: its stateful operators and the edges between them.

The file is long because the builder is one class, with a method for each kind of operator.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import starmap

import pyarrow as pa

from tidemill.errors import TypeRefused
from tidemill.schemas.type_table import common_type
from tidemill.views.aggregates.registry import Argument, kernel_of
from tidemill.views.chain.chain import Chain, ChainInput, InputKind, KeyedQuery
from tidemill.views.chain.chain_graph import ChainGraph, CompileRows
from tidemill.views.chain.grouping_sets import columns_read, result_places
from tidemill.views.chain.join_operators import StatefulJoin, StatefulMatches
from tidemill.views.chain.keyed_operators import GatherRows, ReplaceRows
from tidemill.views.chain.native_operators import StatefulAggregate, StatefulSet
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.chain.preparation import NoKernel, NoKey
from tidemill.views.chain.range_join_operator import StatefulRangeJoin
from tidemill.views.chain.recomputed_operators import StoredInput, StoredResult
from tidemill.views.chain.row_expressions import ExplodeStep, RowExpressions
from tidemill.views.chain.scalar_operator import StatefulScalar
from tidemill.views.chain.source_operators import ChangesSource, UpsertsSource
from tidemill.views.chain.source_sharing import SharedSource, side_key, source_keys
from tidemill.views.chain.stateful_operator import StatefulOperator
from tidemill.views.chain.top_operators import StatefulTop, top_operators
from tidemill.views.chain.window_operators import StatefulWindow, session_operator, window_operator
from tidemill.views.circuit import operators as ops
from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.comparisons import comparisons
from tidemill.views.circuit.expr import Expr, cast, column
from tidemill.views.circuit.ids import expressions_of
from tidemill.views.circuit.operators import Operator
from tidemill.views.circuit.row_properties import append_only, may_multiply
from tidemill.views.circuit.rungs import is_native, reads_clock
from tidemill.views.circuit.window_calls import rank_limit
from tidemill.views.kernels.extremes import BEST
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import GroupKernel
from tidemill.views.kernels.range_join import Comparison
from tidemill.views.kernels.sort_codes import sortable
from tidemill.views.kernels.windows import RankLimit

Types = Mapping[Operator, tuple[str, ...]]
ArrowTypes = Callable[[str], pa.DataType]
"""Converts a Spark type to an Arrow type; raises `TypeRefused` if no kernel supports it."""

Flow = tuple[int | ChainInput, RowExpressions]
"""Where rows come from, and the row expressions that they pass through."""


class ChainBuilder:
    """Builds the chain of a circuit.

    Args:
        types: the column types of every operator, as Spark writes them.
        ids: the id of every operator.
        arrow: converts Spark types to Arrow types.
        kinds: how the rows of each table arrive.
        compile_rows: compiles row expressions to Arrow kernels.
    """

    def __init__(
        self,
        circuit: Circuit,
        types: Types,
        ids: Mapping[Operator, str],
        arrow: ArrowTypes,
        kinds: Mapping[str, InputKind],
        compile_rows: CompileRows = lambda *_: None,
    ) -> None:
        self._circuit = circuit
        self._types = types
        self._ids = ids
        self._arrow = arrow
        self._kinds = kinds
        self._append_only: dict[Operator, bool] = {}
        for output in circuit.outputs.values():
            self._append_only |= append_only(output)
        self._graph = ChainGraph(compile_rows)
        self._sources: dict[ops.InputTable, int] = {}  # the number of each source operator
        self._results: dict[Operator, list[Flow]] = {}  # where the rows of each stateful operator come from
        self._keys: dict[ops.InputTable, tuple[int, ...]] = {}
        self._limits: dict[Operator, RankLimit] = {}
        self.recomputed: dict[Operator, str] = {}
        """The operators that Spark recomputes from their stored inputs, and why."""

    def build(self, views: Sequence[str]) -> Chain:
        """Build the chain of these views; raise `NoKernel` if a chain cannot compute an operator."""
        self._keys = source_keys(walk(*(self._circuit.outputs[view] for view in views)), self._types)
        self._limits = self._rank_limits()
        for view in views:
            self._output(view)
        return self._graph.chain()

    def _rank_limits(self) -> dict[Operator, RankLimit]:
        """Return the windows of which a filter needs only the first ranks, if nothing else reads them."""
        readers = self._circuit.consumers()
        limits: dict[Operator, RankLimit] = {}
        for op in readers:
            limited = rank_limit(op) if isinstance(op, ops.Filter) else None
            if limited is None:
                continue
            window, function, most = limited
            if all(len(readers[below]) == 1 for below in {window, op.inputs[0]}):
                limits[window] = RankLimit(function, most)
        return limits

    # --- views

    def _output(self, view: str) -> None:
        output = self._circuit.outputs[view]
        types = self._types.get(output, ())
        if not types:
            raise NoKernel("the view has no columns")
        flows = self._flows(output)
        local = len(flows) == 1 and isinstance(flows[0][0], int) and self._keeps_key(*flows[0])
        operator = OutputSink(view, output.names, tuple(map(self._arrow, types)), local)
        number = self._graph.add(f"view:{view}", operator)
        for origin, expressions in flows:
            self._graph.connect(origin, number, 0, expressions)

    def _keeps_key(self, origin: int | ChainInput, expressions: RowExpressions) -> bool:
        """Return whether the rows still have every key column of their operator.

        If they do, equal rows of the view come from the same range.
        """
        assert isinstance(origin, int)
        operator = self._graph.operator(origin)
        keys = 0
        if isinstance(operator, StatefulAggregate):
            keys = len(operator.kernel.keys)
        elif isinstance(operator, StatefulSet):
            keys = len(operator.types)
        if not keys or expressions.explodes:
            return False
        return set(range(keys)) <= set(expressions.origins(len(operator.out) - 1))

    # --- row expressions

    def _flows(self, op: Operator) -> list[Flow]:
        """Return where the rows of an operator come from, and the row expressions that they pass through."""
        if isinstance(op, ops.InputTable):
            return [(self._source(op), RowExpressions())]
        if isinstance(op, ops.LiteralRows):
            name = f"values:{self._ids[op]}"
            self._graph.add_constant(name, op)
            return [(ChainInput(name, op.width), RowExpressions())]
        if isinstance(op, ops.Filter):
            self._no_clock(op.conditions)
            return [
                (origin, expressions.where(op.conditions)) for origin, expressions in self._flows(op.input)
            ]
        if isinstance(op, ops.Project):
            self._no_clock(op.expressions)
            return [
                (origin, expressions.select(op.expressions)) for origin, expressions in self._flows(op.input)
            ]
        if isinstance(op, ops.Generate):
            step = ExplodeStep(op.call, op.input.width, op.produces, op.outer)
            return [self._exploded(op.input, *flow, step) for flow in self._flows(op.input)]
        if isinstance(op, ops.UnionAll):
            return [
                (origin, expressions.cast(self._types[part], self._types[op]))
                for part in op.parts
                for origin, expressions in self._flows(part)
            ]
        if isinstance(op, ops.ViewOutput):
            return self._flows(op.input)
        if op not in self._results:
            self._results[op] = self._stateful(op)
        return self._results[op]

    def _exploded(
        self, below: Operator, origin: int | ChainInput, expressions: RowExpressions, step: ExplodeStep
    ) -> tuple[int | ChainInput, RowExpressions]:
        """Add an explode step. Rows of a kernel reach it through files, in a later job."""
        if isinstance(origin, int):
            types = tuple(map(self._arrow, self._types[below]))
            origin, expressions = (
                ChainInput(self._graph.spill(origin, expressions, types), len(types)),
                RowExpressions(),
            )
        return origin, expressions.explode(step)

    def _no_clock(self, expressions: Iterable[Expr]) -> None:
        if any(expression.reads_clock for expression in expressions):
            raise NoKernel("it uses the current time")

    def _source(self, op: ops.InputTable) -> int | ChainInput:
        kind = self._kinds[op.table]
        if kind.rows == "rows":
            return ChainInput(op.table, op.width, self._known_types(op))
        if op not in self._sources:
            types = tuple(self._arrow(each.type) for each in op.columns)
            if kind.rows == "changes":
                key, extra = self._keys.get(op, ()), 0
                operator: StatefulOperator = ChangesSource(types, key)
                name = f"{self._ids[op]}.by{'-'.join(map(str, key))}" if key else self._ids[op]
            else:
                self._check_order(op, types, kind.order)
                operator, extra, name = UpsertsSource(types, op.key, kind.order), 3, self._ids[op]
                if kind.order:
                    name = f"{name}.order{'-'.join(map(str, kind.order))}"
            number = self._graph.add(name, operator)
            self._graph.connect(ChainInput(op.table, op.width + extra), number, 0, RowExpressions())
            self._sources[op] = number
        return self._sources[op]

    def _check_order(self, op: ops.InputTable, types: Sequence[pa.DataType], order: Sequence[int]) -> None:
        """Raise `NoKernel` if a kernel cannot compare the values that order the writes of a table."""
        for place in order:
            if not sortable(types[place]):
                column = op.columns[place]
                raise NoKernel(
                    f"{op.table} is ordered by {column.name}: a kernel cannot sort {column.type} values"
                )

    def _known_types(self, op: ops.InputTable) -> tuple[pa.DataType, ...]:
        """Return the types of a table's columns; none if kernels do not support one of them."""
        try:
            return tuple(self._arrow(each.type) for each in op.columns)
        except TypeRefused:
            return ()

    # --- stateful operators

    def _stateful(self, op: Operator) -> list[Flow]:
        try:
            if isinstance(op, ops.Join):
                return self._join(op)
            number = self._incremental(op)
        except NoKey as error:
            number = self._recomputed(op, str(error))
        return [(number, self._output_columns(op, number))]

    def _incremental(self, op: Operator) -> int:
        """Add an operator that has a kernel or a key; otherwise raise `NoKey` and add nothing."""
        if isinstance(op, ops.Aggregate):
            return self._aggregate(op)
        if isinstance(op, ops.Distinct):
            return self._sets(op, "distinct", (op.input,))
        if isinstance(op, ops.SetOp):
            kind = op.operation + ("_all" if op.keep_all else "")
            return self._sets(op, kind, (op.left, op.right))
        if isinstance(op, ops.TopK):
            return self._top(op)
        if isinstance(op, ops.Window):
            return self._window(op)
        if isinstance(op, ops.Sessions):
            columns, sessions = session_operator(op, self._types[op.input], self._arrow)
            number = self._graph.add(f"{self._ids[op]}.sessions", sessions)
            self._connect_child(op.input, number, 0, columns)
            return number
        if isinstance(op, ops.Scalar):
            return self._scalar(op)
        if isinstance(op, ops.Opaque):
            raise NoKernel(op.reason)
        raise NoKey(f"{op.kind}: this operator has no key, so it cannot be updated key by key")

    def _join(self, op: ops.Join) -> list[Flow]:
        """Add a join; return its pairs, and the rows of a side that it returns without a partner."""
        if not op.keys and op.join == "inner":
            return [(self._range_join(op), RowExpressions().where(op.residual))]
        if not op.keys:
            raise NoKey(
                f"a join ({op.join}) without an equality has no key, so it cannot be updated key by key"
            )
        if not op.residual:
            number, columns = self._equi_join(op, op.join, self._ids[op])
            return [(number, columns)]
        number, columns = self._equi_join(op, "inner", f"{self._ids[op]}.pairs")
        pairs = (number, columns.where(op.residual))
        if op.join in {"semi", "anti"}:
            return [self._matches(op, 0, pairs)]
        sides = {"left": (0,), "right": (1,), "full": (0, 1)}[op.join]
        return [pairs, *(self._matches(op, side, pairs) for side in sides)]

    def _equi_join(self, op: ops.Join, kind: ops.JoinKind, name: str) -> Flow:
        """Add a join on the keys alone; return its rows with the columns of both inputs, or of the left."""
        sides = []
        key_types = [self._key_type(op, key) for key in op.keys]
        for child, expressions in (
            (op.left, [key.left for key in op.keys]),
            (op.right, [key.right for key in op.keys]),
        ):
            keys = self._columns_of(expressions)
            columns, key_places, types = self._with_key(child, keys, key_types)
            sides.append((columns, tuple(key_places), tuple(map(self._arrow, types))))
        (left_columns, left_keys, left_types), (right_columns, right_keys, right_types) = sides
        safe = tuple(key.null_safe for key in op.keys)
        shared = (self._shared_source(op, 0), self._shared_source(op, 1))
        operator = StatefulJoin(left_types, right_types, left_keys, right_keys, safe, shared, kind)
        number = self._graph.add(name, operator)
        self._connect_child(op.left, number, 0, left_columns)
        self._connect_child(op.right, number, 1, right_columns)
        selected = list(range(op.left.width))
        if len(operator.out) - 1 > len(left_types):
            selected += range(len(left_types), len(left_types) + op.right.width)
        if selected == list(range(len(operator.out) - 1)):
            return number, RowExpressions()
        return number, RowExpressions().select(list(map(column, selected)))

    def _matches(self, op: ops.Join, side: int, pairs: Flow) -> Flow:
        """Add the rows of a side that have a match among the pairs (semi join), or have none."""
        child, other = (op.right, op.left) if side else (op.left, op.right)
        nulls = () if op.left_only else tuple(map(self._arrow, self._types[other]))
        operator = StatefulMatches(
            tuple(map(self._arrow, self._types[child])),
            matched=op.join == "semi",
            before=nulls if side else (),
            after=() if side else nulls,
        )
        number = self._graph.add(f"{self._ids[op]}.{'right' if side else 'left'}", operator)
        self._connect_child(child, number, 0, list(map(column, range(child.width))))
        first = op.left.width if side else 0
        origin, expressions = pairs
        columns = list(map(column, range(first, first + child.width)))
        self._graph.connect(origin, number, 1, expressions.select(columns))
        return number, RowExpressions()

    def _range_join(self, op: ops.Join) -> int:
        """Add a join by comparisons; the filter above it checks all its conditions."""
        sides = tuple(tuple(map(self._arrow, self._types[child])) for child in op.inputs)
        left, right = sides
        usable = tuple(
            each
            for each in starmap(Comparison, comparisons(op))
            if left[each.left] == right[each.right] and sortable(left[each.left])
        )
        if not usable:
            raise NoKey("a join without an equality and without a comparison of columns of the same type")
        number = self._graph.add(f"{self._ids[op]}.ordered-ranges", StatefulRangeJoin(left, right, usable))
        for side, child in enumerate(op.inputs):
            self._connect_child(child, number, side, list(map(column, range(child.width))))
        return number

    def _shared_source(self, op: ops.Join, side: int) -> SharedSource | None:
        """Return the source whose trace a side of a join can read; None if no source has the same key."""
        shareable = side_key(op, side, self._types)
        if shareable is None or self._kinds[shareable[0].table].rows == "rows":
            return None
        source, places, key = shareable
        origin = self._source(source)
        operator = self._graph.operator(origin) if isinstance(origin, int) else None
        if isinstance(operator, ChangesSource | UpsertsSource) and operator.key == key:
            return SharedSource(operator, places)
        return None

    def _key_type(self, op: ops.Join, key: ops.JoinKey) -> str:
        """Return the type in which Spark compares the two columns of a join key."""
        assert key.left.column is not None
        assert key.right.column is not None
        left, right = self._types[op.left][key.left.column], self._types[op.right][key.right.column]
        common = common_type(left, right)
        if common is None:
            raise NoKey(f"a join of {left} with {right} cannot be updated natively")
        return common

    def _aggregate(self, op: ops.Aggregate) -> int:
        below = self._types[op.input] if op.input.width else ()
        aggs, results = [], []
        values: dict[int, str] = {}  # the columns to aggregate, by place
        if any(expr.is_session_window for expr in op.groups):
            places = [place for place, expr in enumerate(op.groups) if not expr.is_session_window]
            return self._keyed(op, self._columns_of([op.groups[place] for place in places]), places)
        if not all(_is_native(aggregate) for aggregate in op.calls):
            return self._keyed_aggregate(op)
        keys = self._columns_of(op.groups)
        distinct: dict[tuple[int, ...], str] = {}  # the columns of which distinct values are aggregated
        for n, aggregate in enumerate(op.calls):
            read = tuple(self._columns_of(aggregate.arguments))
            if aggregate.distinct:
                names = [distinct.setdefault(read, f"d{len(distinct)}")]
            else:
                names = [values.setdefault(place, f"v{place}") for place in read]
            first, second = (*names, None, None)[:2]
            aggs.append(GroupAggregate(aggregate.name, first, f"a{n}", second))
            results.append(self._arrow(self._types[op][len(op.groups) + n]))
        fields = [pa.field(f"k{n}", self._arrow(below[place])) for n, place in enumerate(keys)]
        if op.sets is not None:
            fields.append(pa.field(f"k{len(keys)}", pa.int64()))
        inputs = [pa.field(name, self._arrow(below[place])) for place, name in values.items()]
        inputs += [pa.field(name, self._arrow(below[read[0]])) for read, name in distinct.items()]
        best = 1 if self._append_only.get(op.input) else BEST
        try:
            always = not op.groups and op.sets is None
            kernel = GroupKernel(
                pa.schema(fields), pa.schema(inputs), tuple(aggs), best, always, tuple(distinct.values())
            )
            operator = StatefulAggregate(kernel, tuple(results))
        except TypeRefused as error:
            if op.groups and op.sets is None:
                return self._keyed_aggregate(op)
            raise NoKey(error.message) from None
        if op.sets is not None and len(set(map(frozenset, op.sets))) < len(op.sets):
            raise NoKey("a grouping set appears twice")  # Spark returns the rows once for each
        number = self._graph.add(f"{self._ids[op]}.{best}", operator)
        for columns in columns_read(op.sets, keys, list(values), below):
            self._connect_child(op.input, number, 0, columns)
        for n, read in enumerate(distinct):
            self._connect_distinct(op, number, 1 + n, fields, read)
        return number

    def _connect_distinct(
        self, op: ops.Aggregate, number: int, side: int, keys: Sequence[pa.Field], places: Sequence[int]
    ) -> None:
        """Send the distinct values of some columns in each group to a side of an aggregate."""
        below = self._types[op.input]
        types = [key.type for key in keys] + [self._arrow(below[place]) for place in places]
        values = self._graph.add(f"{self._ids[op]}.distinct{side}", StatefulSet("distinct", tuple(types)))
        for columns in columns_read(op.sets, self._columns_of(op.groups), places, below):
            self._connect_child(op.input, values, 0, columns)
        first = list(map(column, range(len(keys) + 1)))
        self._graph.connect(values, number, side, RowExpressions().select(first))

    def _sets(self, op: Operator, kind: str, children: Sequence[Operator]) -> int:
        types = self._types.get(op, ())
        if not types:
            raise NoKernel("its rows have no columns")
        operator = StatefulSet(kind, tuple(map(self._arrow, types)))
        number = self._graph.add(self._ids[op], operator)
        for place, child in enumerate(children):
            for origin, expressions in self._flows(child):
                self._graph.connect(origin, number, place, expressions.cast(self._types[child], types))
        return number

    def _top(self, op: ops.TopK) -> int:
        """Add the first rows of each bucket, and above them the first rows of all buckets."""
        columns, candidates, merged = top_operators(op, self._types.get(op.input, ()), self._arrow)
        first = self._graph.add(f"{self._ids[op]}.first", candidates)
        self._connect_child(op.input, first, 0, columns)
        number = self._graph.add(f"{self._ids[op]}.top", merged)
        self._graph.connect(first, number, 0, RowExpressions())
        return number

    def _window(self, op: ops.Window) -> int:
        """Add window functions; Spark recomputes the partitions that changed if there is no kernel."""
        limit = self._limits.get(op)
        below = self._types.get(op.input, ())
        try:
            columns, operator = window_operator(op, self._types[op], below, self._arrow, limit)
        except (NoKey, TypeRefused):
            if not op.partition:
                why = "this operator has no key, so it cannot be updated key by key"
                raise NoKey(f"window without PARTITION BY: {why}") from None
            key = self._columns_of(op.partition)
            return self._keyed(op, key, key)
        ranks = "" if limit is None else f".first{limit.function}-{limit.most}"
        number = self._graph.add(f"{self._ids[op]}.ordered{ranks}", operator)
        self._connect_child(op.input, number, 0, columns)
        return number

    def _scalar(self, op: ops.Scalar) -> int:
        """Add the value of a scalar subquery to rows."""
        types = self._types.get(op.input, ())
        if not types:
            raise NoKey("scalar: its rows have no columns")
        value = self._arrow(self._types[op][op.input.width])
        number = self._graph.add(
            f"{self._ids[op]}.scalar", StatefulScalar(tuple(map(self._arrow, types)), value)
        )
        self._connect_child(op.input, number, 0, list(map(column, range(op.input.width))))
        self._connect_child(op.value, number, 1, [column(0)])
        return number

    # --- keyed operators

    def _columns_of(self, expressions: Sequence[Expr]) -> list[int]:
        places = [expression.column for expression in expressions]
        assert None not in places, "`prepared` replaces expressions in keys with columns"
        return [place for place in places if place is not None]

    def _keyed_aggregate(self, op: ops.Aggregate) -> int:
        """Add an aggregate that Spark computes for the groups that changed."""
        names = {aggregate.name for aggregate in op.calls if not _is_native(aggregate)}
        name = ", ".join(sorted(names)) or "an aggregate"
        if not op.groups:
            raise NoKey(f"{name} without GROUP BY has no key, so it cannot be updated key by key")
        if op.sets is not None:
            raise NoKey(f"{name} with grouping sets has no key, so it cannot be updated key by key")
        return self._keyed(op, self._columns_of(op.groups), list(range(len(op.groups))))

    def _keyed(self, op: ops.Aggregate | ops.Window, keys: Sequence[int], result: Sequence[int]) -> int:
        """Add an operator that Spark computes for the keys that changed.

        Args:
            op: the operator.
            keys: the key columns of its input.
            result: the key columns of the operator itself.
        """
        self._no_clock(expressions_of(op))
        child, types = op.input, tuple(map(self._arrow, self._types[op]))
        key_types = tuple(self._arrow(self._types[child][place]) for place in keys)
        gather = self._graph.add(
            f"{self._ids[op]}.gather0",
            GatherRows(tuple(map(self._arrow, self._types[child])), tuple(keys)),
        )
        self._connect_child(child, gather, 0, list(map(column, range(child.width))))
        target = self._graph.add(self._ids[op], ReplaceRows(types, key_types))
        self._connect_child(child, target, 1, list(map(column, keys)))
        rows = self._graph.spill(gather, RowExpressions().select(list(map(column, range(child.width)))))
        table = f"result:{target}"
        self._graph.add_query(KeyedQuery(table, op, tuple(map(column, result)), (rows,)))
        self._graph.connect(ChainInput(table, op.width + len(keys)), target, 0, RowExpressions())
        return target

    def _with_key(
        self, child: Operator, key: Sequence[int], key_types: Sequence[str]
    ) -> tuple[list[Expr], list[int], list[str]]:
        """Return the columns of a child, with its key columns in the types in which they are compared.

        Returns the columns, the places of the key among them, and the types of the columns. A key column of
        another type is added a second time, with a cast.
        """
        types, columns, places = list(self._types[child]), list(map(column, range(child.width))), []
        for place, key_type in zip(key, key_types, strict=True):
            if types[place] == key_type:
                places.append(place)
            else:
                places.append(len(columns))
                columns.append(cast(column(place), types[place], key_type))
                types.append(key_type)
        return columns, places, types

    # --- recomputed operators

    def _recomputed(self, op: Operator, why: str) -> int:
        """Add an operator that Spark recomputes from its stored inputs; `NoKernel` says why not."""
        if isinstance(op, ops.TemporalFilter) or reads_clock(op):
            raise NoKernel("it uses the current time")
        if not op.inputs:
            raise NoKernel(f"{why}; it reads no table")
        if isinstance(op, ops.Join) and may_multiply(op):
            raise NoKernel(f"{why}; its result can have many more rows than its inputs, so it is not stored")
        self.recomputed[op] = why
        inputs = []
        for n, child in enumerate(op.inputs):
            operator = StoredInput(tuple(map(self._arrow, self._types.get(child, ()))))
            inputs.append(self._graph.add(f"{self._ids[op]}.input{n}", operator))
            self._connect_child(child, inputs[-1], 0, list(map(column, range(child.width))))
        for number, child in zip(inputs, op.inputs, strict=True):
            for other in inputs:
                if other != number:
                    self._connect_child(child, other, 1, [])
        types = tuple(map(self._arrow, self._types.get(op, ())))
        target = self._graph.add(f"{self._ids[op]}.result", StoredResult(types))
        reads = [
            self._graph.spill(number, RowExpressions().select(list(map(column, range(child.width)))))
            for number, child in zip(inputs, op.inputs, strict=True)
        ]
        self._graph.add_query(KeyedQuery(f"result:{target}", op, (), tuple(reads)))
        self._graph.connect(ChainInput(f"result:{target}", op.width), target, 0, RowExpressions())
        return target

    def _output_columns(self, op: Operator, number: int) -> RowExpressions:
        """Return row expressions that turn the columns of a stateful operator into those of `op`."""
        operator = self._graph.operator(number)
        if isinstance(op, ops.Aggregate) and isinstance(operator, StatefulAggregate) and op.sets is not None:
            places = result_places(len(op.groups), len(op.calls))
            return RowExpressions().select(list(map(column, places)))
        if isinstance(operator, StatefulTop) and len(operator.types) > op.width:
            return RowExpressions().select(list(map(column, range(op.width))))
        if isinstance(op, ops.Window) and isinstance(operator, StatefulWindow):
            width, results = op.input.width, len(operator.types)
            shown = [*range(width), *range(results, results + len(op.calls))]
            return RowExpressions().select(list(map(column, shown))) if results > width else RowExpressions()
        return RowExpressions()

    def _connect_child(self, child: Operator, number: int, side: int, columns: Sequence[Expr]) -> None:
        """Connect a child to a side of an operator; the side reads these columns of the child."""
        unchanged = [expression.column for expression in columns] == list(range(child.width))
        for origin, expressions in self._flows(child):
            self._graph.connect(
                origin, number, side, expressions if unchanged else expressions.select(columns)
            )


def _is_native(aggregate: ops.AggregateCall) -> bool:
    """Return whether `prepared` has turned an aggregate into a native one."""
    kernel = kernel_of(aggregate.name)
    if kernel is None or aggregate.filter is not None:
        return False
    return is_native(aggregate) or (kernel.argument is Argument.ORDERED and len(aggregate.arguments) == 1)
