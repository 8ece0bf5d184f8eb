"""Declare the pipeline of the frozen home.

The home stores these names, schemas, queries and digests, so they must not change. Adapt only how they are
declared, when the API changes.

Arcs and view functions are `operator.methodcaller` objects: the digest of their code does not depend on the
byte code of a Python release, so the stored digests hold on every one.
"""

# ruff: noqa: E501  # a query stands on one line beside its name

from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any

import tidemill as tm

NAME = "frozen"

TYPES = {
    "flag": "BOOLEAN",
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "whole": "INT",
    "large": "BIGINT",
    "single": "FLOAT",
    "double": "DOUBLE",
    "money": "DECIMAL(10,2)",
    "huge": "DECIMAL(38,18)",
    "text": "STRING",
    "raw": "BINARY",
    "day": "DATE",
    "moment": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
    "numbers": "ARRAY<INT>",
    "pair": "STRUCT<f: INT, g: STRING>",
    "named": "MAP<STRING, INT>",
}
"""The columns of `typed`, one for each type that kernels take."""

_NUMERIC = ("tiny", "small", "whole", "large", "single", "double", "money", "huge")
_ORDERED = (*_NUMERIC, "flag", "text", "raw", "day", "moment", "local")


def _sums() -> str:
    calls = [f"{call}({name}) AS {call}_{name}" for name in _NUMERIC for call in ("sum", "avg", "count")]
    return f"SELECT id % 3 AS third, count(*) AS n, {', '.join(calls)} FROM typed GROUP BY id % 3"


def _extremes() -> str:
    calls = [f"{call}({name}) AS {call}_{name}" for name in _ORDERED for call in ("min", "max")]
    return f"SELECT id % 2 AS half, {', '.join(calls)} FROM typed GROUP BY id % 2"


VIEWS: Mapping[str, str] = {
    # row by row
    "filtered": "SELECT id, upper(region) AS region, amount * 2 AS twice FROM sales WHERE amount > 20",
    "exploded": "SELECT id, letter FROM sales LATERAL VIEW explode(split(region, '')) e AS letter",
    "stacked": "SELECT region FROM sales UNION ALL SELECT item FROM stock UNION ALL SELECT r FROM VALUES ('x') AS v(r)",
    "copied": "SELECT * FROM typed",
    # inner joins: sides with their own traces, sides that share a trace of a source, wider keys, null-safe keys
    "pairs": "SELECT a.id, b.id AS other FROM sales a JOIN sales b ON a.cust = b.qty AND a.region = b.region",
    "null_safe": "SELECT a.id, s.n FROM sales a JOIN stock s ON a.qty <=> s.place",
    "with_names": "SELECT s.id, c.name, s.amount FROM sales s JOIN customers c ON s.cust = c.id",
    "with_stock": "SELECT s.id, k.place, k.n FROM sales s JOIN stock k ON s.region = k.item",
    "stock_bosses": "SELECT k.item, k.n, r.boss FROM stock k JOIN regions r ON k.item = r.region",
    "filtered_lent": "SELECT c.name, k.n FROM customers c JOIN stock k ON c.region = k.item WHERE k.n > 2 AND c.id > 1",
    "three_ways": "SELECT s.id, c.name, r.boss FROM sales s JOIN customers c ON s.cust = c.id JOIN regions r ON c.region = r.region",
    # joins that Spark computes for the keys that changed, and a window
    "left_join": "SELECT s.id, c.name FROM sales s LEFT JOIN customers c ON s.cust = c.id",
    "right_join": "SELECT s.id, c.name FROM sales s RIGHT JOIN customers c ON s.cust = c.id",
    "full_join": "SELECT k.item, r.region, r.boss FROM stock k FULL JOIN regions r ON k.item = r.region",
    "anti_join": "SELECT id, cust FROM sales WHERE NOT EXISTS (SELECT 1 FROM customers c WHERE c.id = sales.cust)",
    "ranked": "SELECT region, id, row_number() OVER (PARTITION BY region ORDER BY amount DESC, id) AS place FROM sales",
    "collected": "SELECT region, sort_array(collect_list(id)) AS ids FROM sales GROUP BY region",
    # sets
    "distinct_items": "SELECT DISTINCT item, place FROM stock",
    "distinct_types": "SELECT DISTINCT * EXCEPT (named) FROM typed",
    "united": "SELECT region FROM sales UNION SELECT item FROM stock",
    "shared": "SELECT region FROM sales INTERSECT SELECT item FROM stock",
    "shared_all": "SELECT region FROM sales INTERSECT ALL SELECT item FROM stock",
    "without": "SELECT region FROM customers EXCEPT SELECT item FROM stock",
    "without_all": "SELECT region FROM sales EXCEPT ALL SELECT item FROM stock",
    # groups
    "by_region": "SELECT region, count(*) AS n, sum(amount) AS total, avg(score) AS score, min(day) AS since, max(qty) AS most FROM sales GROUP BY region",
    "by_name": "SELECT name, count(*) AS n, sum(amount) AS total FROM with_names GROUP BY name",
    "by_day_and_region": "SELECT day, region, sum(qty) AS qty FROM sales GROUP BY GROUPING SETS ((day, region), (region), ())",
    "grand_total": "SELECT count(*) AS n, sum(n) AS total, max(price) AS highest FROM stock",
    "type_sums": _sums(),
    "type_extremes": _extremes(),
    "by_types": f"SELECT {', '.join(TYPES)}, count(*) AS n FROM typed GROUP BY {', '.join(TYPES)}",
    "counted_distinct": "SELECT region, count(DISTINCT cust) AS custs FROM sales GROUP BY region",
    # recomputed
    "newest": "SELECT region, boss FROM ordered",
    "top": "SELECT id, amount FROM sales ORDER BY amount DESC, id LIMIT 3",
    "unequal": "SELECT s.id, k.place FROM sales s JOIN stock k ON s.qty < k.place",
    # the clock
    "past": "SELECT item, at FROM stock WHERE at < current_timestamp() - INTERVAL 1 DAY",
    # other bases
    "arrived": "SELECT kind, count(*) AS n, sum(value) AS total FROM arrivals GROUP BY kind",
    "daily_totals": "SELECT region, sum(n) AS n FROM daily GROUP BY region",
    "cleaned_totals": "SELECT region, count(*) AS n, sum(amount) AS total FROM cleaned GROUP BY region",
}
"""Views of the group `main`, by name."""

