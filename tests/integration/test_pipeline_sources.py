"""Sources through the public API: what is pushed, files for a table with a key, and how they are shown."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.servers.kafka import KafkaServer
from tests.servers.process import wait_until
from tests.unit.push_stage import lines, post
from tests.unit.test_sources_http_poll import Web, web
from tidemill.errors import BadSource, DeclarationError, UsageError
from tidemill.pipeline.status import RunInfo, address_of, status_of
from tidemill.testing.threads import STUCK_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["web"]  # a fixture
HERE = Path(__file__).name
TOKEN = "a-token-of-this-test"


@pytest.fixture
def shop(tmp_path: Path, spark: "SparkSession") -> Iterator[tm.Pipeline]:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as pipeline:
        yield pipeline


class Watching:
    """A pipeline that runs in a thread until the block ends."""

    def __init__(self, pipeline: tm.Pipeline, **options: Any) -> None:
        self.stop = threading.Event()
        self.failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(pipeline,), kwargs=options)

    def _run(self, pipeline: tm.Pipeline, **options: Any) -> None:
        try:
            pipeline.run(watch=True, stop=self.stop, **options)
        except BaseException as error:
            self.failed.append(error)
            raise

    def until(self, ready: Callable[[], object]) -> None:
        wait_until(lambda: bool(ready()) or bool(self.failed), timeout_s=STUCK_S, every_s=0.05)
        assert not self.failed, self.failed

    def __enter__(self) -> "Watching":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(STUCK_S)
        assert not self._thread.is_alive()


def source_of(pipeline: tm.Pipeline, name: str) -> RunInfo:
    return next(run for run in status_of(pipeline).runs if run.kind == "source" and run.name == name)


@pytest.mark.rule("LOT-35", "CLU-19")
def test_rows_that_are_pushed_are_received_by_a_runner_that_watches_at_the_address_it_shows(
    shop: tm.Pipeline,
) -> None:
    orders = shop.dataset("orders", "id BIGINT, name STRING", checks=[tm.not_null("name")])
    shop.source(orders, tm.http_push("in/orders"))
    shop.view("counted", "SELECT count(*) AS n FROM orders")
    with pytest.raises(UsageError, match="counted has no push source"):
        address_of(shop, "counted")
    with Watching(shop) as watching:
        watching.until(lambda: orders.address().url)
        shown, address = source_of(shop, "orders"), orders.address()
        assert shown.address == address.url
        assert address.url.startswith("http://127.0.0.1:")
        assert address.url.endswith("/in/orders")
        assert shown.node
        assert address.token not in repr(address)
        base, _, path = address.url.partition("/in/")
        to: dict[str, Any] = {"path": f"/in/{path}", "token": address.token}
        status, answer = post(base, lines(1, 2), **to)
        assert (status, answer["rows"]) == (200, 2), answer
        assert post(base, lines(3), **{**to, "token": TOKEN})[0] == 401
        status, answer = post(base, b'{"id": "one", "name": "n"}\n', **to)
        assert (status, answer["error"]["code"]) == (422, "append-refused")
        status, answer = post(base, b'{"id": 4}\n', **to)
        assert (status, answer["error"]["code"]) == (422, "check-failed"), "the sender hears of it"
        assert post(base, lines(5), Tidemill_Producer="p", Tidemill_Seq="1", **to)[0] == 200
        assert post(base, lines(5), Tidemill_Producer="p", Tidemill_Seq="1", **to)[0] == 200
        watching.until(lambda: shop["counted"].position)
        watching.until(lambda: [row.n for row in shop["counted"].df().collect()] == [3])
    assert sorted(row.id for row in orders.df().collect()) == [1, 2, 5]
    assert not orders.address().url, "nobody receives any more"
    assert shop.run().ok, "a run that catches up has nothing to wait for"


@pytest.mark.rule("LOT-35")
def test_files_for_a_table_with_a_key_are_upserts_in_the_order_they_arrive(
    shop: tm.Pipeline, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    orders = shop.dataset("orders", "id BIGINT, name STRING", key="id")
    shop.source(orders, tm.folder(f"{landing}/*.json", settle_s=0.0, max_files=1))
    for number, rows in enumerate([[(1, "a"), (2, "b")], [(1, "c"), (None, "x")], [(3, "d"), (3, "e")]]):
        text = "".join(json.dumps({"id": key, "name": name}) + "\n" for key, name in rows)
        (landing / f"{number}.json").write_text(text)
    assert shop.run().ok
    collected = sorted((row.id, row.name) for row in orders.df().collect())
    assert collected == [(1, "c"), (2, "b"), (3, "e")]
    (bad,) = shop["orders_quarantine"].df().collect()
    assert '"x"' in bad.record, "a row without its key"


@pytest.mark.rule("LOT-35")
def test_a_web_address_is_asked_once_by_a_run_that_catches_up(shop: tm.Pipeline, web: Web) -> None:
    orders = shop.dataset("orders", "id BIGINT, name STRING, at TIMESTAMP")
    shop.source(orders, tm.http_poll(f"{web.url}?key=secret", every_s=3600))
    web.says([{"id": 1, "at": "2026-01-02T03:04:05Z"}, {"id": "no"}], ETag='"1"')
    assert shop.run().ok
    assert len(web.asked) == 1
    web.says(b"<html>", "text/html")
    report = shop.run()
    assert not report.ok
    assert "text/html" in report.failures["source:shop/orders"]
    assert "text/html" in source_of(shop, "orders").notes[0]
    web.says([{"id": 2}])
    assert shop.run().ok
    assert status_of(shop).ok
    assert sorted(row.id for row in orders.df().collect()) == [1, 2]
    assert [row.record for row in shop["orders_quarantine"].df().collect()] == ['{"id": "no"}']
    (shown,) = [stage for stage in shop.plan().describe() if stage["what"] == "source"]
    assert shown["detail"] == f"{web.url} -> orders"


@pytest.mark.rule("LOT-35")
def test_a_topic_is_read_to_its_end_by_a_run_that_catches_up(
    shop: tm.Pipeline, kafka_server: KafkaServer
) -> None:
    topic = kafka_server.new_topic(3)
    orders = shop.dataset("orders", "id BIGINT, name STRING")
    shop.source(orders, tm.kafka(kafka_server.brokers, topic, linger_s=0.2))
    kafka_server.send(topic, [(n % 3, b'{"id": %d}' % n) for n in range(30)])
    assert shop.run().ok
    kafka_server.send(topic, [(0, b'{"id": 30}'), (0, b"[]")])
    assert shop.run().ok
    assert sorted(row.id for row in orders.df().collect()) == list(range(31))
    (bad,) = shop["orders_quarantine"].df().collect()
    assert (bad.file, bad.line) == (f"{topic}/0", 11)
    kafka_server.send(topic, [(1, b'{"id": 31}')])
    kafka_server.forget(topic, 1, 11)
    report = shop.run()
    assert not report.ok
    assert "was read up to offset 10" in report.failures["source:shop/orders"]
    assert "was read up to offset 10" in source_of(shop, "orders").notes[0]


def test_sources_are_shown_in_the_plan_with_their_line_and_without_their_secrets(shop: tm.Pipeline) -> None:
    for name in ("a", "b"):
        shop.dataset(name, "id BIGINT")
    shop.source("a", tm.bucket("s3://landing/a/*.json?access_key_id=k&secret_access_key=hidden"))
    shop.source("b", tm.http_push(token=TOKEN, port=8123))
    sources = {stage["name"]: stage for stage in shop.plan().describe() if stage["what"] == "source"}
    assert sources["a"]["detail"] == "json files in s3://landing/a/ -> a"
    assert sources["b"]["detail"] == "POST http://127.0.0.1:8123/b -> b"
    assert all(HERE in stage["where"] for stage in sources.values())
    assert "a_quarantine" in shop.quarantines
    assert "b_quarantine" not in shop.quarantines, "who sends rows is told what does not fit"


def test_what_is_wrong_with_a_source_is_told_with_its_line(shop: tm.Pipeline) -> None:
    shop.dataset("changes", "id BIGINT", deletes=True)
    with pytest.raises(
        DeclarationError, match=f"{HERE}:.*cannot write to changes, because the dataset has deletes=True"
    ):
        shop.source("changes", tm.http_push())
    shop.dataset("orders", "id BIGINT", checks=[tm.expect("id > 0")])
    with pytest.raises(DeclarationError, match=f"{HERE}:.*is not a source"):
        shop.source("orders", "landing/*.json")  # type: ignore[arg-type]
    shop.source("orders", tm.http_push())
    assert shop.plan(), "what is pushed may be checked by expressions of Spark"


@pytest.mark.parametrize(
    "options",
    [{"token": "short"}, {"host": "0.0.0.0"}, {"port": 70_000}, {"path": "a?b"}, {"body_bytes": 0}],
    ids=lambda options: next(iter(options)),
)
def test_a_push_source_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadSource):
        tm.http_push(**options)
