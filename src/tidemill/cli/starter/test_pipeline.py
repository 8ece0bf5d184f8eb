"""Tests of the pipeline. The fixture `pipeline` comes with Tidemill: a copy with an empty home."""

from decimal import Decimal

from tidemill.testing import assert_equal_to_spark


def test_revenue_counts_only_orders_with_a_positive_amount(pipeline):
    pipeline["customers"].upsert([{"id": 1, "name": "Ana", "region": "north"}])
    pipeline["orders"].append([(1, 1, "10.00", "2026-03-02"), (2, 1, "-3.00", "2026-03-02")])
    pipeline.run()

    rows = pipeline["revenue"].df().collect()
    assert [(row.region, row.orders, row.total) for row in rows] == [("north", 1, Decimal("10.00"))]


def test_revenue_follows_a_customer_who_moves(pipeline):
    pipeline["customers"].upsert([{"id": 1, "name": "Ana", "region": "north"}])
    pipeline["orders"].append([(1, 1, "10.00", "2026-03-02")])
    pipeline.run()
    pipeline["customers"].upsert([{"id": 1, "name": "Ana", "region": "south"}])
    pipeline.run()

    assert [row.region for row in pipeline["revenue"].df().collect()] == ["south"]
    assert_equal_to_spark(pipeline["revenue"])