NEW_TRACES: Mapping[str, int] = {"main": 26}
"""How many traces later releases added to each group.

Those of `top`, `newest` and `unequal`, which release 1 recomputed; of `ranked`, of the outer and anti joins and
of `counted_distinct`, which Spark computed by key; and of `collected`, which stored columns that are not used."""

REPLACED_TRACES: Mapping[str, int] = {"main": 18}
"""How many traces of each group later releases no longer read: those that Spark computed by key."""

OTHER_GROUPS: Mapping[str, str] = {
    "slow": "SELECT region, count(*) AS n FROM sales GROUP BY region",
    "nightly": "SELECT count(*) AS n FROM sales",
    "paused": "SELECT item, sum(n) AS n FROM stock GROUP BY item",
}
"""Views that are a group each, with the group's name."""

DATASETS = (
    "sales",
    "stock",
    "customers",
    "regions",
    "ordered",
    "typed",
    "arrivals",
    "evolving",
    "rescued",
    "daily",
    "other_daily",
)
ARC_TABLES = ("cleaned", "whole_lots", "empty_lots", "halved", "copy_of_a", "copy_of_b")


def declare(root: Path, spark: Any, *, first: bool = False, **options: Any) -> tm.Pipeline:
    """The pipeline over the home in a folder.

    - first: as it was declared at first: with a view and an arc that are declared no more, and fewer columns.
    """
    pipeline = tm.Pipeline(NAME, home=root / "home", spark=spark, **options)
    _declare_datasets(pipeline, root, first=first)
    _declare_arcs(pipeline, first=first)
    for name, query in VIEWS.items():
        pipeline.view(name, query)
    pipeline.view(
        "doubled", methodcaller("selectExpr", "id", "amount * 2 AS twice"), reads="sales", linear=True
    )
    pipeline.view("unique_rows", methodcaller("distinct"), reads="regions", keyed_by="region")
    pipeline.view("sorted_rows", methodcaller("orderBy", "region"), reads="regions", full=True)
    pipeline.view("always_full", "SELECT region, count(*) AS n FROM sales GROUP BY region", refresh="full")
    pipeline.view("slow", OTHER_GROUPS["slow"], group="slow", pace=tm.Pace(cadence="PT1H"))
    pipeline.view("nightly", OTHER_GROUPS["nightly"], group="nightly", pace=tm.Pace(cron="0 3 * * *"))
    pipeline.view("paused", OTHER_GROUPS["paused"], group="paused")
    if first:
        pipeline.view("old", "SELECT region, max(amount) AS most FROM sales GROUP BY region")
        pipeline.view("old_alone", "SELECT count(*) AS n FROM stock", group="old_group")
    return pipeline


