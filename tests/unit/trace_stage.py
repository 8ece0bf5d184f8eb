"""A small circuit over kernels and traces in one process: what the laws of views are tested with.

orders(cust, amount, price, label) JOIN customers(cust, region) ON cust
-> region, amount, price, label                  -> GROUP BY region (count, sum, avg, min, max)
                                                 -> DISTINCT label, region
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.unit.spark_hash import M, hashed, hashes
from tidemill.objects.memory import MemoryObjects
from tidemill.objects.port import Objects
from tidemill.testing import FakeClock
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import GroupKernel
from tidemill.views.kernels.join import JoinKernel
from tidemill.views.kernels.set_operations import SetKernel
from tidemill.views.kernels.zsets import digest, total_digest
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.hash_space import HashRange, ranges, split
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import TraceChanges, TraceVersion
from tidemill.views.trace.version_file import read_version, write_version

ORDERS = pa.schema(
    [("cust", pa.int64()), ("amount", pa.float64()), ("price", pa.decimal128(10, 2)), ("label", pa.string())]
)
CUSTOMERS = pa.schema([("cust", pa.int64()), ("region", pa.string())])
JOIN = JoinKernel(
    Layout(ORDERS, 1),
    Layout(CUSTOMERS, 1),
    (False,),
    (("amount", "amount"), ("price", "price"), ("label", "label")),
    (("region", "region"),),
)
AGGREGATE = GroupKernel(
    pa.schema([("region", pa.string())]),
    pa.schema([("amount", pa.float64()), ("price", pa.decimal128(10, 2)), ("label", pa.string())]),
    (
        GroupAggregate("count", None, "n"),
        GroupAggregate("count", "label", "labels"),
        GroupAggregate("sum", "amount", "total"),
        GroupAggregate("avg", "amount", "mean"),
        GroupAggregate("sum", "price", "cost"),
        GroupAggregate("min", "label", "low"),
        GroupAggregate("max", "amount", "high"),
    ),
    best=3,
)
DISTINCT = SetKernel("distinct", pa.schema([("label", pa.string()), ("region", pa.string())]))

Row = tuple[Any, ...]
Change = list[tuple[str, Row, int]]
"""(table, row, weight)"""


def table_of(schema: pa.Schema, rows: Iterable[tuple[Row, int]]) -> pa.Table:
    rows = list(rows)
    arrays = [pa.array([row[n] for row, _ in rows], field.type) for n, field in enumerate(schema)]
    weights = pa.array([weight for _, weight in rows], pa.int64())
    return pa.table([*arrays, weights], schema=pa.schema([*schema, ("_w", pa.int64())]))


def row_digest(table: pa.Table) -> int:
    names = [name for name in table.column_names if name not in {"_h", "_w"}]
    table = table.append_column("a", hashes(table, names, 1)).append_column("b", hashes(table, names, 2))
    return digest(table, "a", "b", "_w")


class Circuit:
    """The circuit with its state in object storage.

    Args:
        count: how many ranges.
        weak: a mask for all key hashes.
        seed: shuffles the rows of every exchange.
    """

    def __init__(
        self,
        count: int = 1,
        *,
        weak: int = M,
        seed: int = 0,
        objects: Objects | None = None,
        folder: Path | None = None,
    ) -> None:
        self.ranges = ranges(count)
        self.weak = weak
        self.chance = random.Random(seed)
        self.objects = objects if objects is not None else MemoryObjects(FakeClock())
        self.folder = folder
        self.cache = Cache(self.objects, folder)
        self.attempt = "attempt-1"
        groups = [f"groups.{name}" for name in AGGREGATE.layouts]
        self.version = TraceVersion.empty(["orders", "customers", "labels", *groups])
        self.budget_rows: int | None = None
        self.outputs: list[dict[str, pa.Table]] = []
        self.base: dict[str, Counter[Row]] = {"orders": Counter(), "customers": Counter()}

    def step(self, change: Change) -> dict[str, int]:
        """Run a step, commit it, and return the digests of the changes of the two views."""
        number = self.version.step + 1
        self._count(change)
        delta = {
            name: table_of(schema, [(row, weight) for table, row, weight in change if table == name])
            for name, schema in (("orders", ORDERS), ("customers", CUSTOMERS))
        }
        changes: list[TraceChanges] = []
        left, right = (self._sent(delta[name], ["cust"]) for name in ("orders", "customers"))
        joined: list[pa.Table] = [JOIN.schema.empty_table()]
        for at, within in enumerate(self.ranges):
            bundle = self._bundle(number, "join", at)
            orders, customers = (
                self._trace("orders", JOIN.left, within),
                self._trace("customers", JOIN.right, within),
            )
            left_change, right_change = (
                JOIN.consolidate_side(left[at], JOIN.left),
                JOIN.consolidate_side(right[at], JOIN.right),
            )
            joined.extend(JOIN.step(left_change, right_change, orders, customers))
            changes += [
                orders.extend(left_change, bundle, self.budget_rows),
                customers.extend(right_change, bundle, self.budget_rows),
            ]
            bundle.write()
        rows = pa.concat_tables(joined)
        out = {
            "groups": self._grouped(number, rows, changes),
            "labels": self._distinct(number, rows, changes),
        }
        self.outputs.append(out)
        self._commit(number, changes)
        return {name: row_digest(table) for name, table in out.items()}

    def _grouped(self, number: int, rows: pa.Table, changes: list[TraceChanges]) -> pa.Table:
        halves = [rows.slice(0, rows.num_rows // 3), rows.slice(rows.num_rows // 3)]
        parts = [AGGREGATE.accumulate(hashed(half, ["region"], self.weak)) for half in halves]
        sent = [{name: self._shuffled(table) for name, table in part.items()} for part in parts]
        outs = []
        for at, within in enumerate(self.ranges):
            bundle = self._bundle(number, "groups", at)
            traces = {
                name: self._trace(f"groups.{name}", layout, within)
                for name, layout in AGGREGATE.layouts.items()
            }
            result = AGGREGATE.step(
                [{name: tables[at] for name, tables in part.items()} for part in sent], traces
            )
            outs.append(result.out)
            extra = []
            if result.pending is not None:
                again = AGGREGATE.refill(result.pending, self._values(result.pending))
                outs.append(again.out)
                extra = [again.traces]
            for name, trace in traces.items():
                added = pa.concat_tables([result.traces[name], *(traces[name] for traces in extra)])
                changes.append(trace.extend(added, bundle, self.budget_rows))
            bundle.write()
        return pa.concat_tables(outs)

    def _distinct(self, number: int, rows: pa.Table, changes: list[TraceChanges]) -> pa.Table:
        sent = self._sent(rows.select(["label", "region", "_w"]), ["label", "region"])
        outs = []
        for at, within in enumerate(self.ranges):
            bundle = self._bundle(number, "labels", at)
            trace = self._trace("labels", DISTINCT.layout, within)
            result = DISTINCT.step(sent[at], None, trace)
            outs.append(result.out)
            changes.append(trace.extend(result.state, bundle, self.budget_rows))
            bundle.write()
        return pa.concat_tables(outs)

    def _values(self, pending: pa.Table) -> dict[str, pa.Table]:
        """The restricted recompute: all values of the exhausted groups, from the base."""
        regions = set(pending["region"].to_pylist())
        rows = [(row, weight) for row, weight in joined_rows(self.base).items() if row[3] in regions]
        values = {}
        for agg, place in (("low", 2), ("high", 0)):
            kind = AGGREGATE.layouts[agg].schema.field("_v").type
            schema = pa.schema([("region", pa.string()), ("_v", kind)])
            values[agg] = hashed(
                table_of(schema, [((row[3], row[place]), weight) for row, weight in rows]),
                ["region"],
                self.weak,
            )
        return values

    def _commit(self, number: int, changes: Sequence[TraceChanges]) -> None:
        combined = TraceChanges.combine(TraceChanges.decode(each.encode()) for each in changes)
        outcome = self.version.apply(number, combined.added, combined.merged)
        assert not outcome.late
        key = f"versions/{self.attempt}/{number:08d}"
        write_version(self.objects, key, outcome.version)
        self.version = read_version(self.objects, key)
        assert self.version == outcome.version

    def _count(self, change: Change) -> None:
        for table, row, weight in change:
            self.base[table][row] += weight
            if not self.base[table][row]:
                del self.base[table][row]

    def _sent(self, table: pa.Table, keys: list[str]) -> list[pa.Table]:
        return self._shuffled(hashed(table, keys, self.weak))

    def _shuffled(self, table: pa.Table) -> list[pa.Table]:
        order = list(range(table.num_rows))
        self.chance.shuffle(order)
        return split(table.take(pa.array(order, pa.int64())), self.ranges)

    def _trace(self, name: str, layout: Layout, within: HashRange) -> Trace:
        return Trace.of(self.version, name, layout, self.cache, within, self.version.step)

    def _bundle(self, number: int, layer: str, at: int) -> Bundle:
        return Bundle(self.objects, f"runs/{self.attempt}/{number:08d}/{layer}-{at}", self.cache)

    # --- reading the state

    def layouts(self) -> dict[str, Layout]:
        groups = {f"groups.{name}": layout for name, layout in AGGREGATE.layouts.items()}
        return {"orders": JOIN.left, "customers": JOIN.right, "labels": DISTINCT.layout, **groups}

    def state(self, *, without: Sequence[str] = ()) -> dict[str, Counter[Row]]:
        """All rows of all traces with their sums."""
        by_trace = {}
        for name, layout in self.layouts().items():
            if name in without:
                continue
            rows: Counter[Row] = Counter()
            for within in self.ranges:
                for table in self._trace(name, layout, within).scan(rows=16):
                    rows.update(map(repr, table.to_pylist()))
            by_trace[name] = rows
        return by_trace

    def content(self) -> dict[str, int]:
        """The content digest of each view: the sum of its steps'."""
        return {
            name: total_digest(row_digest(out[name]) for out in self.outputs) for name in ("groups", "labels")
        }


