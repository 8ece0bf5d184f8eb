"""Streams through whole pipelines: `tidemill run --watch` as processes that are killed while rows come.

What is pushed comes from this process, thousands of requests; what is in a topic is read by runners that
join, leave and are killed. In the end every row that was acknowledged, and every message, is in the table
once, and counted once by a view.
"""

import http.client
import json
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest

import tidemill as tm
from tests import shop
from tests.acceptance.pipeline_processes import Run
from tests.servers.kafka import KafkaServer
from tests.servers.process import wait_until
from tests.servers.spark import small_spark
from tests.unit.push_stage import post
from tidemill.clock import SYSTEM
from tidemill.errors import GroupUnknown
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.publish.manifests import Manifests
from tidemill.testing.threads import STUCK_S

ORDERS = DatasetId("orders")
SENDERS = 16

FILE = """
import json
from tests.acceptance import test_pipeline_streams as declared
from tidemill.spark.sessions import SparkSettings

shop = declared.declare({home!r}, json.loads({options!r}), SparkSettings(**json.loads({spark!r})))
"""


def declare(home: str, options: dict[str, str], spark: object) -> tm.Pipeline:
    pipeline = tm.Pipeline("shop", home=home, spark=spark)  # type: ignore[arg-type]
    orders = pipeline.dataset("orders", "id BIGINT, name STRING")
    if options:
        pipeline.source(orders, tm.kafka(options["brokers"], options["topic"], linger_s=0.1, max_records=200))
    else:
        pipeline.source(orders, tm.http_push())
    pipeline.view(shop.VIEW, "SELECT count(*) AS n, count(DISTINCT id) AS ids FROM orders")
    return pipeline


class Watching(Run):
    """A runner that stays."""

    def has_read(self) -> bool:
        """Has it published a lot?"""
        return bool(re.search(r"^orders +lot ", self.said(), re.MULTILINE))


class Mill:
    """A pipeline in a folder, and the runners that are at it."""

    def __init__(self, folder: Path, stack: ExitStack, **options: str) -> None:
        self.folder = folder
        self.options = options
        self._stack = stack
        self.runners: list[Watching] = []
        spark = msgspec.json.encode(small_spark()).decode()
        home = str(folder / "home")
        text = FILE.format(home=home, options=json.dumps(options), spark=spark)
        (folder / "shop.py").write_text(text)
        (folder / "tidemill.toml").write_text('pipeline = "shop.py:shop"\n')
        self.pipeline = stack.enter_context(declare(home, options, None))

    @property
    def orders(self) -> tm.Dataset:
        table = self.pipeline["orders"]
        assert isinstance(table, tm.Dataset)
        return table

    def start(self) -> Watching:
        run = Watching(self, "--watch")  # type: ignore[arg-type]
        self._stack.callback(run.end)
        self.runners.append(run)
        return run

    def rows(self) -> list[LotRow]:
        """The lots of the table."""
        site, rows = self.pipeline.context, list[LotRow]()
        while True:
            after = rows[-1].lot if rows else ""
            page = site.store.run(partial(lots.listed, keys=site.keys.lots, dataset=ORDERS, after=after))
            if not page:
                return rows
            rows += page

    def count(self) -> int:
        return sum(row.rows for row in self.rows())

    def wrong(self, wanted: int) -> dict[int, int]:
        """Which ids are not in the table once, and how often each is; empty when all is well."""
        site = self.pipeline.context
        manifests = Manifests(site.objects, site.clock)
        items = [item for row in self.rows() for item in manifests.lot_objects(row.manifest)]
        counts = Counter(row[0] for row in shop.read(site, items))
        once = dict.fromkeys(range(wanted), 1)
        return {
            number: counts[number] for number in counts.keys() | once if counts[number] != once.get(number, 0)
        }

    def viewed(self, wanted: int) -> bool:
        """Does the view know of all of it?"""
        try:
            return shop.view(self.pipeline) == {(wanted, wanted): 1}
        except (GroupUnknown, KeyError):
            return False

    def until(self, ready: Callable[[], bool], what: str) -> None:
        wait_until(
            lambda: ready() or not any(runner.process.poll() is None for runner in self.runners),
            timeout_s=STUCK_S,
        )
        assert ready(), f"{what}: {[runner.said() for runner in self.runners]}"


