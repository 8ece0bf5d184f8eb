"""Spark jobs and the runner compute the same step."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import tidemill as tm
from tests.integration import views_oracle
from tidemill.events import Event
from tidemill.views.spark import execution, in_process_executor, step_inputs
from tidemill.views.spark.execution import SETTING
from tidemill.views.spark.lot_files import LotReader
from tidemill.views.steps import commits
from tidemill.views.steps.events import StepTimed
from tidemill.views.steps.inputs import ManifestReader
from tidemill.views.trace.version_file import read_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

SALES = """
    SELECT c.region, o.item, count(*) AS n, sum(o.price) AS total, avg(o.price) AS mean, max(o.price) AS most
    FROM orders o JOIN customers c ON o.cust = c.id GROUP BY c.region, o.item"""
CHEAP = "SELECT upper(item) AS item, price * 2 AS price FROM orders WHERE price < 50"
BEST = """
    SELECT item, id, price FROM (
        SELECT *, count_if(id >= 0) OVER (PARTITION BY item ORDER BY price DESC, id) AS place
        FROM orders)
    WHERE place <= 2"""
LONELY = "SELECT c.id, c.region, o.item FROM customers c LEFT JOIN orders o ON o.cust = c.id"

VIEWS = {"sales": SALES, "cheap": CHEAP, "lonely": LONELY, "best": BEST}


class Shop:
    def __init__(self, home: Path, spark: "SparkSession", *views: str) -> None:
        self.views = {name: VIEWS[name] for name in views or VIEWS}
        self.events: list[Event] = []
        self.spark = spark
        self.pipeline = tm.Pipeline("shop", home=home, spark=spark)
        self.orders = self.pipeline.dataset(
            "orders", "id BIGINT, cust INT, item STRING, price DECIMAL(20,2)", deletes=True
        )
        self.customers = self.pipeline.dataset("customers", "id INT, region STRING", key="id")
        for name, sql in self.views.items():
            self.pipeline.view(name, sql)

    def run_steps(self, steps: int = 2) -> list[Any]:
        """Run a load and one or two steps; return the digests of their changes."""
        rows = [_order(n) for n in range(40)]
        self.customers.upsert([{"id": n, "region": "ab"[n % 2]} for n in range(6)])
        self.orders.append(rows)
        self.run()
        self.orders.append([_order(n) for n in range(40, 50)])
        self.orders.delete(rows[:7])
        self.run()
        if steps > 1:
            self.customers.upsert([{"id": 2, "region": "c"}, {"id": 9, "region": None}])
            self.run()
        return self.digests()

    def run(self) -> None:
        report = self.pipeline.run(emit=self.events.append)
        assert report.ok, report

    @property
    def places(self) -> list[str]:
        """Return where each step was computed, including the load."""
        return [str(event.place) for event in self.events if isinstance(event, StepTimed)]

    def digests(self) -> list[Any]:
        return [
            sorted((output.view, output.digest, output.content) for output in row.outputs)
            for row in self.steps()
        ]

    def steps(self) -> list[commits.StepRow]:
        context = self.pipeline.context
        return context.store.run(lambda tx: commits.rows(tx, context.keys, "shop", "main", 0, 1 << 60))

    def trace_sizes(self) -> set[int]:
        """Return the numbers of rows of all traces."""
        traces = read_version(self.pipeline.context.objects, self.steps()[-1].version).traces
        return {sum(run.rows for run in runs) for runs in traces.values()}

    def check(self) -> None:
        for name in ("orders", "customers"):
            self.pipeline[name].df().createOrReplaceTempView(name)
        pairs = {name: (self.pipeline[name].df(), self.spark.sql(sql)) for name, sql in self.views.items()}
        views_oracle.check_equal(self.spark, pairs)


def _order(n: int) -> dict[str, Any]:
    return {"id": n, "cust": n % 8, "item": "xyz"[n % 3], "price": Decimal(n * 7 % 90) + Decimal("0.25")}


@pytest.fixture
def shop(tmp_path: Path, spark: "SparkSession", request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A shop with the views of the test's parameter."""
    shop = Shop(tmp_path / "home", spark, *request.param)
    yield shop
    shop.pipeline.close()


@pytest.mark.rule("DBSP-20", "DBSP-41")
def test_every_place_computes_the_same_digests(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {}
    monkeypatch.setattr(execution, "threads_for", lambda _: 3)  # each computes a range
    monkeypatch.setattr(in_process_executor, "CALL_BYTES", 500)  # a few rows for each call of Spark
    for place in ("spark", "runner"):
        monkeypatch.setenv(SETTING, place)
        shop = Shop(tmp_path / place, spark, "sales", "best", "cheap")
        digests[place] = shop.run_steps()
        assert set(shop.places) == {place}
        shop.check()
        shop.pipeline.close()
    assert digests["spark"] == digests["runner"]
    assert all(step for step in digests["spark"])


@pytest.mark.rule("DBSP-17")
@pytest.mark.parametrize("shop", [("best",)], indirect=True)
def test_rows_that_a_view_drops_from_a_keyed_result_are_not_stored(shop: Shop) -> None:
    shop.orders.append([_order(n) for n in range(40)])
    shop.customers.upsert([{"id": 1, "region": "a"}])
    shop.run()
    assert 6 in shop.trace_sizes(), "two of each of three items, and not all forty rows"


@pytest.mark.rule("DBSP-41")
@pytest.mark.parametrize("shop", [("sales",)], indirect=True)
def test_a_step_that_is_too_large_for_the_runner_moves_to_spark(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process_executor, "MOST_BYTES", 2_000)
    monkeypatch.setenv(SETTING, "runner")
    shop.run_steps(1)
    assert set(shop.places) == {"spark"}, "all steps are larger than that"
    shop.check()


@pytest.mark.parametrize("shop", [("sales",)], indirect=True)
def test_files_with_other_columns_are_read_by_spark(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    original = step_inputs.LotInput.reader
    tried: list[bool] = []

    def reader(self: step_inputs.LotInput) -> LotReader | None:
        declared = original(self)
        tried.append(self.by_spark)
        if declared is None:
            return None
        columns = pa.schema([(each.name, pa.list_(pa.int8())) for each in declared.columns])
        return LotReader(columns, declared.kind)

    monkeypatch.setattr(step_inputs.LotInput, "reader", reader)
    monkeypatch.setenv(SETTING, "spark")
    shop.run_steps(1)
    shop.check()
    assert {True, False} == set(tried), "Python workers tried first, and refused"


@pytest.mark.parametrize("shop", [("cheap", "best")], indirect=True)
def test_changes_that_an_interrupted_step_wrote_are_removed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = in_process_executor.InProcessExecutor._run

    def run(self: in_process_executor.InProcessExecutor, changes: Any) -> Any:
        if self.plan.job:
            raise in_process_executor.TooLargeInProcess
        return original(self, changes)

    monkeypatch.setattr(in_process_executor.InProcessExecutor, "_run", run)
    monkeypatch.setenv(SETTING, "runner")
    shop.run_steps(1)
    assert set(shop.places) == {"spark"}
    shop.check()
    objects = shop.pipeline.context.objects
    reader = ManifestReader(objects)
    listed = {
        item.uri for row in shop.steps() for output in row.outputs for item in reader.objects(output.changes)
    }
    existing = {info.key for info in objects.list("data/") if "name=view%3A" in info.key}
    assert {key for key in existing if "changes" in key} <= listed
    assert listed <= existing
