"""Builds the chain of a circuit: its stateful operators, and the edges between them."""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from tidemill.errors import TypeRefused
from tidemill.schemas.type_table import common_type
from tidemill.views.aggregates.registry import kernel_of
from tidemill.views.chain.chain import Chain, ChainInput, KeyedQuery
from tidemill.views.chain.chain_graph import ChainGraph
from tidemill.views.chain.keyed_operators import GatherRows, ReplaceRows
from tidemill.views.chain.native_operators import StatefulAggregate, StatefulJoin, StatefulSet
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.chain.preparation import NoKernel
from tidemill.views.chain.row_expressions import ExplodeStep, RowExpressions, SelectStep
from tidemill.views.chain.source_operators import ChangesSource, UpsertsSource
from tidemill.views.chain.source_sharing import SharedSource, side_key, source_keys
from tidemill.views.chain.stateful_operator import StatefulOperator
from tidemill.views.circuit import operators as ops
from tidemill.views.circuit.circuit import Circuit, walk
from tidemill.views.circuit.expr import Expr, call, column, joined
from tidemill.views.circuit.ids import expressions_of
from tidemill.views.circuit.operators import Operator
from tidemill.views.circuit.row_properties import append_only
from tidemill.views.kernels.extremes import BEST
from tidemill.views.kernels.group_by import GroupAggregate, GroupKernel

Types = Mapping[Operator, tuple[str, ...]]
Arrow = Callable[[str], pa.DataType]
"""The Arrow type of a Spark type; `TypeRefused` for those that no kernel takes."""


