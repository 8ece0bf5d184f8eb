"""GROUP BY with native aggregates: keep exact accumulators for each group, and return the changed rows.

`accumulate` converts rows to accumulators, which can be added up, so it may run before the exchange. `step`
adds them to the accumulators in the traces. For each group whose row changes, it returns the old row with
weight -1 and the new row with weight 1. Old rows are computed again from exact accumulators, so they equal
the rows returned before, bit for bit, and the retraction cancels them exactly (DBSP-20).

The kernel has these traces: `main` (for each group its counts, and its sums as several 64-bit integers,
called limbs), `bins` if it sums floats (see `aggregates.sums`), and one for each min and max (see
`extremes`). It returns raw columns. For each aggregate, the expression `final` (in `aggregates.registry`)
converts the raw columns to the value that Spark returns. The raw columns of an aggregate x are:

    COUNT                       x BIGINT
    SUM of integers, decimals   x DECIMAL(38, s); x_over BOOLEAN: true if x does not fit and is therefore NULL
    the same with a count       x_sum, x_over as above; x_n BIGINT
    SUM of floats, MOMENTS      x DOUBLE; a sum is correctly rounded
    BITS, LEAST, GREATEST       x, of its column's type
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.errors import TypeRefused, UsageError, WeightNegative
from tidemill.views.aggregates.registry import Accumulator
from tidemill.views.aggregates.sums import (
    Total,
    binned,
    binned_products,
    bits_of,
    decimals,
    doubles_of,
    exact_totals,
    integers_of_bits,
    limb_count,
    limbs_of,
)
from tidemill.views.kernels.canonical_keys import canonical_keys
from tidemill.views.kernels.extremes import BEST, VALUE, ExtremeKernel, GroupValues, Mask
from tidemill.views.kernels.group_aggregate import GroupAggregate, Pair
from tidemill.views.kernels.group_moments import column_of, moment_of, with_infinities
from tidemill.views.kernels.key_matching import distinct_keys, positions, sums_at
from tidemill.views.trace.consolidation import carry, chunk, column, consolidate, reduce_rows
from tidemill.views.trace.key_hash import GLOBAL_HASH
from tidemill.views.trace.layout import HASH, WEIGHT, Layout
from tidemill.views.trace.order import I64, distinct
from tidemill.views.trace.row_equality import equal_rows
from tidemill.views.trace.trace import Trace

MAIN = "main"
BINS = "bins"

_ROWS = "_n"

_Bins = tuple[I64, I64, I64, I64]
"""The group, the column, the number and the sum of each bin."""


class GroupChange(NamedTuple):
    """The result of a step.

    Args:
        out: the change in the output: `_h`, the key, the results and `_w`.
        traces: for each trace, by its name, the change.
        pending: the groups whose min or max must be read again; None if there are none. The columns are hash,
            key, the results so far, `_w` (1), and a flag `x_need` for each min or max x. `out` already
            retracts the old rows of these groups; `refill` returns their new rows.
        values: for each min and max, the consolidated change of its values.
    """

    out: pa.Table
    traces: dict[str, pa.Table]
    pending: pa.Table | None
    values: dict[str, pa.Table]


@dataclass(frozen=True)
class GroupKernel:
    """A GROUP BY.

    Args:
        keys: the columns of the key; empty for a global aggregate.
        values: the columns to aggregate, with their types.
        aggs: the aggregates.
        best: how many values min and max store; 1 is enough if rows are never deleted.
        always: whether this is a global aggregate, which has an output row even without input rows.
        distinct: the columns of which only the distinct values in each group are aggregated. The caller
            passes these values in separate rows.
    """

    keys: pa.Schema
    values: pa.Schema
    aggs: tuple[GroupAggregate, ...]
    best: int = BEST
    always: bool = False
    distinct: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.always and len(self.keys):
            raise UsageError("always=True is only for aggregates without a key", hint="remove always=True")
        names = [*self.keys.names, *(agg.name for agg in self.aggs)]
        if len(set(names)) != len(names) or {MAIN, BINS, HASH, WEIGHT} & set(names):
            raise UsageError(
                f"the names of the keys and aggregates are not unique, or one of them is reserved: {names}",
                hint="use different names",
            )
        for agg in self.aggs:
            if agg.sums and not pat.is_floating(self._kind(agg)):
                limb_count(self._kind(agg))
        _ = self.layouts

    # --- traces

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """The layout of each trace."""
        sums, limbs = [_ROWS], []
        for name in self._counted:
            sums.append(f"_{name}.n")
            if name in self._exact:
                names = tuple(f"_{name}.{n}" for n in range(limb_count(self.values.field(name).type)))
                sums.extend(names)
                limbs.append(names)
            if name in self._bits:
                sums.extend(f"_{name}.bit{n}" for n in range(self.values.field(name).type.bit_width))
            if name in self._doubles:
                sums.extend(f"_{name}.{special}" for special in ("nan", "pos", "neg"))
        layouts = {MAIN: Layout(self.keys, len(self.keys), tuple(sums), tuple(limbs))}
        if self._doubles:
            binned = [*self.keys, pa.field("_c", pa.int16()), pa.field("_b", pa.int16())]
            layouts[BINS] = Layout(pa.schema(binned), len(self.keys), ("_s",))
        return layouts | {agg.name: extreme.layout for agg, extreme in self._extremes}

    @cached_property
    def _counted(self) -> list[str]:
        plain = {agg.column for agg in self.aggs if agg.column is not None and agg.pair is None}
        return sorted({*plain, *self._paired})

    @cached_property
    def _bits(self) -> list[str]:
        of_bits = (agg for agg in self.aggs if agg.kernel.accumulator is Accumulator.BITS)
        return sorted({agg.column for agg in of_bits if agg.column is not None})

    @cached_property
    def _paired(self) -> list[str]:
        return sorted({name for agg in self.aggs for name in agg.pair or ()})

    @cached_property
    def _products(self) -> list[str]:
        return sorted({name for agg in self.aggs for name in agg.products})

    def _summed(self, *, floating: bool) -> list[str]:
        return sorted(
            {
                agg.column
                for agg in self.aggs
                if agg.sums and agg.column is not None and bool(pat.is_floating(self._kind(agg))) == floating
            }
        )

    @cached_property
    def _exact(self) -> list[str]:
        return self._summed(floating=False)

    @cached_property
    def _doubles(self) -> list[str]:
        return [*self._summed(floating=True), *self._paired]

    @cached_property
    def _in_bins(self) -> list[str]:
        """The columns and products that are summed in bins; a bin stores the place in this list."""
        return [*self._doubles, *self._products]

    @cached_property
    def _extremes(self) -> list[tuple[GroupAggregate, ExtremeKernel]]:
        return [
            (agg, ExtremeKernel(agg.kernel.accumulator, self.keys, self._kind(agg), self.best, agg.of_rows))
            for agg in self.aggs
            if agg.kernel.accumulator.is_extreme
        ]

    def _kind(self, agg: GroupAggregate) -> pa.DataType:
        if agg.column is None or agg.column not in self.values.names:
            raise TypeRefused(
                f"{agg.kind} has no column {agg.column!r} to aggregate",
                hint=f"use one of {self.values.names}",
            )
        return self.values.field(agg.column).type

    # --- before the exchange

    def values_of(self, distinct: str | None) -> pa.Schema:
        """Return the columns of the rows with one distinct column, or of the rows with all other columns."""
        names = [name for name in self.values.names if name not in self.distinct]
        return pa.schema([self.values.field(name) for name in (names if distinct is None else [distinct])])

    def accumulate(self, delta: pa.Table, distinct: str | None = None) -> dict[str, pa.Table]:
        """Convert rows to accumulators, one table for each trace; tables of several calls can be added up.

        Args:
            delta: `_h` (the hash of the key), the key, the values and `_w`.
            distinct: the distinct column that the rows have; None for rows with all other columns.
        """
        values = self.values_of(distinct).names
        rows = canonical_keys(delta.select([HASH, *self.keys.names, *values, WEIGHT]), list(self.keys.names))
        rows = rows.combine_chunks()
        weights = column(rows, WEIGHT)
        group = [chunk(rows, name) for name in (HASH, *self.keys.names)]
        main = self.layouts[MAIN]
        sums: dict[str, I64] = dict.fromkeys(main.sums, np.zeros(rows.num_rows, np.int64))
        if distinct is None:
            sums[_ROWS] = weights
        for name in self._present(self._counted, values):
            array = column_of(rows, name)
            sums[f"_{name}.n"] = weights
            if array.null_count:
                sums[f"_{name}.n"] = weights * pc.is_valid(array).to_numpy(zero_copy_only=False)
            if name in self._exact:
                limbs = limbs_of(array, weights)
                sums |= {f"_{name}.{n}": limb for n, limb in enumerate(limbs)}
            if name in self._bits:
                sums |= {f"_{name}.bit{n}": bit for n, bit in enumerate(bits_of(array, weights))}
            if name in self._doubles:
                doubles = doubles_of(array)
                sums[f"_{name}.nan"] = weights * np.isnan(doubles)
                sums[f"_{name}.pos"] = weights * np.isposinf(doubles)
                sums[f"_{name}.neg"] = weights * np.isneginf(doubles)
        tables = {MAIN: pa.table([*group, *(pa.array(sums[name]) for name in main.sums)], schema=main.schema)}
        if self._present(self._doubles, values):
            tables[BINS] = self._binned(rows, weights)
        for agg, extreme in self._extremes if distinct is None else ():
            extreme_rows = rows.select([HASH, *self.keys.names, agg.column, WEIGHT])
            if rows[agg.column].null_count:
                extreme_rows = extreme_rows.filter(pc.is_valid(rows[agg.column]))
            tables[agg.name] = extreme_rows.rename_columns(extreme.layout.schema.names)
        return {  # groups have far fewer rows than the input; the values of min and max may not
            name: (consolidate if name in {MAIN, BINS} else reduce_rows)(table, self.layouts[name])
            for name, table in tables.items()
        }

    @staticmethod
    def _present(names: Sequence[str], values: Sequence[str]) -> list[str]:
        """Return the columns and products of which all parts are present."""
        return [name for name in names if set(re.split(r"[|*]", name)) <= {*values}]

    def _binned(self, rows: pa.Table, weights: I64) -> pa.Table:
        layout = self.layouts[BINS]
        parts = []
        for name in self._present(self._in_bins, rows.column_names):
            first, *second = (doubles_of(column_of(rows, factor)) for factor in name.split("*"))
            pieces = binned_products(first, second[0], weights) if second else binned(first, weights)
            number = self._in_bins.index(name)
            table = rows.select([HASH, *self.keys.names]).take(pa.array(pieces.row))
            bins = [np.full(len(pieces.row), number, np.int16), pieces.bin.astype(np.int16), pieces.sum]
            parts.append(pa.table([*table.columns, *map(pa.array, bins)], schema=layout.schema))
        return pa.concat_tables(parts)

    # --- after the exchange

    def step(
        self, parts: Sequence[Mapping[str, pa.Table]], traces: Mapping[str, Trace], *, first: bool = False
    ) -> GroupChange:
        """Apply the accumulators of a step, and return the changes in the result and in the traces.

        Args:
            parts: the results of `accumulate` for this range.
            traces: the traces, by the names of `layouts`.
            first: whether this is the operator's first step, in which a global aggregate has no old row. The
                caller runs that step in the range of the empty key's hash even if there are no rows.
        """
        deltas = {
            name: consolidate(pa.concat_tables([layout.empty(), *(part[name] for part in parts)]), layout)
            for name, layout in self.layouts.items()
        }
        values = {agg.name: deltas[agg.name] for agg, _ in self._extremes}
        groups = self._touched(deltas, first=first)
        if groups.num_rows == 0:
            return GroupChange(self.schema.empty_table(), deltas, None, values)
        hashes = distinct(column(groups, HASH))
        stored = {name: traces[name].lookup(hashes) for name in self.layouts}
        old = self._sums(groups, stored[MAIN])
        change = self._sums(groups, deltas[MAIN])
        new = {name: old[name] + change[name] for name in old}
        for limbs in self.layouts[MAIN].limbs:
            carry(old, limbs)
            carry(new, limbs)
        if (new[_ROWS] < 0).any():
            raise WeightNegative("the change deletes rows that do not exist in the group")
        before, after = self._results(groups, old, [stored]), self._results(groups, new, [stored, deltas])
        pending = np.zeros(groups.num_rows, bool)
        needs: dict[str, Mask] = {}
        for agg, extreme in self._extremes:
            stored_values = self._rows_of(groups, stored[agg.name])
            changed_values = self._rows_of(groups, deltas[agg.name])
            ranked = extreme.rank(groups, stored_values, changed_values, new[f"_{agg.column}.n"] == 0)
            before[agg.name], after[agg.name] = ranked.before, ranked.after
            deltas[agg.name] = ranked.state
            needs[agg.name] = ranked.exhausted
            pending |= ranked.exhausted
        was, now = old[_ROWS] > 0, new[_ROWS] > 0
        if self.always:
            was, now = np.full(len(was), not first), np.ones(len(now), bool)
        differ = pending | (was != now) | ~self._unchanged(before, after)
        out = pa.concat_tables(
            [
                self._out(groups, before, was & differ, -1),
                self._out(groups, after, now & differ & ~pending, 1),
            ]
        )
        waiting = None
        if pending.any():
            table = self._out(groups, after, pending, 1)
            for name, need in needs.items():
                table = table.append_column(f"{name}_need", pa.array(need[pending]))
            waiting = table
        return GroupChange(out, deltas, waiting, values)

    def refill(self, pending: pa.Table, values: Mapping[str, pa.Table]) -> GroupChange:
        """Return the new rows of exhausted groups, from all values that they have after the step.

        Args:
            pending: as `step` returned it.
            values: for each min and max that a group needs: `_h`, the key, `_v` and `_w` of those groups.
        """
        pending = pending.combine_chunks()
        groups = pending.select([HASH, *self.keys.names])
        results = {name: chunk(pending, name) for name in self.schema.names if name in pending.column_names}
        traces = {name: layout.empty() for name, layout in self.layouts.items()}
        for agg, extreme in self._extremes:
            need = column(pending, f"{agg.name}_need")
            if not need.any():
                continue
            needing = groups.filter(pa.array(need)).combine_chunks()
            layout = self.layouts[agg.name]
            all_values = consolidate(values[agg.name].filter(pc.is_valid(values[agg.name][VALUE])), layout)
            nothing = self._rows_of(needing, layout.empty())
            ranked = extreme.rank(
                needing,
                nothing,
                self._rows_of(needing, all_values),
                np.zeros(needing.num_rows, bool),
                refill=True,
            )
            place = np.full(groups.num_rows, -1, np.int64)
            place[need] = np.arange(needing.num_rows)
            fresh = ranked.after.take(pa.array(place, mask=place < 0))
            results[agg.name] = pc.if_else(pa.array(need), fresh, results[agg.name])
            traces[agg.name] = ranked.state
        return GroupChange(self._out(groups, results, np.ones(groups.num_rows, bool), 1), traces, None, {})

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the output change."""
        fields: list[pa.Field] = []
        for agg in self.aggs:
            kernel = agg.kernel
            if kernel.accumulator is Accumulator.COUNT:
                fields.append(pa.field(agg.name, pa.int64()))
            elif kernel.accumulator.is_extreme or kernel.accumulator is Accumulator.BITS:
                fields.append(pa.field(agg.name, self._kind(agg)))
            elif agg.pair is not None or pat.is_floating(self._kind(agg)):
                fields.append(pa.field(agg.name, pa.float64()))
            else:
                exact = f"{agg.name}_sum" if kernel.counts else agg.name
                fields.append(pa.field(exact, pa.decimal128(38, _scale(self._kind(agg)))))
                fields.append(pa.field(f"{agg.name}_over", pa.bool_()))
                fields.extend([pa.field(f"{agg.name}_n", pa.int64())] if kernel.counts else [])
        ends = [pa.field(HASH, pa.int64())], [pa.field(WEIGHT, pa.int64())]
        return pa.schema(
            [*ends[0], *(pa.field(each.name, each.type) for each in self.keys), *fields, *ends[1]]
        )

    # --- groups

    def _touched(self, deltas: Mapping[str, pa.Table], *, first: bool) -> pa.Table:
        if self.always and first and not any(table.num_rows for table in deltas.values()):
            return pa.table({HASH: pa.array([GLOBAL_HASH], pa.int64())})
        return distinct_keys(list(deltas.values()), list(self.keys.names))

    def _sums(self, groups: pa.Table, rows: pa.Table) -> dict[str, I64]:
        place = positions(groups, rows, list(self.keys.names))
        return {name: sums_at(place, column(rows, name), groups.num_rows) for name in self.layouts[MAIN].sums}

    def _rows_of(self, groups: pa.Table, rows: pa.Table) -> GroupValues:
        """Return the values of a min or max, without rows whose key only shares its hash with a group."""
        place = positions(groups, rows, list(self.keys.names))
        matched = place >= 0
        if matched.all():
            return GroupValues(place, chunk(rows, VALUE), column(rows, WEIGHT))
        values = chunk(rows, VALUE).filter(pa.array(matched))
        return GroupValues(place[matched], values, column(rows, WEIGHT)[matched])

    def _bins(self, groups: pa.Table, tables: Sequence[Mapping[str, pa.Table]]) -> tuple[I64, I64, I64, I64]:
        """Add up the bins of the groups, and return (group, column, bin, sum)."""
        rows = pa.concat_tables([each[BINS] for each in tables]).combine_chunks()
        place = positions(groups, rows, list(self.keys.names))
        matched = place >= 0
        which, bins = (
            column(rows, "_c")[matched].astype(np.int64),
            column(rows, "_b")[matched].astype(np.int64),
        )
        place, sums = place[matched], column(rows, "_s")[matched]
        order = np.lexsort((bins, which, place))
        place, which, bins, sums = place[order], which[order], bins[order], sums[order]
        fresh = np.ones(len(place), bool)
        fresh[1:] = (np.diff(place) != 0) | (np.diff(which) != 0) | (np.diff(bins) != 0)
        starts = np.flatnonzero(fresh)
        if len(starts):
            sums = np.add.reduceat(sums, starts)
        alive = sums != 0
        return place[starts][alive], which[starts][alive], bins[starts][alive], sums[alive]

    # --- results

    def _results(
        self, groups: pa.Table, sums: Mapping[str, I64], tables: Sequence[Mapping[str, pa.Table]]
    ) -> dict[str, pa.Array]:
        """Compute the result columns except min and max."""
        binned = self._bins(groups, tables) if self._doubles else None
        results: dict[str, pa.Array] = {}
        for agg in self.aggs:
            kernel = agg.kernel
            if kernel.accumulator is Accumulator.COUNT:
                results[agg.name] = pa.array(sums[_ROWS if agg.column is None else f"_{agg.column}.n"])
            elif kernel.accumulator.is_extreme:
                continue
            elif kernel.accumulator is Accumulator.BITS:
                kind, rows = self._kind(agg), sums[f"_{agg.column}.n"]
                bits = [sums[f"_{agg.column}.bit{n}"] for n in range(kind.bit_width)]
                values = integers_of_bits([kernel.has_bit(having, rows) for having in bits], kind)
                results[agg.name] = pa.array(values, pa.int64(), mask=rows == 0).cast(kind)
            elif agg.pair is not None:
                results[agg.name] = self._moment(agg, agg.pair, sums, binned)
            elif binned is not None and agg.column in self._doubles:
                results[agg.name] = self._double(agg, sums, binned)
            else:
                kind = self._kind(agg)
                limbs = [sums[f"_{agg.column}.{n}"] for n in range(limb_count(kind))]
                exact, over = decimals(limbs, _scale(kind), sums[f"_{agg.column}.n"] > 0)
                results[f"{agg.name}_sum" if kernel.counts else agg.name] = exact
                results[f"{agg.name}_over"] = pa.array(over)
                if kernel.counts:
                    results[f"{agg.name}_n"] = pa.array(sums[f"_{agg.column}.n"])
        return results

    def _double(self, agg: GroupAggregate, sums: Mapping[str, I64], binned: _Bins) -> pa.Array:
        group, which, bins, parts = binned
        in_column = which == self._in_bins.index(agg.column or "")
        rows = sums[f"_{agg.column}.n"]
        values = agg.kernel.of_doubles(group[in_column], bins[in_column], parts[in_column], rows)
        return pa.array(with_infinities(values, agg.column or "", sums), mask=rows == 0)

    def _moment(
        self, agg: GroupAggregate, pair: Pair, sums: Mapping[str, I64], binned: _Bins | None
    ) -> pa.Array:
        """Compute an aggregate from the sums of its columns and of their products."""
        assert binned is not None, "the columns of moments are summed in bins"
        group, which, bins, parts = binned

        def totals_of(name: str) -> dict[int, Total]:
            chosen = which == self._in_bins.index(name)
            return exact_totals(group[chosen], bins[chosen], parts[chosen])

        return moment_of(agg.kernel, pair, sums, totals_of)

    def _unchanged(self, before: Mapping[str, pa.Array], after: Mapping[str, pa.Array]) -> Any:
        if not before:
            return np.True_
        return equal_rows([before[name] for name in before], [after[name] for name in before], zeros="differ")

    def _out(self, groups: pa.Table, results: Mapping[str, pa.Array], chosen: Mask, weight: int) -> pa.Table:
        mask = pa.array(chosen)
        arrays = [chunk(groups, name) for name in (HASH, *self.keys.names)]
        arrays += [results[name] for name in self.schema.names[len(arrays) : -1]]
        weights = pa.array(np.full(int(chosen.sum()), weight, np.int64))
        return pa.table([*(array.filter(mask) for array in arrays), weights], schema=self.schema)


def _scale(kind: pa.DataType) -> int:
    return int(kind.scale) if pat.is_decimal(kind) else 0
