"""A source remembers its rows by the key of most joins: what happens when another view makes that another."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidemill as tm
from tests.integration import views_oracle
from tidemill.events import Event
from tidemill.views.steps import commits
from tidemill.views.steps.events import StepTimed
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

OLD = {
    "sold": "SELECT i.region, count(*) AS n, sum(o.n) AS total FROM o JOIN i ON o.a = i.a GROUP BY i.region"
}
NEW = {
    **OLD,
    "pairs": "SELECT o.n, i.region FROM o JOIN i ON o.b = i.b",
    "alike": "SELECT o.n, count(*) AS times FROM o JOIN o other ON o.b = other.b GROUP BY o.n",
}


class Shop:
    """Two datasets with deletes, views over their joins, and plain Spark beside them."""

    def __init__(self, home: Path, spark: "SparkSession", queries: Mapping[str, str]) -> None:
        self.spark = spark
        self.queries = queries
        self.pipeline = tm.Pipeline("shop", home=home, spark=spark)
        self.o = self.pipeline.dataset("o", "a INT, b STRING, n BIGINT", deletes=True)
        self.i = self.pipeline.dataset("i", "a INT, b STRING, region STRING", deletes=True)
        for name, sql in queries.items():
            self.pipeline.view(name, sql)

    def step(self) -> StepTimed:
        """Run, and compare every view with plain Spark."""
        events: list[Event] = []
        assert self.pipeline.run(emit=events.append).ok
        try:
            for name, dataset in (("o", self.o), ("i", self.i)):
                dataset.df().createOrReplaceTempView(name)
            pairs = {
                name: (self.pipeline[name].df(), self.spark.sql(sql)) for name, sql in self.queries.items()
            }
            views_oracle.check_equal(self.spark, pairs)
        finally:
            for name in ("o", "i"):
                self.spark.catalog.dropTempView(name)
        (timed,) = [event for event in events if isinstance(event, StepTimed)]
        return timed

    def version(self) -> TraceVersion:
        site = self.pipeline.context
        rows = site.store.run(lambda tx: commits.rows(tx, site.keys, "shop", "main", 0, 1 << 60))
        return read_version(site.objects, [row.version for row in rows if row.version][-1])


@pytest.mark.rule("DBSP-41")
def test_a_view_that_has_sources_remember_by_another_key_leaves_the_others_as_they_are(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    shop = Shop(tmp_path / "home", spark, OLD)
    shop.o.append([(n % 3 or None, f"b{n % 4}", n) for n in range(12)])
    shop.i.append([(n % 3 or None, f"b{n % 5}" if n else None, "ns"[n % 2]) for n in range(7)])
    shop.o.delete([(1, "b1", 1), (2, "never", 1)])
    shop.step()
    before = shop.version()
    assert {name.partition(".")[2] for name in before.steps} >= {"by0.main", "by0.aside"}
    shop.pipeline.close()

    # the step in which the new views come brings rows as well: groups above the join must not miss them
    again = Shop(tmp_path / "home", spark, NEW)
    again.o.append([(2, "never", 1), (2, "b2", 100)])
    again.i.delete([(1, "b1", "s")])
    assert again.step().load_s > 0
    after = again.version()
    source = {name for name in before.steps if ".by0." in name and name not in after.steps}
    assert len(source) == 2, "what nobody reads is gone: those of the orders, not those of the items"
    assert {name.replace(".by0.", ".by1.") for name in source} <= after.steps.keys()
    assert all(step == after.step for step in after.steps.values())

    # and the next ones go on from there
    again.o.append([(1, "b0", 7), (None, "b0", 8)])
    again.i.append([(1, "b1", "s"), (1, "b0", "n")])
    timed = again.step()
    assert timed.load_s == 0
    assert set(timed.views) == set(NEW)
    again.pipeline.close()
