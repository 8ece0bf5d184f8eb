"""What happened in the frozen home: the rows that were written, in their order, by fixed seeds."""

import datetime as dt
import json
import os
import random
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import tidemill as tm

REGIONS = ("north", "south", "east", "west")
BEGIN = dt.datetime(2024, 3, 4, 12, 0, tzinfo=dt.UTC)
DAY_S = 86_400.0
STEPS = 6
"""Steps of the home, without the one that a test adds."""

Row = dict[str, Any]


def sales(first: int, count: int) -> list[Row]:
    """Rows of sales. Doubles are multiples of 1/8, whose sums are exact in any order."""
    return [
        {
            "id": n,
            "cust": None if n % 11 == 0 else n % 7,
            "region": None if n % 13 == 0 else REGIONS[n % 4],
            "amount": Decimal(n * 37 % 500) / 4,
            "qty": n % 5,
            "score": (n * 3 % 17) / 8,
            "day": dt.date(2024, 3, 1) + dt.timedelta(days=n % 3),
        }
        for n in range(first, first + count)
    ]


def stock(first: int, count: int) -> list[Row]:
    """Rows of stock; equal ones come more than once."""
    return [
        {
            "item": REGIONS[n % 4],
            "place": None if n % 9 == 0 else n % 6,
            "n": n % 4,
            "price": Decimal(n % 5) / 8,
            "weight": (n % 3) / 4,
            "at": dt.datetime(2999 if n % 5 == 0 else 2020, 1, 1 + n % 7, tzinfo=dt.UTC),
        }
        for n in range(first, first + count)
    ]


def customers(first: int, count: int, edition: int) -> list[Row]:
    return [
        {
            "id": n,
            "region": REGIONS[(n + edition) % 4],
            "name": f"customer {n} of {edition}",
            "since": dt.date(2020, 1, 1 + n % 28),
        }
        for n in range(first, first + count)
    ]


def regions(edition: int) -> list[Row]:
    return [
        {"region": name, "boss": f"{name} {edition}", "grade": edition} for name in REGIONS[: 2 + edition % 3]
    ]


def ordered(edition: int) -> list[Row]:
    """Every second write is older than what is there."""
    at = edition if edition % 2 else -edition
    return [{"region": name, "boss": f"{name} {edition}", "edition": at} for name in REGIONS[:3]]


def typed(first: int, count: int) -> list[Row]:
    """Rows of every type, with the values that are special for each."""
    return [_typed_row(n) for n in range(first, first + count)]


def _typed_row(n: int) -> Row:
    none = n % 10 == 0
    special = {1: float("nan"), 2: float("inf"), 3: -0.0, 4: 0.0}.get(n % 20)
    number = (n * 7 % 64 - 32) / 8 if special is None else special
    moment = dt.datetime(2024, 1, 1, 1, 2, 3, n, tzinfo=dt.UTC) + dt.timedelta(hours=n % 30)
    row: Row = {
        "flag": n % 2 == 0,
        "tiny": n % 200 - 100,
        "small": n * 100 % 60_000 - 30_000,
        "whole": n * 100_003 % 4_000_000_000 - 2_000_000_000,
        "large": n * 10**12 - 10**13,
        "single": number,
        "double": number,
        "money": Decimal(n * 99) / 100,
        "huge": Decimal(n * 10**20 + n) / 10**18,
        "text": "" if n % 7 == 0 else f"é{n % 12}",
        "raw": bytes([n % 256, 0, 255]),
        "day": dt.date(1969, 12, 1) + dt.timedelta(days=n),
        "moment": moment,
        "local": moment.replace(tzinfo=None),
        "numbers": [n % 3, None] if n % 4 else [],
        "pair": {"f": n % 5, "g": None if n % 3 else "g"},
        "named": {"a": n % 4, "b": 2} if n % 5 else {},
    }
    return {"id": n, **{name: None if none else value for name, value in row.items()}}


def land(folder: Path, name: str, lines: Iterable[str]) -> None:
    """A file arrives. Its time is a whole second, so that an archive keeps it."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    os.utime(path, (1_700_000_000, 1_700_000_000))


def _arrivals(first: int, count: int) -> Iterator[str]:
    for n in range(first, first + count):
        yield json.dumps({"id": n, "kind": "ab"[n % 2], "value": n / 4})


def write(pipeline: tm.Pipeline, root: Path, step: int) -> None:
    """What is written before step `step` of the home, from 0 on."""
    chance = random.Random(step)
    base = 1000 * step

    def table(name: str) -> Any:
        return pipeline[name]

    table("sales").append(sales(base, 24), producer="till", seq=10 * step)
    table("stock").append(stock(base, 12))
    table("typed").append(typed(base % 3000, 12))
    table("customers").upsert(customers(chance.randrange(4), 5, step))
    table("regions").upsert(regions(step))
    table("ordered").upsert(ordered(step))
    land(root / "landing", f"{step:03}.json", _arrivals(10 * step, 5))
    table("evolving").append([{"id": step}])
    table("raw_a").append([{"id": step, "n": step}, {"id": step, "n": None}])
    if step:
        before = base - 1000
        table("stock").delete(stock(before + 2, 4))
        table("typed").delete(typed(before % 3000 + 1, 3))
        table("customers").delete([{"id": chance.randrange(7)}])
    if step == 1:
        table("sales").append([{"id": None, "amount": Decimal(1)}])  # to the quarantine
        table("customers").upsert([{"id": None, "name": "nobody"}])
        land(
            root / "landing",
            "bad.json",
            ['{"id": 1, "kind": "a", "value": "much"}', "{not json", *_arrivals(900, 1)],
        )
        land(root / "rescued", "a.json", ['{"id": 1, "n": 2}', '{"id": 2, "n": "x", "more": [1]}'])
    if step == 2:
        pipeline["sales"].replace("A00000000000000001", sales(0, 12))  # type: ignore[attr-defined]
    if step in (1, 3):
        table("daily").append([{"region": "north", "n": step}, {"region": "south", "n": 1}])
    if step == 3:
        table("other_daily").append([{"region": "north", "n": 5}])
        table("raw_b").append([{"id": 1, "n": 1}])
