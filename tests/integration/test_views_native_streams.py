"""Joins and aggregates over random streams of insertions and deletions equal plain Spark after every step.

`test_views_kernels` compares all queries over two steps. Here, a few families of kernels keep their state for
many steps, in which rows disappear, come back, and change groups and partners.
"""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration import views_oracle
from tests.integration.test_views_kernels import judged
from tests.integration.views_queries import SINGLE
from tidemill.testing import Step
from tidemill.views.certify.generated_steps import generate_steps

FAMILIES = ("join", "exists", "not in", "distinct", "variance", "covariance", "regression")
QUERIES = {name: sql for name, sql in SINGLE.items() if any(family in name for family in FAMILIES)}
TABLES = {name: views_oracle.TABLES[name] for name in ("t", "u", "none")}
ROWS = 6


def stream(seed: int, steps: int) -> Iterator[Step]:
    """Yield steps that insert a few rows and delete some of those present; values are often NULL or equal."""
    chance = random.Random(seed)
    present: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for number in range(steps):
        drawn = generate_steps(TABLES, seed=f"{seed}-{number}", rows=ROWS)[1]
        deletes = {}
        for name, rows in present.items():
            chance.shuffle(rows)
            deletes[name] = [rows.pop() for _ in range(chance.randint(0, len(rows)))]
            rows.extend(drawn.inserts[name])
        yield Step(inserts=drawn.inserts, deletes=deletes, now=drawn.now if number == 0 else None)


def compared(
    spark: Any, folder: Path, seed: int, steps: int, queries: Mapping[str, str], **options: Any
) -> int:
    with views_oracle.stage(spark, {}, TABLES) as known:
        kinds = dict.fromkeys(TABLES, "changes")
        _, count = judged(
            spark, folder, TABLES, known, queries, list(stream(seed, steps)), kinds=kinds, **options
        )
    return count


@pytest.mark.rule("DBSP-1", "DBSP-11", "DBSP-12")
def test_joins_and_aggregates_follow_a_random_stream(spark: Any, tmp_path: Path) -> None:
    some = dict(list(QUERIES.items())[::2])
    assert compared(spark, tmp_path, 1, 4, some, count=3) > len(some) - 5


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.rule("DBSP-1", "DBSP-11", "DBSP-12")
def test_joins_and_aggregates_follow_long_random_streams(spark: Any, tmp_path: Path, seed: int) -> None:
    assert compared(spark, tmp_path, seed, 10, QUERIES, count=7) > len(QUERIES) - 8


@pytest.mark.crash
@pytest.mark.rule("DBSP-1", "DBSP-46")
def test_joins_and_aggregates_follow_a_random_stream_in_spark_jobs(spark: Any, tmp_path: Path) -> None:
    some = dict(list(QUERIES.items())[::4])
    assert compared(spark, tmp_path, 7, 3, some, job=True) > len(some) - 5