def joined_rows(base: dict[str, Counter[Row]]) -> Counter[Row]:
    joined: Counter[Row] = Counter()
    for (cust, *rest), weight in base["orders"].items():
        for (other, region), times in base["customers"].items():
            if cust is not None and cust == other:
                joined[(*rest, region)] += weight * times
    return joined


def expected(base: dict[str, Counter[Row]]) -> dict[str, int]:
    """The content digests by plain Python: lists, fractions and sorting."""
    rows = joined_rows(base)
    by_region: dict[Any, list[Row]] = {}
    for row, weight in rows.items():
        by_region.setdefault(row[3], []).extend([row] * weight)
    results = []
    for region, members in by_region.items():
        amounts = [row[0] for row in members if row[0] is not None]
        prices = [row[1] for row in members if row[1] is not None]
        labels = [row[2] for row in members if row[2] is not None]
        total = sum(map(Fraction, amounts))
        results.append(
            (
                region,
                len(members),
                len(labels),
                float(total) if amounts else None,
                float(total / len(amounts)) if amounts else None,
                sum(prices, Decimal(0)) if prices else None,
                False,
                min(labels, key=str.encode) if labels else None,
                max(amounts) if amounts else None,
            )
        )
    fields = [field for field in AGGREGATE.schema if field.name not in {"_h", "_w"}]
    groups = table_of(pa.schema(fields), [(row, 1) for row in results])
    labels_out = {(row[2], row[3]) for row in rows}
    schema = pa.schema([("label", pa.string()), ("region", pa.string())])
    return {
        "groups": row_digest(groups),
        "labels": row_digest(table_of(schema, [(row, 1) for row in labels_out])),
    }