def _declare_datasets(pipeline: tm.Pipeline, root: Path, *, first: bool) -> None:
    pipeline.dataset(
        "sales",
        "id BIGINT, cust BIGINT, region STRING, amount DECIMAL(10,2), qty INT, score DOUBLE, day DATE",
        checks=[tm.not_null("id", on_fail="drop"), tm.expect("amount < 1000000", on_fail="warn")],
    )
    pipeline.dataset(
        "stock",
        "item STRING, place INT, n BIGINT, price DECIMAL(20,4), weight FLOAT, at TIMESTAMP",
        deletes=True,
    )
    pipeline.dataset("customers", "id BIGINT, region STRING, name STRING, since DATE", key="id")
    pipeline.dataset("regions", "region STRING, boss STRING, grade SMALLINT", key="region")
    pipeline.dataset(
        "ordered", "region STRING, boss STRING, edition BIGINT", key="region", order_by="edition"
    )
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    pipeline.dataset("typed", f"id BIGINT, {columns}", deletes=True)
    pipeline.dataset("arrivals", "id BIGINT, kind STRING, value DOUBLE")
    pipeline.source("arrivals", tm.folder(root / "landing" / "*.json", settle_s=0.0, max_files=2))
    more = "" if first else ", note STRING"
    pipeline.dataset("evolving", f"id {'INT' if first else 'BIGINT'}{more}", drift="evolve")
    pipeline.dataset("rescued", "id BIGINT, n INT", drift="rescue")
    pipeline.source("rescued", tm.folder(root / "rescued" / "*.json", settle_s=0.0))
    pipeline.dataset("daily", "region STRING, n BIGINT", lots="P1D")
    pipeline.dataset("other_daily", "region STRING, n BIGINT", lots="P1D")
    pipeline.dataset("raw_a", "id BIGINT, n INT")
    pipeline.dataset("raw_b", "id BIGINT, n INT")


def _declare_arcs(pipeline: tm.Pipeline, *, first: bool) -> None:
    from pyspark.sql import DataFrame

    arc = pipeline.arc
    arc(reads="sales", writes="cleaned", partition_by="region", name="clean")(
        methodcaller("where", "amount > 15")
    )
    arc(reads="sales", writes=("whole_lots", "empty_lots"), name="split")(
        methodcaller("randomSplit", [1.0, 0.0], 7)
    )
    arc(reads="cleaned", writes="halved", parts=4, retries=0, name="halve")(
        methodcaller(
            "selectExpr", "id", "region", "if(region = 'south', raise_error('no south'), amount / 2) AS half"
        )
    )
    arc(reads="cleaned", writes="refused", retries=0, schema="id BIGINT", name="refuse")(
        methodcaller("selectExpr", "CAST(raise_error(concat('no ', id)) AS BIGINT) AS id")
    )
    arc(reads="raw_*", writes="copy_of_{name}", name="copy")(methodcaller("where", "n IS NOT NULL"))
    arc(reads=["daily", "other_daily"], writes="both", grace="PT1H", after_grace="skip", name="meet")(
        DataFrame.unionAll  # a library's function: its digest is its name
    )
    arc(reads="stock", writes="stock_lots", changes="linear", enabled=False, name="waiting")(
        methodcaller("where", "n > 1")
    )
    arc(reads="sales", writes="timed_lots", pace=tm.Pace(cron="0 4 * * *"), name="timed")(
        methodcaller("select", "id")
    )
    if first:
        arc(reads="sales", writes="dropped_lots", name="dropped")(methodcaller("select", "id", "day"))
