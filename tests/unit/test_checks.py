"""Checks as they are declared, and on rows that are in this process, without Spark (LOT-33)."""

import json
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill.errors import BadCheck, CheckFailed, DeclarationError
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.publish import attempts

BAD = DatasetId("orders_quarantine")


def shop(tmp_path: Path, *checks: tm.Check, **options: Any) -> tm.Pipeline:
    pipeline = tm.Pipeline("shop", home=tmp_path / "home")
    pipeline.dataset("orders", "id BIGINT, name STRING", checks=checks, **options)
    return pipeline


def rows_of(pipeline: tm.Pipeline, dataset: DatasetId) -> list[dict[str, Any]]:
    import io

    import pyarrow.parquet as pq

    site = pipeline.context
    rows: list[dict[str, Any]] = []
    for row in site.store.run(lambda tx: lots.listed(tx, site.keys.lots, dataset)):
        for item in site.manifests.lot_objects(row.manifest):
            rows += pq.read_table(io.BytesIO(site.objects.get(item.uri)[0])).to_pylist()
    return rows


def counted(pipeline: tm.Pipeline, lot: str) -> dict[str, int]:
    site = pipeline.context
    row = site.store.run(lambda tx: lots.current(tx, site.keys.lots, DatasetId("orders"), lot))
    assert row is not None
    return site.manifests.load(row.manifest).checks


@pytest.mark.rule("LOT-33")
def test_an_append_that_fails_a_check_is_refused_and_leaves_nothing_but_an_abandoned_attempt(tmp_path: Path):
    checks = [tm.not_null("id"), tm.unique("id", name="one each"), tm.rows(at_most=3)]
    with shop(tmp_path, *checks) as pipeline:
        orders = pipeline["orders"]
        assert isinstance(orders, tm.Dataset)
        with pytest.raises(CheckFailed, match=r"not_null\(id\) \(1 of 2 rows: id is NULL\)"):
            orders.append([(1, "a"), (None, "b")])
        with pytest.raises(CheckFailed, match=r"one each \(2 of 3 rows: id is not unique\)"):
            orders.append([(1, "a"), (1, "b"), (2, "c")])
        with pytest.raises(CheckFailed, match=r"rows \(expected at most 3 rows; found 4\)"):
            orders.append([(n, "a") for n in range(4)])
        assert orders.position == 0
        assert not pipeline.context.store.run(lambda tx: attempts.open_ids(tx, pipeline.context.keys))
        receipt = orders.append([(1, "a"), (2, None)])
        assert counted(pipeline, receipt.lot) == {"not_null(id)": 0, "one each": 0, "rows": 0}


@pytest.mark.rule("LOT-33")
def test_rows_that_are_taken_out_of_an_append_are_a_lot_of_the_quarantine_of_the_same_moment(tmp_path: Path):
    checks = [
        tm.not_null("id", on_fail="drop"),
        tm.unique("id", on_fail="drop"),
        tm.not_null("name", on_fail="warn"),
    ]
    with shop(tmp_path, *checks) as pipeline:
        orders = pipeline["orders"]
        assert isinstance(orders, tm.Dataset)
        first = orders.append([(1, "a")])
        assert pipeline["orders_quarantine"].position == 0  # nothing was taken out: no lot
        receipt = orders.append([(1, "a"), (None, "b"), (2, "c"), (2, None), (3, None), (None, None)])
        assert counted(pipeline, receipt.lot) == {"not_null(id)": 2, "unique(id)": 2, "not_null(name)": 3}
        assert sorted(row["id"] for row in rows_of(pipeline, DatasetId("orders"))) == [1, 1, 3]
        out = rows_of(pipeline, BAD)
        assert [json.loads(row["record"])["id"] for row in out] == [None, 2, 2, None]
        assert {(row["check"], row["error"]) for row in out} == {
            ("not_null(id)", "id is NULL"),
            ("unique(id)", "id is not unique"),
        }
        bad = pipeline.context.store.run(lambda tx: lots.listed(tx, pipeline.context.keys.lots, BAD))
        assert [(row.lot, row.rows) for row in bad] == [(receipt.lot, 4)]
        assert first.lot != receipt.lot


