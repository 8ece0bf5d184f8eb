"""Drift and checks of what comes in no files, through a real runner: pushed, asked for, read from a topic."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.integration.test_pipeline_sources import Watching
from tests.servers.kafka import KafkaServer
from tests.unit.push_stage import post
from tests.unit.test_sources_http_poll import Web, web
from tidemill.testing.threads import STUCK_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["web"]  # a fixture
DRIFTS = ("freeze", "evolve", "rescue")
CHECKS = [tm.expect("length(name) < 9", on_fail="drop", name="short"), tm.not_null("id", on_fail="warn")]
RECORDS: list[dict[str, Any]] = [
    {"id": 1, "name": "a"},
    {"id": 2, "name": "b", "more": 2},
    {"id": "x", "name": "c"},
    {"id": 4, "name": "much too long"},
]


def expected(drift: str) -> tuple[list[tuple[Any, ...]], list[tuple[str, str | None]]]:
    """The rows of the table, and in quarantine a word of what is wrong with the check that says so."""
    long = ("not true", "short")
    if drift == "freeze":
        return [(1, "a")], [("has the unknown column more", None), ("expects BIGINT", None), long]
    if drift == "evolve":
        return [(1, "a", None), (2, "b", 2)], [("expects BIGINT", None), long]
    kept = [(1, "a", None), (2, "b", '{"more": "2"}'), (None, "c", '{"id": "x"}')]
    return kept, [long]


def held(pipeline: tm.Pipeline, table: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in pipeline[table].df().collect()), key=lambda row: str(row[1]))


def wrong(pipeline: tm.Pipeline, table: str) -> list[tuple[str, str | None]]:
    return [
        (row.error, row.check) for row in pipeline[f"{table}_quarantine"].df().orderBy("record").collect()
    ]


def same(actual: list[tuple[str, str | None]], wanted: list[tuple[str, str | None]]) -> bool:
    rest = list(actual)
    for word, check in wanted:
        match = next((row for row in rest if word.lower() in row[0].lower() and row[1] == check), None)
        if match is None:
            return False
        rest.remove(match)
    return not rest


@pytest.mark.rule("LOT-33")
@pytest.mark.rule("LOT-34")
@pytest.mark.rule("LOT-35")
def test_what_is_fetched_drifts_as_files_do_and_is_checked_by_expressions(
    tmp_path: Path, spark: "SparkSession", web: Web, kafka_server: KafkaServer
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        topic = kafka_server.new_topic(1)
        kafka_server.send(topic, [(0, json.dumps(record).encode()) for record in RECORDS])
        web.says(RECORDS, ETag='"1"')
        for drift in DRIFTS:
            for kind in ("web", "topic"):
                table = shop.dataset(f"{kind}_{drift}", "id BIGINT, name STRING", drift=drift, checks=CHECKS)  # type: ignore[arg-type]
                place = (
                    tm.http_poll(web.url, every_s=3600)
                    if kind == "web"
                    else tm.kafka(kafka_server.brokers, topic, linger_s=0.2)
                )
                shop.source(table, place)
        assert shop.run().ok
        for drift in DRIFTS:
            rows, bad = expected(drift)
            for name in (f"web_{drift}", f"topic_{drift}"):
                assert held(shop, name) == rows, name
                assert same(wrong(shop, name), bad), (name, wrong(shop, name))
        # the same column in another type: what came first counts, and what does not fit it is set aside
        kafka_server.send(
            topic, [(0, b'{"id": 5, "name": "e", "more": "five"}'), (0, b'{"id": 6, "name": "f", "more": 6}')]
        )
        assert shop.run().ok
        assert held(shop, "topic_evolve") == [(1, "a", None), (2, "b", 2), (6, "f", 6)]
        assert any("more" in error for error, _ in wrong(shop, "topic_evolve"))
        (row,) = [lot for lot in shop["topic_evolve"].lots() if lot.position == 1]
        assert row.rows == 2


@pytest.mark.rule("LOT-33")
@pytest.mark.rule("LOT-34")
@pytest.mark.rule("CLU-19")
def test_what_is_pushed_drifts_and_whoever_sends_what_fails_a_check_is_told(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        for drift in DRIFTS:
            table = shop.dataset(drift, "id BIGINT, name STRING", drift=drift, checks=CHECKS)  # type: ignore[arg-type]
            shop.source(table, tm.http_push())
        with Watching(shop) as watching:
            for drift in DRIFTS:
                table = shop[drift]
                assert isinstance(table, tm.Dataset)
                watching.until(lambda table=table: table.address().url)
                address = table.address()
                base, _, path = address.url.rpartition("/")
                answers = [
                    post(
                        base,
                        json.dumps(record).encode(),
                        path=f"/{path}",
                        token=address.token,
                        timeout_s=STUCK_S,
                    )
                    for record in RECORDS
                ]
                statuses = [status for status, _ in answers]
                assert (
                    statuses
                    == {
                        "freeze": [200, 422, 422, 422],
                        "evolve": [200, 200, 422, 422],
                        "rescue": [200, 200, 200, 422],
                    }[drift]
                )
                assert "short" in answers[3][1]["error"]["message"]
            # a body that is not what its header says
            to: dict[str, Any] = {"path": f"/{path}", "token": address.token}
            arrow = "application/vnd.apache.arrow.stream"
            assert post(base, b'{"id": 7}', arrow, **to)[0] == 400
            assert post(base, b'{"id": 7}\n{"id": 8}\n', "application/json", **to)[0] == 400
            assert post(base, b'{"id": 7}\n', Content_Encoding="gzip", **to)[0] == 400
            assert post(base, b'{"id": 7}\n', "text/csv", **to)[0] == 415
        for drift in DRIFTS:
            assert held(shop, drift) == expected(drift)[0]
