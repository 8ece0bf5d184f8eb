"""Checks of views: the rows that fail are kept up to date, and a view whose rows fail may be refused."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.errors import DeclarationError, NothingYet, QueryError
from tidemill.events import Event
from tidemill.pipeline.reader import failed
from tidemill.pipeline.status import status_of
from tidemill.views.spark.execution import SETTING
from tidemill.views.steps.events import StepTimed, ViewChecked, ViewSetAside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

ORDERS = "id INT, cust INT, amount INT"


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.df().collect()), key=repr)


def failing(pipeline: tm.Pipeline, view: str) -> list[tuple[str, str]]:
    return sorted((check, record) for check, _, record in rows(pipeline[f"{view}_failures"]))


def record(row: tuple[Any, ...]) -> str:
    values = ["null" if value is None else str(value) for value in row]
    return "{" + ",".join(f'"{n}":{v}' for n, v in zip(("id", "cust", "amount"), values, strict=True)) + "}"


def test_each_kind_of_check_follows_the_rows_of_a_view_incrementally(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, "runner")
    events: list[Event] = []
    sent_to = tmp_path / "lineage.jsonl"
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark, lineage=sent_to) as pipeline:
        customers = pipeline.dataset("customers", "key INT", key="key")
        orders = pipeline.dataset("orders", ORDERS, deletes=True)
        view = pipeline.view(
            "v",
            "SELECT * FROM orders",
            checks=[
                tm.not_null("cust", on_fail="warn"),
                tm.expect("amount > 0 -- of course", name="it's positive", on_fail="warn"),
                tm.unique("id", on_fail="warn"),
                tm.foreign_key("cust", references="customers", to="key", on_fail="warn"),
                tm.rows(at_least=2, at_most=6, on_fail="warn"),
            ],
        )
        customers.upsert([(1,)])
        good = [(1, 1, 5), (2, 1, 6)]
        bad = [(2, None, 0), (3, 9, 7)]
        orders.append([*good, *bad])
        assert pipeline.run(emit=events.append).ok
        assert rows(view) == sorted([*good, *bad], key=repr), "warnings remove nothing"
        expected = [
            ("foreign_key(cust)", record(bad[1])),
            ("it's positive", record(bad[0])),
            ("not_null(cust)", record(bad[0])),
            ("unique(id)", record(good[1])),
            ("unique(id)", record(bad[0])),
        ]
        assert failing(pipeline, "v") == sorted(expected)
        customers.upsert([(9,)])
        orders.delete([bad[0]])
        events.clear()
        assert pipeline.run(emit=events.append).ok
        assert failing(pipeline, "v") == []
        (checked,) = (event for event in events if isinstance(event, ViewChecked))
        assert (checked.view, checked.rows, checked.refused) == ("v", {}, ())
        for event in events:
            if isinstance(event, StepTimed):
                assert (event.recomputed_rows, event.loaded_traces) == (0, 0)
                assert {"v", "v_failures"} <= set(event.views)
        orders.delete([good[0], bad[1]])
        assert pipeline.run(emit=events.append).ok
        assert failing(pipeline, "v") == [("rows", '{"rows":1}')]
        orders.append([*good, *good, *good])
        assert pipeline.run(emit=events.append).ok
        assert ("rows", '{"rows":7}') in failing(pipeline, "v")
    sent = [json.loads(line) for line in sent_to.read_text().splitlines()]
    ended = {event["job"]["name"]: event for event in sent if event["eventType"] == "COMPLETE"}
    assert {"p", "p.v", "p.v_failures", "p.v.checks"} <= ended.keys()
    (written,) = ended["p.v"]["outputs"]
    (source,) = written["facets"]["columnLineage"]["fields"]["amount"]["inputFields"]
    assert (source["name"], source["field"]) == ("orders", "amount")
    (checked,) = ended["p.v.checks"]["inputs"]
    assertions = checked["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert {each["name"]: each["success"] for each in assertions}["rows"] is False


def test_rows_that_a_check_drops_are_not_in_the_view_until_they_pass(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        customers = pipeline.dataset("customers", "cust INT", key="cust")
        orders = pipeline.dataset("orders", ORDERS, deletes=True)
        view = pipeline.view(
            "v",
            lambda df: df,
            reads=[orders],
            linear=True,
            checks=[
                tm.expect("amount > 0", on_fail="drop"),
                tm.unique("id", on_fail="drop"),
                tm.foreign_key("cust", references="customers", on_fail="drop"),
            ],
        )
        reader = pipeline.view("reader", "SELECT count(*) AS n FROM v")
        customers.upsert([(1,)])
        # A row that a check of single rows drops makes no other row a duplicate.
        orders.append([(1, 1, 5), (1, 1, 0), (2, 1, 5), (2, 1, 6), (3, 9, 7), (4, None, 8)])
        assert pipeline.run().ok
        assert rows(view) == [(1, 1, 5), (4, None, 8)]
        assert rows(reader) == [(2,)]
        assert failing(pipeline, "v") == sorted(
            [
                ("amount > 0", record((1, 1, 0))),
                ("foreign_key(cust)", record((3, 9, 7))),
                ("unique(id)", record((2, 1, 5))),
                ("unique(id)", record((2, 1, 6))),
            ]
        )
        assert len(rows(pipeline["v_unchecked"])) == 6
        customers.upsert([(9,)])
        orders.delete([(2, 1, 6)])
        assert pipeline.run().ok
        assert rows(view) == [(1, 1, 5), (2, 1, 5), (3, 9, 7), (4, None, 8)]
        assert rows(reader) == [(4,)]


@pytest.mark.rule("DBSP-40")
def test_a_view_whose_rows_must_not_be_published_keeps_its_table_until_they_pass(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    """One view follows the change, and one is recomputed."""
    events: list[Event] = []
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        orders = pipeline.dataset("orders", ORDERS, deletes=True)
        view = pipeline.view("v", "SELECT * FROM orders", checks=[tm.unique("id")])
        full = pipeline.view("full", "SELECT * FROM orders", refresh="full", checks=[tm.unique("id")])
        pipeline.view("above", "SELECT id FROM v", checks=[tm.expect("id < 100")])
        reader = pipeline.view("reader", "SELECT count(*) AS n FROM above")
        other = pipeline.view("other", "SELECT count(*) AS n FROM orders")
        orders.append([(1, 1, 1), (1, 1, 1)])
        report = pipeline.run(emit=events.append)
        for checked in (view, full):
            refusal = f"{checked.name} does not pass unique(id) (2 failing: id is not unique)"
            assert refusal in report.failures[f"view:p/{checked.name}"]
            with pytest.raises(NothingYet, match="unique"):
                checked.df()
        assert rows(other) == [(2,)]
        orders.delete([(1, 1, 1)])
        assert pipeline.run(emit=events.append).ok
        assert (rows(view), rows(full), rows(reader)) == ([(1, 1, 1)], [(1, 1, 1)], [(1,)])
        at = view.position

        orders.append([(1, 2, 2), (200, 1, 1)])
        report = pipeline.run(emit=events.append)
        assert {"view:p/v", "view:p/full", "view:p/above", "view:p/reader"} <= set(report.failures)
        assert (rows(view), rows(full)) == ([(1, 1, 1)], [(1, 1, 1)])
        assert (rows(reader), rows(other)) == ([(1,)], [(3,)])
        assert len(failing(pipeline, "v")) == len(failing(pipeline, "full")) == 2
        assert not status_of(pipeline).ok
        tries = sum(isinstance(event, ViewSetAside) for event in events)
        for number in range(2):
            orders.append([(number + 10, 1, 1)])
            assert not pipeline.run(emit=events.append).ok
        assert sum(isinstance(event, ViewSetAside) for event in events) == tries, "counting is enough"
        assert failed(pipeline)["v"].checks is failed(pipeline)["full"].checks is True

        orders.delete([(1, 2, 2)])
        report = pipeline.run(emit=events.append)
        assert "above does not pass id < 100" in report.failures["view:p/above"]
        assert not {"view:p/v", "view:p/full"} & set(report.failures)
        assert len(rows(view)) == 4
        assert rows(full) == rows(view)
        orders.delete([(200, 1, 1)])
        assert pipeline.run(emit=events.append).ok
        assert rows(reader) == [(3,)]
        for checked in (view, full):
            changed = checked.changes(after=at).groupBy().sum("_weight").collect()
            assert changed[0][0] == 2, "readers of changes miss nothing"


def test_a_check_that_does_not_fit_a_view_is_refused(tmp_path: Path, spark: "SparkSession") -> None:
    def planned(check: tm.Check) -> None:
        with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
            pipeline.dataset("orders", ORDERS)
            pipeline.view("v", "SELECT id FROM orders", checks=[check])
            pipeline.plan()

    with pytest.raises(DeclarationError, match=r"unique\(no\) uses the column no"):
        planned(tm.unique("no"))
    with pytest.raises(DeclarationError, match="does not fit the table"):
        planned(tm.expect("amount > 0"))
    with pytest.raises(DeclarationError, match="uses the column key of orders"):
        planned(tm.foreign_key("id", references="orders", to="key"))
    with pytest.raises(QueryError, match="nothing does not exist"):
        planned(tm.foreign_key("id", references="nothing"))
