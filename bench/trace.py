"""Measure the cost of a step inside kernels and traces, without Spark: it follows the change, not the state.

The view: orders JOIN customers GROUP BY region, day with count, sum of a decimal and max. One range, one
process, state on the local disk. Steps are 90% insertions and 10% deletions of orders, with one customer in
five hundred changes who moves to another region (about 50 orders each). The figures use CPU time, because
other work on the machine affects it least; the raw figures have both.
"""

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.report import Report, at_most, main
from tidemill.clock import SYSTEM
from tidemill.objects.local import LocalObjects
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import GroupKernel
from tidemill.views.kernels.join import JoinKernel
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.hash_space import ALL
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import TraceChanges, TraceVersion
from tidemill.views.trace.version_file import write_version

SIZES = (1_000, 10_000)
MONEY = pa.decimal128(10, 2)
REGIONS = np.array([f"region-{n}" for n in range(100)])
ORDERS = Layout(pa.schema([("cust", pa.int32()), ("day", pa.date32()), ("amount", MONEY)]), 1)
CUSTOMERS = Layout(pa.schema([("cust", pa.int32()), ("region", pa.string())]), 1)
JOIN = JoinKernel(
    ORDERS, CUSTOMERS, (False,), (("day", "day"), ("amount", "amount")), (("region", "region"),)
)
AGGREGATE = GroupKernel(
    pa.schema([("region", pa.string()), ("day", pa.date32())]),
    pa.schema([("amount", MONEY)]),
    (
        GroupAggregate("count", None, "n"),
        GroupAggregate("sum", "amount", "total"),
        GroupAggregate("max", "amount", "high"),
    ),
)