class ChainBuilder:
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
        self._wiring = ChainGraph()
        self._made: dict[Operator, int] = {}  # operators with state, and the operators that give their rows
        self._keys: dict[ops.Source, tuple[int, ...]] = {}

    def build(self, views: Sequence[str]) -> Chain:
        """The chain of these views; `NoKernel` says which operator no kernel computes, and why."""
        self._keys = source_keys(walk(*(self._circuit.outputs[view] for view in views)), self._types)
        for view in views:
            self._output(view)
        return self._wiring.chain()

    # --- views

    def _output(self, view: str) -> None:
        output = self._circuit.outputs[view]
        types = self._types.get(output, ())
        if not types:
            raise NoKernel("a view without columns")
        flows = self._flows(output)
        local = len(flows) == 1 and isinstance(flows[0][0], int) and self._meets(*flows[0])
        operator = OutputSink(view, output.names, tuple(map(self._arrow, types)), local)
        number = self._wiring.add(f"view:{view}", operator)
        for origin, expressions in flows:
            self._wiring.connect(origin, number, 0, expressions)

    def _meets(self, origin: int | ChainInput, expressions: RowExpressions) -> bool:
        """Whether equal rows of a view come from one range: the whole key of their operator is among them."""
        assert isinstance(origin, int)
        operator = self._wiring.operator(origin)
        keys = 0
        if isinstance(operator, StatefulAggregate):
            keys = len(operator.kernel.keys)
        elif isinstance(operator, StatefulSet):
            keys = len(operator.types)
        if not keys or expressions.explodes:
            return False
        here: list[int | None] = list(range(len(operator.out) - 1))
        for step in expressions.steps:
            if isinstance(step, SelectStep):
                chosen = [one.column for one in step.expressions]
                here = [None if place is None else here[place] for place in chosen]
        return set(range(keys)) <= set(here)

    # --- row by row

    def _flows(self, op: Operator) -> list[tuple[int | ChainInput, RowExpressions]]:
        """From where the rows of an operator come, and through which row expressions."""
        if isinstance(op, ops.Source):
            return [(self._source(op), RowExpressions())]
        if isinstance(op, ops.LiteralRows):
            name = f"values:{self._ids[op]}"
            self._wiring.constant(name, op)
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
            return [self._apart(op.input, *flow, step) for flow in self._flows(op.input)]
        if isinstance(op, ops.UnionAll):
            return [
                (origin, expressions.cast(self._types[part], self._types[op]))
                for part in op.parts
                for origin, expressions in self._flows(part)
            ]
        if isinstance(op, ops.ViewOutput):
            return self._flows(op.input)
        if op not in self._made:
            self._made[op] = self._stateful(op)
        number = self._made[op]
        return [(number, self._finals(op))]

    def _apart(
        self, below: Operator, origin: int | ChainInput, expressions: RowExpressions, step: ExplodeStep
    ) -> tuple[int | ChainInput, RowExpressions]:
        """Behind a kernel nothing is exploded: such rows pass through files into a job of their own."""
        if isinstance(origin, int):
            types = tuple(map(self._arrow, self._types[below]))
            origin, expressions = (
                ChainInput(self._wiring.spilled(origin, expressions, types), len(types)),
                RowExpressions(),
            )
        return origin, expressions.explode(step)

    def _no_clock(self, expressions: Sequence[Expr]) -> None:
        if any(one.reads_clock for one in expressions):
            raise NoKernel("it reads the clock")

    def _source(self, op: ops.Source) -> int | ChainInput:
        kind = self._kinds[op.table]
        if kind not in {"rows", "changes", "keyed"}:
            raise NoKernel(f"the rows of {op.table} come {kind}")
        if kind == "rows":
            return ChainInput(op.table, op.width)
        if op not in self._made:
            types = tuple(self._arrow(each.type) for each in op.columns)
            if kind == "changes":
                key, extra = self._keys.get(op, ()), 0
                operator: StatefulOperator = ChangesSource(types, key)
                name = f"{self._ids[op]}.by{'-'.join(map(str, key))}" if key else self._ids[op]
            else:
                operator, extra, name = UpsertsSource(types, op.key), 3, self._ids[op]
            number = self._wiring.add(name, operator)
            self._wiring.connect(ChainInput(op.table, op.width + extra), number, 0, RowExpressions())
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
        if isinstance(op, ops.Window) and op.partition:
            return self._keyed(op, [self._plain(op.partition)], self._plain(op.partition))
        raise NoKernel(f"a {op.kind}{' over everything' if isinstance(op, ops.Window) else ''} has no key")

    def _join(self, op: ops.Join) -> int:
        if not op.keys:
            raise NoKernel(f"a {op.join} join without an equality has no key")
        if op.join != "inner":
            return self._outer(op)
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
        lent = (self._lent(op, 0), self._lent(op, 1))
        operator = StatefulJoin(left_types, right_types, left_at, right_at, safe, lent)
        number = self._wiring.add(self._ids[op], operator)
        self._feed(left, number, 0, left_given)
        self._feed(right, number, 1, right_given)
        return number

    def _lent(self, op: ops.Join, side: int) -> SharedSource | None:
        """What a join reads of the source of a side, if that remembers its rows by the same key."""
        found = side_key(op, side, self._types)
        if found is None or self._kinds[found[0].table] == "rows":
            return None
        source, places, key = found
        at = self._source(source)
        operator = self._wiring.operator(at) if isinstance(at, int) else None
        if isinstance(operator, ChangesSource | UpsertsSource) and operator.key == key:
            return SharedSource(operator, places)
        return None

    def _common(self, op: ops.Join, key: ops.JoinKey) -> str:
        """The type that both parts of a pair of keys are compared in, as Spark would."""
        assert key.left.column is not None
        assert key.right.column is not None
        one, other = self._types[op.left][key.left.column], self._types[op.right][key.right.column]
        common = common_type(one, other)
        if common is None:
            raise NoKernel(f"a join compares {one} with {other}")
        return common

    def _aggregate(self, op: ops.Aggregate) -> int:
        below = self._types[op.input] if op.input.width else ()
        keys, aggs, values, results = [], [], {}, []
        if not all(_is_native(one) for one in op.calls):
            return self._groups(op)
        for group in op.groups:
            assert group.column is not None
            keys.append(group.column)
        for n, one in enumerate(op.calls):
            place = one.arguments[0].column if one.arguments else None
            if place is not None:
                values[place] = f"v{place}"
            aggs.append(GroupAggregate(one.name, None if place is None else f"v{place}", f"a{n}"))
            results.append(self._arrow(self._types[op][len(op.groups) + n]))
        fields = [pa.field(f"k{n}", self._arrow(below[place])) for n, place in enumerate(keys)]
        if op.sets is not None:
            fields.append(pa.field(f"k{len(keys)}", pa.int64()))
        inputs = [pa.field(name, self._arrow(below[place])) for place, name in values.items()]
        best = 1 if self._grows.get(op.input) else BEST
        try:
            always = not op.groups and op.sets is None
            kernel = GroupKernel(pa.schema(fields), pa.schema(inputs), tuple(aggs), best, always)
            operator = StatefulAggregate(kernel, tuple(results))
        except TypeRefused as error:
            if op.groups and op.sets is None:
                return self._groups(op)
            raise NoKernel(error.message) from None
        sent = [[*map(column, keys), *map(column, values)]]
        if op.sets is not None:
            if len({frozenset(one) for one in op.sets}) < len(op.sets):  # Spark gives its rows once for each
                raise NoKernel("a grouping set is there twice")
            sent = [_set(one, keys, list(values), below) for one in op.sets]
        number = self._wiring.add(f"{self._ids[op]}.{best}", operator)
        for place, given in enumerate(sent):
            self._feed(op.input, number, place, given)
        return number

    def _sets(self, op: Operator, kind: str, children: Sequence[Operator]) -> int:
        types = self._types.get(op, ())
        if not types:
            raise NoKernel("rows without columns")
        operator = StatefulSet(kind, tuple(map(self._arrow, types)))
        number = self._wiring.add(self._ids[op], operator)
        for place, child in enumerate(children):
            for origin, expressions in self._flows(child):
                self._wiring.connect(origin, number, place, expressions.cast(self._types[child], types))
        return number

    # --- operators with a key

    def _plain(self, expressions: Sequence[Expr]) -> list[int]:
        places = [one.column for one in expressions]
        assert None not in places, "keys were made plain columns before"
        return [place for place in places if place is not None]

    def _groups(self, op: ops.Aggregate) -> int:
        """An aggregate that Spark computes, for the groups that changed."""
        slow = ", ".join(sorted({one.name for one in op.calls if not _is_native(one)})) or "an aggregate"
        if not op.groups:
            raise NoKernel(f"{slow} of everything has no key")
        if op.sets is not None:
            raise NoKernel(f"{slow} with grouping sets has no key")
        return self._keyed(op, [self._plain(op.groups)], list(range(len(op.groups))))

    def _outer(self, op: ops.Join) -> int:
        """A join that Spark computes, for the keys that changed."""
        left, right = self._plain([key.left for key in op.keys]), self._plain([key.right for key in op.keys])
        for key in op.keys:
            self._common(op, key)
        width = op.left.width
        if op.join == "full":
            return self._keyed(op, [left, right], [*left], [width + place for place in right])
        here = [width + place for place in right] if op.join == "right" else left
        return self._keyed(op, [left, right], here)

    def _keyed(
        self, op: Operator, keys: Sequence[Sequence[int]], result: Sequence[int], other: Sequence[int] = ()
    ) -> int:
        """An operator that is computed by Spark for the keys that changed.

        Args:
            op: the operator.
            keys: for each input, which of its columns are the key.
            result: which of the operator's own columns are the key.
            other: those that are it where the first are NULL.
        """
        if any(one.reads_clock for one in expressions_of(op)):
            raise NoKernel("it reads the clock")
        children, name = op.inputs, self._ids[op]
        kinds = [self._kinds_of_key(op, keys, n) for n in range(len(keys[0]))]
        key = [
            _cast(_either(place, other[n] if other else None), self._types[op][place], kind)
            for n, (place, kind) in enumerate(zip(result, kinds, strict=True))
        ]
        gathers = []
        for place, (child, mine) in enumerate(zip(children, keys, strict=True)):
            given, at, types = self._with_key(child, mine, kinds)
            operator = GatherRows(tuple(map(self._arrow, types)), tuple(at))
            number = self._wiring.add(f"{name}.gather{place}", operator)
            self._feed(child, number, 0, given)
            gathers.append(number)
        shown = tuple(map(self._arrow, self._types[op]))
        result_at = self._wiring.add(name, ReplaceRows(shown, tuple(map(self._arrow, kinds))))
        for place, (child, mine) in enumerate(zip(children, keys, strict=True)):
            sent = [
                _cast(column(i), self._types[child][i], kind) for i, kind in zip(mine, kinds, strict=True)
            ]
            self._feed(child, result_at, 1, sent)
            for elsewhere, number in enumerate(gathers):
                if elsewhere != place:
                    self._feed(child, number, 1, sent)
        reads = []
        for number, child in zip(gathers, children, strict=True):
            reads.append(
                self._wiring.spill(number, RowExpressions().select([column(i) for i in range(child.width)]))
            )
        table = f"result:{result_at}"
        self._wiring.query(KeyedQuery(table, op, tuple(key), tuple(reads)))
        self._wiring.connect(ChainInput(table, op.width + len(key)), result_at, 0, RowExpressions())
        return result_at

    def _kinds_of_key(self, op: Operator, keys: Sequence[Sequence[int]], n: int) -> str:
        if isinstance(op, ops.Join):
            return self._common(op, op.keys[n])
        return self._types[op.inputs[0]][keys[0][n]]

    def _with_key(
        self, child: Operator, key: Sequence[int], kinds: Sequence[str]
    ) -> tuple[list[Expr], list[int], list[str]]:
        """A child's columns with the key among them as it is compared: what, where, and the types."""
        types, given, at = list(self._types[child]), [column(i) for i in range(child.width)], []
        for place, kind in zip(key, kinds, strict=True):
            if types[place] == kind:
                at.append(place)
            else:
                at.append(len(given))
                given.append(_cast(column(place), self._types[child][place], kind))
                types.append(kind)
        return given, at, types

    def _finals(self, op: Operator) -> RowExpressions:
        """From the columns an operator gives to those of its operator."""
        if not isinstance(self._wiring.operator(self._made[op]), StatefulAggregate | StatefulJoin):
            return RowExpressions()
        if not isinstance(op, ops.Aggregate):
            if isinstance(op, ops.Join):
                return self._unwidened(op)
            return RowExpressions()
        if op.sets is None:
            return RowExpressions()
        groups, width = len(op.groups), len(op.groups) + 1 + len(op.calls)  # which set comes behind the key
        return RowExpressions().select(list(map(column, (*range(groups), *range(groups + 1, width), groups))))

    def _unwidened(self, op: ops.Join) -> RowExpressions:
        """A join's operator may give columns that are keys of a wider type alone: they are left out."""
        operator = self._wiring.operator(self._made[op])
        assert isinstance(operator, StatefulJoin)
        width = op.left.width
        kept = [*range(width), *range(len(operator.left), len(operator.left) + op.right.width)]
        every = list(range(len(operator.left) + len(operator.right)))
        return RowExpressions() if kept == every else RowExpressions().select([column(i) for i in kept])

    def _feed(self, child: Operator, number: int, side: int, given: Sequence[Expr]) -> None:
        for origin, expressions in self._flows(child):
            plain = [one.column for one in given] == list(range(child.width))
            self._wiring.connect(origin, number, side, expressions if plain else expressions.select(given))


def _cast(expr: Expr, given: str, kind: str) -> Expr:
    """An expression of a type; a column that has it already stays plain."""
    if expr.column is not None and given == kind:
        return expr
    return Expr(joined(("CAST(", *expr.parts, f" AS {kind})")), expr.calls | {"cast"})


def _either(place: int, other: int | None) -> Expr:
    return column(place) if other is None else call("coalesce", column(place), column(other))


def _is_native(one: ops.AggregateCall) -> bool:
    return one.plain and not one.distinct and one.filter is None and kernel_of(one.name) is not None


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
