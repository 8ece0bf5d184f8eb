"""What a view remembers where it needs nothing."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidemill as tm
from tests.integration.views_stage import bag
from tidemill.views.steps import commits
from tidemill.views.trace.version_file import read_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

LINEAR = """
    SELECT upper(item) AS item, price * 2 AS price FROM orders WHERE price < 50
    UNION ALL
    SELECT concat(item, part) AS item, price FROM orders LATERAL VIEW explode(array('-a', '-b')) AS part"""


@pytest.mark.rule("DBSP-10")
def test_linear_operators_run_on_the_change_alone(tmp_path: Path, spark: "SparkSession") -> None:
    with tm.Pipeline("linear", home=tmp_path, spark=spark) as pipeline:
        orders = pipeline.dataset("orders", "item STRING, price INT")
        shown = pipeline.view("shown", LINEAR, refresh="incremental")
        for first in (0, 40, 80):
            orders.append([{"item": f"i{n % 7}", "price": n} for n in range(first, first + 40)])
            assert pipeline.run().ok
            orders.df().createOrReplaceTempView("orders")
            assert bag(shown.df()) == bag(spark.sql(LINEAR))
        site = pipeline.context
        rows = site.store.run(lambda tx: commits.rows(tx, site.keys, "linear", "main", 0, 1 << 60))
        version = read_version(site.objects, rows[-1].version)
        assert version.step == 3
        assert not any(version.traces.values()), "there is nothing that a step could have read"