@pytest.mark.rule("LOT-33")
def test_into_an_interval_what_is_taken_out_is_published_at_once_and_the_rest_waits(tmp_path: Path):
    with shop(tmp_path, tm.not_null("id", on_fail="drop"), lots="P1D") as pipeline:
        orders = pipeline["orders"]
        assert isinstance(orders, tm.Dataset)
        receipt = orders.append([(1, "a"), (None, "b")])
        assert receipt.position is None
        assert pipeline["orders_quarantine"].position == 1
        assert [json.loads(row["record"]) for row in rows_of(pipeline, BAD)] == [{"id": None, "name": "b"}]


@pytest.mark.rule("LOT-33")
def test_deletions_are_not_checked_and_upserts_are(tmp_path: Path):
    with shop(tmp_path, tm.not_null("name"), key="id") as pipeline:
        orders = pipeline["orders"]
        assert isinstance(orders, tm.Dataset)
        orders.upsert([(1, "a")])
        orders.delete([1])  # its name is NULL in the lot
        with pytest.raises(CheckFailed, match="name is NULL"):
            orders.upsert([(2, None)])


@pytest.mark.rule("LOT-33")
def test_a_correction_has_no_quarantine_so_what_would_be_taken_out_forbids_it(tmp_path: Path):
    with shop(tmp_path, tm.not_null("id", on_fail="drop")) as pipeline:
        orders = pipeline["orders"]
        assert isinstance(orders, tm.Dataset)
        lot = orders.append([(1, "a")]).lot
        with pytest.raises(CheckFailed, match="id is NULL"):
            orders.replace(lot, [(None, "b")])
        assert [row["id"] for row in rows_of(pipeline, DatasetId("orders"))] == [1]
        orders.replace(lot, [(2, "b")])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (tm.not_null, r"not_null\(\) needs column names"),
        (tm.unique, r"unique\(\) needs column names"),
        (lambda: tm.expect("  "), "empty expression"),
        (tm.rows, "needs a limit"),
        (lambda: tm.rows(at_least=3, at_most=2), "at_least=3"),
        (lambda: tm.rows(at_least=1, on_fail="drop"), "cannot drop rows"),
        (lambda: tm.not_null("id", on_fail="explode"), "on_fail='explode'"),  # type: ignore[arg-type]
        (lambda: tm.expect("true", name="files"), "'files' is reserved"),
    ],
)
def test_a_check_that_makes_no_sense_is_refused_where_it_is_made(make: Any, words: str) -> None:
    with pytest.raises(BadCheck, match=words):
        make()


def test_checks_that_do_not_belong_are_refused_with_their_line(tmp_path: Path) -> None:
    pipeline = tm.Pipeline("shop", home=tmp_path / "home")
    with pytest.raises(DeclarationError, match=r"test_checks\.py:\d+: two checks are called 'rows'"):
        pipeline.dataset("a", "id BIGINT", checks=[tm.rows(at_least=1), tm.rows(at_most=2)])
    with pytest.raises(DeclarationError, match=r"test_checks\.py:\d+: 'id' is not a check"):
        pipeline.dataset("a", "id BIGINT", checks=["id"])  # type: ignore[list-item]
    with pytest.raises(DeclarationError, match=r"test_checks\.py:\d+: checks= is one list"):
        pipeline.arc(reads="a", writes=("b", "c"), checks=[tm.not_null("id")])
    with pytest.raises(DeclarationError, match=r"test_checks\.py:\d+: checks= refers to d"):
        pipeline.arc(reads="a", writes="b", checks={"d": [tm.not_null("id")]})
