"""A run on Spark: its events are a table, a view's step has rows per operator, and the state has a size."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tidemill as tm
from tests.certificates import assumed_certificates
from tests.leases import LongLeaseClock
from tidemill.clock import SYSTEM
from tidemill.ui.model import views
from tidemill.ui.model.reader import StoreReader
from tidemill.views.steps import commits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.rule("FUT-58")
def test_the_events_of_a_run_are_a_table_and_describe_its_steps(
    spark: "SparkSession", tmp_path: Path
) -> None:
    shop = tm.Pipeline("shop", home=tmp_path / "home", spark=spark, clock=LongLeaseClock(SYSTEM))
    orders = shop.dataset("orders", "id BIGINT, amount BIGINT")

    @shop.arc(reads=orders, writes="paid")
    def pay(df):  # type: ignore[no-untyped-def]
        return df.where("amount > 0")

    shop.view("totals", "SELECT id % 2 AS odd, count(*) AS n FROM paid GROUP BY id % 2")
    orders.append([{"id": number, "amount": number} for number in range(5)])
    with assumed_certificates():
        assert shop.run().ok
        orders.append([{"id": 7, "amount": 7}])
        assert shop.run().ok

    frame = shop.events()
    complete = frame.where("kind = 'ArcLotComplete' AND about = 'pay' AND severity = 'good'").collect()
    assert len(complete) == 2
    assert {row.pipeline for row in complete} == {"shop"}
    assert all(row.lot and row.node and row.at is not None for row in complete)

    reader = StoreReader(shop.context.store, shop.context.place.cluster)
    group = shop.views["totals"].group
    kernels = views.detail(reader, "totals").kernels
    assert kernels
    assert any(kernel.received and kernel.returned for kernel in kernels)
    last = reader.run(partial(commits.newest, keys=reader.keys, pipeline="shop", group=group, limit=1))
    assert last[0].state_bytes > 0
    shop.close()
