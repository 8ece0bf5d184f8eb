"""The stateful operator of window functions (DBSP-14), and which window functions it can compute."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidemill.views.chain.preparation import NoKey
from tidemill.views.chain.stateful_operator import (
    OperatorOutput,
    Parts,
    Traces,
    column_name,
    concatenated,
    layout_of,
    numbered_columns,
    rows_by_key,
    with_weight,
)
from tidemill.views.chain.top_operators import hashed_columns
from tidemill.views.circuit.expr import Expr, column
from tidemill.views.circuit.operators import Sessions, Window
from tidemill.views.circuit.window_calls import kernel_call
from tidemill.views.kernels.ordered_trace import OrderedTrace
from tidemill.views.kernels.sort_codes import SortColumn, sortable
from tidemill.views.kernels.window_functions import SESSION, Frame, WindowFunction
from tidemill.views.kernels.windows import RankLimit, WindowKernel
from tidemill.views.trace.consolidation import column as values_of
from tidemill.views.trace.consolidation import consolidate, reduce_rows
from tidemill.views.trace.hash_space import HashRange
from tidemill.views.trace.layout import HASH, WEIGHT, Layout

ROWS_AT_ONCE = 262_144
"""Groups with so many changed rows together are computed at once; a larger group is computed alone."""

CHANGED = "changed"


@dataclass(frozen=True)
class StatefulWindow:
    """Window functions with the same PARTITION BY and ORDER BY.

    The output has the columns of the input, then one for each function.

    Args:
        types: the column types of the input.
        keys: the columns of PARTITION BY.
        order: the sort keys.
        hashed: how many leading columns the hash that breaks ties covers; 0 if there is no such hash.
        functions: the functions; their arguments are named like the columns of the ordered trace.
        limit: which rows of the output are needed; None for all.
    """

    types: tuple[pa.DataType, ...]
    keys: tuple[int, ...]
    order: tuple[SortColumn, ...]
    hashed: int
    functions: tuple[WindowFunction, ...]
    limit: RankLimit | None = None

    @cached_property
    def _layout(self) -> Layout:
        return layout_of(self.types, self.keys)

    @cached_property
    def _names(self) -> list[str]:
        return [column_name(place, self.types, self.keys) for place in range(len(self.types))]

    @cached_property
    def _kernel(self) -> WindowKernel:
        stored = self._layout.names
        order = tuple(
            SortColumn(stored.index(self._names[key.place]), key.descending, key.nulls_first)
            for key in self.order
        )
        hashed = tuple(self._names[: self.hashed])
        trace = OrderedTrace(self._layout.columns, len(self.keys), order, hashed)
        return WindowKernel(trace, self.functions, self.limit)

    @property
    def layouts(self) -> dict[str, Layout]:
        return self._kernel.trace.layouts

    @cached_property
    def out(self) -> pa.Schema:
        return with_weight(numbered_columns([*self.types, *(each.type for each in self.functions)]))

    def takes(self, side: int) -> tuple[pa.DataType, ...]:
        return self.types

    def pack(self, side: int, rows: pa.Table) -> dict[str, pa.Table]:
        return {CHANGED: reduce_rows(rows_by_key(rows, self._layout, self.keys), self._layout)}

    def step(self, parts: Parts, traces: Traces, *, first: bool = False) -> OperatorOutput:
        change = consolidate(concatenated(parts.get(CHANGED, ()), self._layout), self._layout)
        out: list[pa.Table] = []
        deltas: dict[str, list[pa.Table]] = {name: [layout.empty()] for name, layout in self.layouts.items()}
        rewritten = 0
        for piece in _whole_groups(change):
            result = self._kernel.step(piece, traces)
            for name, delta in result.traces.items():
                deltas[name].append(delta)
            out += map(self._numbered, result.out)
            rewritten += result.rewritten
        changes = {name: pa.concat_tables(tables) for name, tables in deltas.items()}
        return OperatorOutput(out, changes, rewritten=rewritten)

    def _numbered(self, rows: pa.Table) -> pa.Table:
        results = [f"r{n}" for n in range(len(self.functions))]
        columns = [rows[name] for name in [*self._names, *results, WEIGHT]]
        return pa.table(columns, schema=self.out)

    def emits_without_input(self, within: HashRange) -> bool:
        return False


def _whole_groups(change: pa.Table) -> Iterator[pa.Table]:
    """Divide rows that are sorted by hash, without dividing a group."""
    hashes = values_of(change, HASH)
    first = 0
    while first < len(hashes):
        last = min(first + ROWS_AT_ONCE, len(hashes)) - 1
        after = int(np.searchsorted(hashes, hashes[last]))
        if after <= first or last == len(hashes) - 1:
            after = int(np.searchsorted(hashes, hashes[last], "right"))
        yield change.slice(first, after - first).combine_chunks()
        first = after


# --- which window functions have a kernel


def window_operator(
    op: Window,
    types: Sequence[str],
    below: Sequence[str],
    arrow: Callable[[str], pa.DataType],
    limit: RankLimit | None,
) -> tuple[list[Expr], StatefulWindow]:
    """Return the columns that the operator reads, and the operator; raise `NoKey` if it has no kernel.

    Args:
        op: the window functions; their partition, sort keys and arguments are columns.
        types: the column types of `op`, as Spark writes them.
        below: the column types of its input.
        arrow: converts Spark types to Arrow types.
        limit: which rows are needed.
    """
    columns, kinds = list(map(column, range(len(below)))), list(map(arrow, below))
    if not kinds:
        raise NoKey("window: its input has no columns")
    order = [
        SortColumn(key.value.column, key.descending, key.nulls_first)
        for key in op.order
        if key.value.column is not None
    ]
    hashed = 0
    if op.ties:
        hashed = hashed_columns(tuple(key.value for key in op.ties), below, kinds)
        if not hashed:  # Spark computes the hash
            order += [SortColumn(len(kinds) + n) for n in range(len(op.ties))]
            columns += [key.value for key in op.ties]
            kinds += [pa.int64()] * len(op.ties)
    unsorted = sorted({str(kinds[key.place]) for key in order if not sortable(kinds[key.place])})
    if unsorted:
        raise NoKey(f"window: a kernel cannot sort {', '.join(unsorted)} values")
    keys = tuple(expr.column for expr in op.partition if expr.column is not None)
    functions = []
    for call, result in zip(op.calls, types[op.input.width :], strict=True):
        form = kernel_call(call, ordered=bool(op.order))
        if form is None:
            raise NoKey(f"window: no kernel computes {call.name} here")
        argument, kind = None, None
        if form.argument is not None and form.argument.column is not None:
            place = form.argument.column
            argument, kind = column_name(place, kinds, keys), kinds[place]
        default = None
        if form.default is not None and form.default.column is not None:
            place = form.default.column
            if kinds[place] != kind:
                raise NoKey(f"window: the default of {call.name} has another type")
            default = column_name(place, kinds, keys)
        frame = Frame(form.frame.rows, form.frame.start, form.frame.end)
        functions.append(
            WindowFunction(form.name, arrow(result), argument, kind, form.offset, frame, default)
        )
    operator = StatefulWindow(tuple(kinds), keys, tuple(order), hashed, tuple(functions), limit)
    return columns, operator


def session_operator(
    op: Sessions, below: Sequence[str], arrow: Callable[[str], pa.DataType]
) -> tuple[list[Expr], StatefulWindow]:
    """Return the columns that the sessions read, and their operator; the arguments are as above."""
    kinds = tuple(map(arrow, below))
    keys = tuple(expr.column for expr in op.partition if expr.column is not None)
    assert op.time.column is not None
    time = op.time.column
    function = WindowFunction(SESSION, kinds[time], column_name(time, kinds, keys), kinds[time], op.gap_us)
    return list(map(column, range(len(kinds)))), StatefulWindow(
        kinds, keys, (SortColumn(time),), 0, (function,)
    )