@pytest.mark.crash
@pytest.mark.rule("LOT-35")
@pytest.mark.rule("CLU-19")
def test_what_is_pushed_to_a_pipeline_is_in_its_tables_once_though_the_receiving_runner_is_killed_twice(
    tmp_path: Path,
) -> None:
    each = 150
    answered = [0] * SENDERS
    sent = SENDERS * each
    with ExitStack() as stack:
        mill = Mill(tmp_path, stack)
        mill.start()
        mill.until(lambda: bool(mill.orders.address().url), "nobody receives")

        def send(number: int) -> int:
            for seq in range(each):
                first = (number * each + seq) * 2
                body = "".join(json.dumps({"id": first + more, "name": "n"}) + "\n" for more in (0, 1))
                while not sent_once(mill.orders, body.encode(), number, seq):
                    SYSTEM.sleep(0.1)
                answered[number] += 1
            return each

        def kill() -> int:
            """Kill the runner that receives, when a third and two thirds are answered; another is there."""
            for death in (1, 2):
                mill.until(lambda death=death: sum(answered) >= sent * death // 3, "too few answers")  # type: ignore[misc]
                receiving = mill.runners[-1]
                mill.start()
                receiving.end()
            return 2

        with ThreadPoolExecutor(SENDERS + 1) as pool:
            ends = [pool.submit(kill), *(pool.submit(send, number) for number in range(SENDERS))]
            assert [end.result(2 * STUCK_S) for end in ends] == [2, *[each] * SENDERS]
        assert mill.wrong(2 * sent) == {}
        mill.until(lambda: mill.viewed(2 * sent), "the view is behind")
        assert mill.runners[-1].drain() == 0


def sent_once(orders: tm.Dataset, body: bytes, producer: int, seq: int) -> bool:
    """Whether the request was answered as taken."""
    address = orders.address()
    base, _, path = address.url.rpartition("/")
    try:
        status, answer = post(
            base,
            body,
            path=f"/{path}",
            token=address.token,
            Tidemill_Producer=f"p{producer}",
            Tidemill_Seq=str(seq),
        )
    except (OSError, http.client.HTTPException, ValueError):
        return False  # nobody is there, or not any more
    assert status in (200, 429, 503), answer
    return bool(status == 200)


@pytest.mark.crash
@pytest.mark.rule("LOT-35")
@pytest.mark.rule("CLU-20")
@pytest.mark.rule("CLU-22")
def test_a_topic_is_in_the_tables_of_a_pipeline_once_though_runners_join_and_are_killed(
    tmp_path: Path, kafka_server: KafkaServer
) -> None:
    each = 4000
    topic = kafka_server.new_topic(4)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        kafka_server.send(topic, [(n % 4, b'{"id": %d}' % n) for n in range(sent, sent + count)])
        sent += count

    with ExitStack() as stack:
        mill = Mill(tmp_path, stack, brokers=kafka_server.brokers, topic=topic)
        first = mill.start()
        send(each)
        mill.until(lambda: mill.count() > 0, "nothing was read")
        second = mill.start()
        while not second.has_read():  # partitions are shared from here on
            assert second.process.poll() is None, second.said()
            assert sent < 50 * each, "the second one gets no partition"
            send(each // 10)
            mill.until(lambda: mill.count() >= sent or second.has_read(), "nobody reads")
        while mill.count() >= sent:  # it is killed in the middle
            send(each)
        first.end()  # and taken over here
        send(each)
        mill.until(lambda: mill.viewed(sent), "not all of it")
        assert second.drain() == 0
        assert mill.wrong(sent) == {}
