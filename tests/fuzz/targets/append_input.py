"""Rows that a program appends, upserts or deletes: any Python object is stored as declared, or refused."""

import datetime as dt
import random
import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidemill as tm
from tests.fuzz.campaign import check_refusal
from tests.fuzz.mutation import NUMBERS, text
from tests.fuzz.targets.json_input import declaration, row
from tidemill.errors import TidemillError

CASES = 30
_ROME = dt.timezone(dt.timedelta(hours=1))
OBJECTS = (
    *(
        dt.date.min,
        dt.date.max,
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, 23, tzinfo=_ROME),
        dt.datetime(2024, 1, 1, tzinfo=_ROME),
    ),
    *(dt.time.max, dt.time(1, 2, 3, tzinfo=_ROME), dt.timedelta.max, dt.timedelta.min, dt.timedelta(1)),
    *(
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("-Infinity"),
        Decimal("1E+999999"),
        Decimal("1.5"),
        Fraction(1, 3),
    ),
    *(
        b"",
        b"\xff",
        bytearray(b"x"),
        memoryview(b"x"),
        {1, 2},
        frozenset(),
        range(3),
        (1, 2),
        object(),
        1 + 2j,
        ...,
    ),
    *(
        np.int64(1),
        np.float32("nan"),
        np.datetime64("2024-01-01"),
        np.datetime64("NaT"),
        np.array([1, 2]),
        np.str_("x"),
    ),
    *(pa.scalar(1), float, len, {"a": {1: 2}}, [("a", 1)], [("a",)], {None: 1}, {b"x": 1}, "\ud800", True),
)


def generate(rng: random.Random) -> dict[str, Any]:
    case = declaration(rng)
    case["operation"] = rng.choice(("append", "upsert", "delete"))
    case["lots"] = rng.choice((None, None, None, "P1D"))
    case["producer"] = rng.choice((None, None, "till", text(rng)))
    case["seq"] = rng.choice((1, 2, *NUMBERS[:20]))
    case["shape"] = rng.choice(("dictionaries", "dictionaries", "dictionaries", "tuples", "arrow", "odd"))
    case["rows"] = [_row(rng, case["columns"]) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return case


def _row(rng: random.Random, columns: dict[str, str]) -> Any:
    good = row(rng, columns)
    if isinstance(good, dict) and rng.random() < 0.5:
        good[rng.choice(("id", *columns))] = rng.choice(OBJECTS)
    return rng.choice(OBJECTS) if rng.random() < 0.05 else good


def _shaped(case: dict[str, Any]) -> Any:
    rows = case.get("rows", [])
    match case.get("shape"):
        case "tuples":
            return [tuple(each.values()) if isinstance(each, dict) else each for each in rows]
        case "arrow":
            try:
                return pa.Table.from_pylist([each for each in rows if isinstance(each, dict)])
            except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError):
                return pa.table({"id": [1]})
        case "odd":
            return rows[0] if rows else ()
    return rows


def check(case: dict[str, Any]) -> None:
    columns = {"id": "BIGINT", **case.get("columns", {})}
    keyed = bool(case.get("keyed"))
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        key.touch(0o600)
        key.write_text("ab" * 32)
        # In memory, because the input does not depend on the store, and a busy disk would leave few cases.
        shop = tm.Pipeline("shop", store="memory://", objects="memory://", key_file=key)
        try:
            orders = shop.dataset(
                "orders",
                ", ".join(f"{name} {kind}" for name, kind in columns.items()),
                key="id" if keyed else None,
                drift=case.get("drift", "freeze"),
                lots=case.get("lots"),
            )
            options = {"producer": case["producer"], "seq": case.get("seq")} if case.get("producer") else {}
            given = _shaped(case)
            receipt = getattr(orders, case.get("operation", "append"))(given, **options)
            assert receipt.lot
            if case.get("lots") is None:
                stored = sum(lot.rows for lot in orders.lots())
                bad = sum(lot.rows for lot in shop["orders_quarantine"].lots()) if keyed else 0
                assert stored + bad == len(given), f"{stored} rows of {len(given)} are stored"
        except TidemillError as error:
            check_refusal(error)
        finally:
            shop.close()
