"""`retry` of views: which lots it accepts, and what a view that is set aside passes over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemill as tm
from tidemill.errors import StoreBusy, UsageError
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot
from tidemill.pipeline import view_retries
from tidemill.pipeline.reader import failed
from tidemill.views.steps import failed_views, groups, records
from tidemill.views.steps.failed_views import FailedInput, FailedView, PassedLot
from tidemill.views.steps.groups import GroupSpec, ViewGroup, ViewSpec

ORDERS = DatasetId("orders")
VIEWS = ("tenths", "reader", "exact")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tm.Pipeline]:
    """A pipeline with two lots, of which the view `tenths` fails on the second."""
    with tm.Pipeline("shop", home=tmp_path / "home") as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT, n INT")
        arrivals = pipeline.dataset("arrivals", "id BIGINT")
        pipeline.source(arrivals, tm.folder(tmp_path / "landing" / "*.json"))
        pipeline.view("tenths", "SELECT id, 10 DIV n AS r FROM orders")
        pipeline.view("reader", "SELECT count(*) AS n FROM tenths")
        pipeline.view("exact", "SELECT 10 DIV n AS r FROM orders", refresh="incremental")
        for number in (1, 0):
            orders.append([(number, number)])
        yield pipeline


def lots(shop: tm.Pipeline) -> list[str]:
    return [lot.lot for lot in shop["orders"].lots()]


def set_aside(shop: tm.Pipeline, *views: FailedView) -> None:
    """Store a group in which these views are set aside."""
    keys = shop.context.keys
    spec = GroupSpec(
        name="main", views=tuple(ViewSpec(name=name, code="1", reads=(ORDERS,)) for name in VIEWS)
    )
    rows = {view.view: view for view in views}
    shop.context.store.run(lambda tx: groups.write(tx, keys, "shop", ViewGroup(spec=spec, step=0)))
    shop.context.store.run(lambda tx: failed_views.store(tx, keys, "shop", "main", {}, rows))


def failure(shop: tm.Pipeline, view: str = "tenths", *, known: bool = True) -> FailedView:
    second = InputLot(dataset="orders", version="1", lot=lots(shop)[1], generation=0)
    return FailedView(
        view=view, code="1", error="DIVIDE_BY_ZERO", input=FailedInput(lots=(second,) if known else ())
    )


def test_lots_of_a_view_are_not_retried_one_by_one(shop: tm.Pipeline) -> None:
    set_aside(shop, failure(shop))
    for name in ("tenths", "main"):
        with pytest.raises(UsageError, match="a step computes a view as a whole") as refused:
            shop.retry(name, lots=lots(shop))
        assert f"tidemill retry {name} retries it" in str(refused.value.hint)
    assert not failed(shop)["tenths"].requested
    assert shop.retry("tenths") == []
    assert failed(shop)["tenths"].requested


def test_the_views_of_a_group_are_retried_by_its_name(shop: tm.Pipeline) -> None:
    set_aside(shop, failure(shop), failure(shop, "exact"))
    assert shop.retry("main") == []
    assert all(view.requested for view in failed(shop).values())
    with pytest.raises(UsageError, match="nothing"):
        shop.retry("nothing")


def test_lots_of_a_source_are_not_retried_one_by_one(shop: tm.Pipeline) -> None:
    with pytest.raises(UsageError, match="a source ingests them") as refused:
        shop.retry("arrivals", lots=["A00000000000000001"])
    assert "tidemill retry arrivals" in str(refused.value.hint)
    assert shop.retry("arrivals") == []


@pytest.mark.rule("DBSP-40")
def test_a_view_passes_over_the_lot_on_which_it_failed_or_over_named_lots(shop: tm.Pipeline) -> None:
    first, second = lots(shop)
    set_aside(shop, failure(shop))
    assert view_retries.pass_over(shop, "tenths") == [PassedLot(ORDERS, second, 0)]
    assert failed(shop)["tenths"].requested
    assert view_retries.pass_over(shop, "tenths", [first]) == [PassedLot(ORDERS, first, 0)]
    assert failed(shop)["tenths"].passed == (PassedLot(ORDERS, second, 0), PassedLot(ORDERS, first, 0))


@pytest.mark.rule("DBSP-40")
def test_a_view_can_read_an_earlier_generation(shop: tm.Pipeline) -> None:
    _, second = lots(shop)
    shop["orders"].replace(second, [(3, 0)])  # type: ignore[attr-defined]
    set_aside(shop, failure(shop))
    with pytest.raises(UsageError, match="has no generation 1 before the current one"):
        view_retries.pass_over(shop, "tenths", generations={second: 1})
    assert view_retries.pass_over(shop, "tenths") == [PassedLot(ORDERS, second, 1)]
    assert view_retries.pass_over(shop, "tenths", generations={second: 0}) == [
        PassedLot(ORDERS, second, 1, 0)
    ]
    assert failed(shop)["tenths"].passed == (PassedLot(ORDERS, second, 1, 0),), "the last request counts"


@pytest.mark.rule("DBSP-40")
def test_a_request_that_cannot_work_is_refused_and_changes_nothing(shop: tm.Pipeline) -> None:
    unknown = failure(shop, known=False)
    set_aside(shop, unknown, FailedView(view="reader", code="1", cause="tenths"), failure(shop, "exact"))
    for view, chosen, message in (
        ("orders", [], "orders is not a view"),
        ("reader", [], "waits for the view tenths"),
        ("exact", [], "a view that passes over lots is recomputed"),
        ("tenths", [], "not known on which lots"),
        ("tenths", ["A00000000000000077"], "reads no dataset with the lot"),
    ):
        with pytest.raises(UsageError, match=message):
            view_retries.pass_over(shop, view, chosen)
    assert failed(shop)["tenths"] == unknown
    set_aside(shop, FailedView(view="tenths", code="1", passed=(PassedLot(ORDERS, lots(shop)[0], 0),)))
    with pytest.raises(UsageError, match="tenths is not set aside"):
        view_retries.pass_over(shop, "tenths", lots(shop))


@pytest.mark.rule("DBSP-40")
def test_a_retry_waits_for_the_coordinator(shop: tm.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_retries, "TRIES", 3)
    monkeypatch.setattr(view_retries, "PAUSE_S", 0.0)
    set_aside(shop, failure(shop))
    store, keys = shop.context.store, shop.context.keys
    lease = store.run(lambda tx: records.become_coordinator(tx, keys, "shop", "another", 10**12))
    with pytest.raises(StoreBusy, match="another process is coordinating"):
        view_retries.retry(shop, "tenths")
    assert not failed(shop)["tenths"].requested
    store.run(lambda tx: records.resign_coordinator(tx, keys, "shop", lease))  # type: ignore[arg-type]
    assert view_retries.retry(shop, "tenths") == ["tenths"]
    assert store.run(lambda tx: records.last(tx, keys, "shop")).number == 1
    again = store.run(lambda tx: records.become_coordinator(tx, keys, "shop", "another", 10**12))
    assert type(again) is type(lease), "the retry has resigned"
