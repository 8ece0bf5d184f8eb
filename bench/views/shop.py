"""Generate orders and customers from a seed: a base, steps that change it, and the current tables.

A step of n changes is nine tenths new orders and one tenth deleted orders of the base. For each 500 changes,
one customer (at least two) moves to another region with about 50 orders. Everything is written as plain
Parquet, so that every side reads the same files.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

REGIONS, DAYS, ORDERS_EACH = 50, 730, 50
FIRST_DAY = 19_000  # days since 1970
FILES = 8
MONEY = pa.decimal128(10, 2)
NAMES = pa.array([f"region-{number:02}" for number in range(REGIONS)])
INTEGERS, TYPES = "integers", "types"

DDL: Mapping[str, Mapping[str, str]] = {
    INTEGERS: {"orders": "id BIGINT, cust INT, day INT, amount BIGINT", "customers": "id INT, region INT"},
    TYPES: {
        "orders": "id BIGINT, cust BIGINT, day DATE, amount DECIMAL(10,2)",
        "customers": "id BIGINT, region STRING",
    },
}
"""The columns of both tables, in numbers alone and in the types that people use."""


class Orders(NamedTuple):
    """Columns of orders; the first is the number of the order."""

    id: Any
    cust: Any
    day: Any
    amount: Any

    def taken(self, rows: Any) -> "Orders":
        return Orders(*(column[rows] for column in self))


class Step(NamedTuple):
    """The files of one step: inserts and deletes."""

    number: int
    changes: int
    folder: Path

    @property
    def files(self) -> dict[str, str]:
        return {
            f"{table}_{way}": str(self.folder / f"{table}-{way}.parquet")
            for table in ("orders", "customers")
            for way in ("out", "in")
        }


class Shop:
    """The tables after the steps generated so far.

    - kind: `integers` or `types`; both hold the same numbers.
    """

    def __init__(self, folder: Path, kind: str, rows: int) -> None:
        self.folder = folder
        self.kind = kind
        self.rows = rows
        self.ddl = DDL[kind]
        self._chance = np.random.default_rng(7)
        self.region_of = self._chance.integers(0, REGIONS, max(10, rows // ORDERS_EACH))
        self._base = self._drawn(rows, 0)
        self._going = self._chance.permutation(rows)
        self._gone = 0
        self._came: list[Orders] = []
        self._next = rows
        self._steps = 0
        self.write(self.base)

    @property
    def count(self) -> int:
        """The current number of orders."""
        return self.rows - self._gone + sum(len(orders.id) for orders in self._came)

    @property
    def base(self) -> Path:
        """The tables before the first step."""
        return self.folder / "base"

    def step(self, changes: int) -> Step:
        """Generate the next step, and write it."""
        out = changes // 10
        if self._gone + out > self.rows:
            raise ValueError(f"{self.rows} orders are too few for these steps")
        fresh = self._drawn(changes - out, self._next)
        rows = self._going[self._gone : self._gone + out]
        self._next += changes - out
        self._gone += out
        self._came.append(fresh)
        moving = self._chance.choice(len(self.region_of), max(2, changes // 500), replace=False)
        before = self.region_of[moving]
        self.region_of[moving] = (before + self._chance.integers(1, REGIONS, len(moving))) % REGIONS
        self._steps += 1
        step = Step(self._steps, changes, self.folder / "steps" / f"{self._steps:05}")
        step.folder.mkdir(parents=True)
        files = step.files
        self._put(self._orders(self._base.taken(rows)), files["orders_out"])
        self._put(self._orders(fresh), files["orders_in"])
        self._put(self._customers(moving, before), files["customers_out"])
        self._put(self._customers(moving, self.region_of[moving]), files["customers_in"])
        return step

    def write(self, folder: Path) -> Path:
        """Write the current tables: `orders/` in several files, `customers/` in one."""
        left = np.sort(self._going[self._gone :])
        parts = [self._base.taken(left), *self._came]
        orders = Orders(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        for table in ("orders", "customers"):
            (folder / table).mkdir(parents=True)
        edges = np.linspace(0, len(orders.id), FILES + 1).astype(int)
        for number, (low, high) in enumerate(itertools.pairwise(edges)):
            table = self._orders(orders.taken(slice(low, high)))
            self._put(table, folder / "orders" / f"{number:02}.parquet")
        everyone = np.arange(len(self.region_of))
        self._put(self._customers(everyone, self.region_of), folder / "customers" / "00.parquet")
        return folder

    def _drawn(self, count: int, first: int) -> Orders:
        return Orders(
            id=np.arange(first, first + count, dtype=np.int64),
            cust=self._chance.integers(0, len(self.region_of), count, dtype=np.int64),
            day=self._chance.integers(0, DAYS, count, dtype=np.int32),
            amount=self._chance.integers(100, 1_000_000, count, dtype=np.int64),
        )

    def _orders(self, rows: Orders) -> pa.Table:
        if self.kind == INTEGERS:
            cust, day, amount = rows.cust.astype(np.int32), rows.day, rows.amount
        else:
            cust, amount = rows.cust, _money(rows.amount)
            day = pa.array(rows.day + np.int32(FIRST_DAY)).cast(pa.date32())
        return pa.table({"id": rows.id, "cust": cust, "day": day, "amount": amount})

    def _customers(self, ids: Any, regions: Any) -> pa.Table:
        if self.kind == INTEGERS:
            return pa.table({"id": ids.astype(np.int32), "region": regions.astype(np.int32)})
        return pa.table({"id": ids.astype(np.int64), "region": NAMES.take(pa.array(regions))})

    @staticmethod
    def _put(table: pa.Table, path: Path | str) -> None:
        # As Spark writes it: small decimals as integers, which its reader reads fastest.
        pq.write_table(table, path, store_decimal_as_integer=True)


def _money(cents: Any) -> pa.Array:
    limbs = np.stack([cents, cents >> 63], axis=1).astype(np.int64)
    return pa.Array.from_buffers(MONEY, len(cents), [None, pa.py_buffer(limbs.tobytes())])