def mixed(*columns: Any) -> Any:
    """Hash numbers; here the hashes only have to be distributed evenly."""
    h = np.full(len(columns[0]), 42, np.uint64)
    for column in columns:
        h = (h ^ column.astype(np.int64).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(32)
    return h.view(np.int64)


def money(cents: Any) -> pa.Array:
    limbs = np.stack([cents, cents >> 63], axis=1).astype(np.int64)
    return pa.Array.from_buffers(MONEY, len(cents), [None, pa.py_buffer(limbs.tobytes())])


class View:
    """The view over generated orders and a fiftieth as many customers."""

    def __init__(self, rows: int, folder: Path) -> None:
        self.chance = np.random.default_rng(7)
        self.objects = LocalObjects(folder / "objects", SYSTEM, random.Random(1))
        self.cache = Cache(self.objects, folder / "cache")
        groups = [f"groups.{name}" for name in AGGREGATE.layouts]
        self.version = TraceVersion.empty(["orders", "customers", *groups])
        self.region_of = self.chance.integers(0, len(REGIONS), rows // 50)
        self.orders = [self.drawn(rows)]
        self.bytes = 0
        self.load()

    def drawn(self, count: int) -> tuple[Any, Any, Any]:
        customers = self.chance.integers(0, len(self.region_of), count)
        return customers, self.chance.integers(18_000, 18_365, count), self.chance.integers(1, 100_000, count)

    def order_table(self, rows: tuple[Any, Any, Any], weights: Any) -> pa.Table:
        customers, days, cents = rows
        arrays = [
            mixed(customers),
            customers.astype(np.int32),
            pa.array(days.astype(np.int32)).cast(pa.date32()),
        ]
        return pa.table([*map(pa.array, arrays), money(cents), pa.array(weights)], schema=ORDERS.schema)

    def customer_table(self, customers: Any, regions: Any, weights: Any) -> pa.Table:
        arrays = [mixed(customers), customers.astype(np.int32), REGIONS[regions], weights]
        return pa.table([pa.array(array) for array in arrays], schema=CUSTOMERS.schema)

    def grouped(self, rows: pa.Table) -> pa.Table:
        """Return joined rows with the hash of their group, which Spark would compute."""
        numbers = np.char.partition(rows["region"].to_numpy(zero_copy_only=False).astype("U"), "-")[:, 2]
        return rows.add_column(
            0, "_h", pa.array(mixed(numbers.astype(np.int64), rows["day"].cast(pa.int32()).to_numpy()))
        )

    def trace(self, name: str, layout: Layout) -> Trace:
        return Trace.of(self.version, name, layout, self.cache, ALL, self.version.step)

    def groups(self) -> dict[str, Trace]:
        return {name: self.trace(f"groups.{name}", layout) for name, layout in AGGREGATE.layouts.items()}

    def load(self) -> None:
        customers, days, cents = self.orders[0]
        ones = np.ones(len(customers), np.int64)
        bundle = Bundle(self.objects, "runs/load", self.cache)
        changes = [self.trace("orders", ORDERS).extend(self.order_table(self.orders[0], ones), bundle)]
        everyone = np.arange(len(self.region_of))
        table = self.customer_table(everyone, self.region_of, np.ones(len(everyone), np.int64))
        changes.append(self.trace("customers", CUSTOMERS).extend(table, bundle))
        parts = []
        for low in range(0, len(customers), 1_000_000):
            part = slice(low, low + 1_000_000)
            regions = self.region_of[customers[part]]
            arrays = [
                mixed(regions, days[part]),
                REGIONS[regions],
                pa.array(days[part].astype(np.int32)).cast(pa.date32()),
            ]
            columns = [*map(pa.array, arrays), money(cents[part]), pa.array(ones[part])]
            parts.append(
                AGGREGATE.accumulate(pa.table(columns, names=["_h", "region", "day", "amount", "_w"]))
            )
        groups = self.groups()
        for name, table in AGGREGATE.step(parts, groups).traces.items():
            changes.append(groups[name].extend(table, bundle))
        self.commit(bundle, changes)

    def change(self, count: int) -> tuple[pa.Table, pa.Table]:
        gone = count // 10
        old = self.orders[0]
        fresh = self.drawn(count - gone)
        last_rows = slice(len(old[0]) - gone, len(old[0]))
        rows = tuple(np.concatenate([new, before[last_rows]]) for new, before in zip(fresh, old, strict=True))
        self.orders[0] = (old[0][: -gone or None], old[1][: -gone or None], old[2][: -gone or None])
        weights = np.concatenate([np.ones(count - gone, np.int64), -np.ones(gone, np.int64)])
        moving = self.chance.choice(len(self.region_of), max(2, count // 500), replace=False)
        before = self.region_of[moving]
        self.region_of[moving] = (before + 1) % len(REGIONS)
        both = np.concatenate([moving, moving]), np.concatenate([before, self.region_of[moving]])
        signs = np.repeat([-1, 1], len(moving)).astype(np.int64)
        return self.order_table((rows[0], rows[1], rows[2]), weights), self.customer_table(*both, signs)

    def step(self, orders: pa.Table, customers: pa.Table) -> dict[str, float]:
        """Run one step and time its parts; hashing groups is Spark's work and not counted."""
        times = [time.perf_counter()]
        began = time.process_time()
        bundle = Bundle(self.objects, f"runs/{self.version.step:08d}", self.cache)
        order_trace, customer_trace, groups = (
            self.trace("orders", ORDERS),
            self.trace("customers", CUSTOMERS),
            self.groups(),
        )
        left, right = JOIN.consolidate_side(orders, ORDERS), JOIN.consolidate_side(customers, CUSTOMERS)
        joined = JOIN.step(left, right, order_trace, customer_trace)
        rows = pa.concat_tables([JOIN.schema.empty_table(), *joined]).combine_chunks()
        times.append(time.perf_counter())
        paused = time.process_time()
        hashed = self.grouped(rows)
        paused = time.process_time() - paused
        times.append(time.perf_counter())
        result = AGGREGATE.step([AGGREGATE.accumulate(hashed)], groups)
        assert result.pending is None
        times.append(time.perf_counter())
        changes = [
            order_trace.extend(left, bundle, settled=True),
            customer_trace.extend(right, bundle, settled=True),
        ]
        changes += [groups[name].extend(table, bundle) for name, table in result.traces.items()]
        times.append(time.perf_counter())
        self.commit(bundle, changes)
        times.append(time.perf_counter())
        join, _, aggregate, extend, commit = (1e3 * float(spent) for spent in np.diff(times))
        total = join + aggregate + extend + commit
        cpu = 1e3 * (time.process_time() - began - paused)
        return {
            "join": join,
            "aggregate": aggregate,
            "extend": extend,
            "commit": commit,
            "step": total,
            "cpu": cpu,
        }

    def commit(self, bundle: Bundle, changes: list[TraceChanges]) -> None:
        self.bytes += bundle.write()
        added, merged = TraceChanges.combine(changes)
        self.version = self.version.apply(self.version.step + 1, added, merged).version
        write_version(self.objects, f"versions/{self.version.step:08d}", self.version)


def measured(rows: int, steps: int, report: Report) -> dict[str, Any]:
    """Return the medians of steps of each size over a state of this many rows; skip the first five."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        view = View(rows, Path(folder))
        answer: dict[str, Any] = {
            "load_s": round(time.perf_counter() - began, 1),
            "state_mb": round(view.bytes / 1e6, 1),
        }
        report.say(f"{rows} rows are loaded: {answer}")
        for size in SIZES:
            figures = [view.step(*view.change(size)) for _ in range(steps + 5)][5:]
            medians = {
                part: round(statistics.median(each[part] for each in figures), 2) for part in figures[0]
            }
            worst = max(each["cpu"] for each in figures) / medians["cpu"]
            answer[str(size)] = {**medians, "worst_over_median": round(worst, 2)}
            report.say(f"{rows} rows, steps of {size}: {answer[str(size)]}")
        answer["entries"] = sum(map(len, view.version.traces.values()))
    return answer


def measure(report: Report) -> None:
    small, large, steps = (20_000, 100_000, 5) if report.quick else (1_000_000, 10_000_000, 60)
    raw = {str(rows): measured(rows, steps, report) for rows in (small, large)}
    for size in SIZES:
        before, after = (raw[str(rows)][str(size)] for rows in (small, large))
        report.figure(f"growth_{size}", after["cpu"] / before["cpu"], raw, target=at_most(2))
        report.figure(f"worst_over_median_{size}", after["worst_over_median"], target=at_most(5))


if __name__ == "__main__":
    main("trace", __doc__, measure)
