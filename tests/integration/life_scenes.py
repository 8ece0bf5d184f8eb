"""Scenes of the life of lots: replay, backfill, compaction and every kind of source, and what each leaves.

A scene is a home in which all before it is done, and what a process does then: it asks for what is to be
made again, if nobody has yet, or receives, fetches and reads; it catches up, and cleans as if a day had
passed. The crash matrix walks through the points that it passes; scenes are made of plain text, so that a
process of its own can be told which one it is in, and killed.
"""

import json
import shutil
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest

import tidemill as tm
from tests import shop
from tests.certificates import certify_views
from tests.orphans import unlisted
from tests.servers.kafka import KafkaServer
from tests.servers.process import wait_until
from tests.servers.s3 import S3Server
from tests.unit.push_stage import post
from tests.unit.test_sources_http_poll import Web, reply_of
from tidemill.arcs.keys import ArcKeys
from tidemill.clock import SYSTEM, Clock
from tidemill.lots import events, lots
from tidemill.lots.keys import DatasetId
from tidemill.objects import open_objects
from tidemill.publish import attempts
from tidemill.publish.manifests import Manifests
from tidemill.sources.bucket import BucketListing
from tidemill.sources.keys import SourceKeys
from tidemill.spark.sessions import SparkSettings
from tidemill.store import Space, Store
from tidemill.testing.fake_clock import ShiftedClock
from tidemill.testing.threads import STUCK_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


LEASES_S = 20.0
"""After a death: until the leases of the dead are over."""


class Scene:
    """A pipeline, and what a process does in it."""

    name: ClassVar[str]
    tables: ClassVar[tuple[str, ...]] = ("orders",)
    steps: ClassVar[set[str]]
    """Points that an undisturbed life must come by, or the matrix would prove nothing."""

    spaces: ClassVar[tuple[str, ...]] = ("future", "part", "pin")
    """Of rows that nothing is left in."""

    in_batches: ClassVar[bool] = False
    """Does it depend on the moment which rows come together in a lot?"""

    def __init__(self, **options: str) -> None:
        self.options = options

    def declare(self, home: Path, spark: "SparkSession | SparkSettings", clock: Clock) -> tm.Pipeline:
        pipeline = tm.Pipeline("shop", home=home, spark=spark, clock=clock)
        self.fill(pipeline)
        return pipeline

    def fill(self, pipeline: tm.Pipeline) -> None:
        """What the scene declares."""
        pipeline.dataset("orders", "id BIGINT, region STRING")

    def before(self, pipeline: tm.Pipeline) -> None:
        """What is done when the scene begins."""

    def act(self, pipeline: tm.Pipeline) -> None:
        """What a process does. It knows nothing of those before it but what the home says."""
        report = pipeline.run()
        assert report.ok, report

    def live(self, home: Path, spark: "SparkSession | SparkSettings", clock: Clock) -> None:
        """One life of a process."""
        with self.declare(home, spark, clock) as pipeline:
            self.act(pipeline)
            shop.clean_up(pipeline, readers_s=0.0)

    def seen(self, pipeline: tm.Pipeline) -> dict[str, object]:
        """What is there after a life, once nothing is left that no lot lists."""
        left = orphans(pipeline, self)
        assert not left, str(left)
        tables = {name: seen(pipeline, name) for name in self.tables}
        if self.in_batches:
            tables = {name: {"rows": table["rows"]} for name, table in tables.items()}
        return tables | {"marks": marks(pipeline)}


class Ordered(Scene):
    """A lot is replayed and another backfilled, one at a time."""

    name = "ordered"
    tables = ("orders", "doubled")
    steps: ClassVar[set[str]] = {"arcs.begin", "publish.intent", "publish.part-manifest", "publish.commit"}

    def fill(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")

        @pipeline.arc(reads=orders, writes="doubled", partition_by="region")
        def double(df: "DataFrame") -> "DataFrame":
            return df.selectExpr("id * 2 AS id", "region")

    def before(self, pipeline: tm.Pipeline) -> None:
        pipeline.pause("double")
        append(pipeline, [(1, "n"), (2, "s")])
        pipeline.resume("double", catch_up="none")
        append(pipeline, [(3, "n")])
        assert pipeline.run()

    def act(self, pipeline: tm.Pipeline) -> None:
        shown = {lot.lot: lot for lot in pipeline["doubled"].lots()}
        passed, made = sorted(shown)
        if shown[passed].state != "complete":
            pipeline.backfill("doubled", [passed], parallel=1)
        if shown[made].generation == 0:
            pipeline.replay("doubled", [made], parallel=1)
        super().act(pipeline)


class Compaction(Scene):
    name = "compaction"
    steps: ClassVar[set[str]] = {
        "publish.intent",
        "publish.compact-open",
        "publish.compact-commit",
        "publish.retired",
    }

    def before(self, pipeline: tm.Pipeline) -> None:
        with pipeline.context.spark() as spark:
            frame = spark.range(30).selectExpr("id", "IF(id % 2 = 0, 'n', NULL) AS region")
            append(pipeline, frame.repartition(6))

    def act(self, pipeline: tm.Pipeline) -> None:
        pipeline["orders"].compact()


class Folder(Scene):
    name = "folder"
    tables = ("orders", "orders_quarantine")
    steps: ClassVar[set[str]] = {"sources.take", "sources.begin", "publish.intent", "publish.commit"}

    @classmethod
    def of(cls, landing: Path) -> "Folder":
        landing.mkdir()
        (landing / "a.json").write_text('{"id": 1, "region": "n"}\n{"id": "x"}\n')
        (landing / "b.json").write_text('{"id": 2}\n')
        return cls(landing=str(landing))

    def fill(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")
        pipeline.source(orders, tm.folder(f"{self.options['landing']}/*.json", settle_s=0.0, max_files=1))


class Bucket(Folder):
    """The same files in a bucket: listed, looked at and opened there. The Spark of these tests has no
    connector, so it is told to read copies.
    """

    name = "bucket"

    @classmethod
    def stored(cls, server: S3Server, landing: Path) -> "Bucket":
        Folder.of(landing)
        place = f"s3://{server.access_key}:{server.secret_key}@{server.new_bucket()}"
        settings = f"?endpoint={server.endpoint}&region={server.region}"
        objects = open_objects(place + settings, clock=SYSTEM, probe=False)
        for file in landing.iterdir():
            objects.put(f"in/{file.name}", file.read_bytes())
        return cls(landing=str(landing), at=f"{place}/in/*.json{settings}")

    def fill(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")
        pipeline.source(orders, tm.bucket(self.options["at"], max_files=1))

    def act(self, pipeline: tm.Pipeline) -> None:
        landing = Path(self.options["landing"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BucketListing, "uri", lambda _, path: (landing / path).as_uri())
            super().act(pipeline)


class Poll(Scene):
    name = "poll"
    tables = ("orders", "orders_quarantine")
    steps: ClassVar[set[str]] = {"sources.fetch", "publish.intent", "publish.part-manifest", "publish.commit"}

    @classmethod
    def asking(cls, web: Web) -> "Poll":
        """The server has another version for who has had the first, and no more."""

        def reply(handler: BaseHTTPRequestHandler) -> None:
            version = {None: 1, '"1"': 2}.get(handler.headers.get("If-None-Match"))
            rows = [{"id": version, "region": "n"}, {"id": "x"}]
            reply_of(rows, ETag=f'"{version}"')(handler) if version else reply_of(b"", status=304)(handler)

        web.reply = reply
        return cls(url=web.url)

    def fill(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")
        pipeline.source(orders, tm.http_poll(self.options["url"], every_s=3600))

    def act(self, pipeline: tm.Pipeline) -> None:
        for version in (1, 2):  # as if some time had passed
            if version not in {row[0] for row in shop.table(pipeline, "orders")}:
                super().act(pipeline)


class Kafka(Scene):
    name = "kafka"
    in_batches = True
    spaces = ("future", "pin")  # the partitions of a topic stay
    tables = ("orders", "orders_quarantine")
    steps: ClassVar[set[str]] = {"sources.fetch", "sources.checkpoint", "publish.intent", "publish.commit"}

    @classmethod
    def reading(cls, server: KafkaServer) -> "Kafka":
        topic = server.new_topic(2)
        server.send(topic, [(n % 2, b'{"id": %d}' % n) for n in range(10)] + [(0, b"[]")])
        return cls(brokers=server.brokers, topic=topic)

    def fill(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")
        pipeline.source(orders, tm.kafka(self.options["brokers"], self.options["topic"], linger_s=0.2))


class Push(Scene):
    name = "push"
    steps: ClassVar[set[str]] = {
        "sources.receive",
        "publish.intent",
        "publish.part-manifest",
        "publish.commit",
    }
    requests = 3

    def fill(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")
        pipeline.source(orders, tm.http_push())

    def act(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline["orders"]
        assert isinstance(orders, tm.Dataset)
        stop, ended = threading.Event(), threading.Event()
        raised: list[BaseException] = []

        def serve() -> None:
            try:
                pipeline.run(watch=True, stop=stop)
            except BaseException as error:  # noqa: BLE001 - raised again below
                raised.append(error)
            finally:
                ended.set()

        server = threading.Thread(target=serve)
        server.start()
        try:
            wait_until(lambda: ended.is_set() or bool(orders.address().url), timeout_s=STUCK_S, every_s=0.02)
            for seq in range(1, self.requests + 1):
                while not ended.is_set() and not self._sent(orders, seq):
                    ended.wait(0.05)
        finally:
            stop.set()
            server.join(STUCK_S)
        assert not server.is_alive()
        if raised:
            raise raised[0]

    def _sent(self, orders: tm.Dataset, seq: int) -> bool:
        """Send a request until it is answered; one that is not answered is sent again, under its number."""
        address = orders.address()
        body = json.dumps({"id": seq, "region": "n"}).encode()
        base, _, path = address.url.rpartition("/")
        try:
            status, _ = post(
                base,
                body,
                path=f"/{path}",
                token=address.token,
                Tidemill_Producer="till",
                Tidemill_Seq=str(seq),
            )
        except OSError:
            return False
        return bool(status == 200)


class Shop(Scene):
    """A whole pipeline (`tests.shop`) that processes its first file: source, arcs with parts, and a view."""

    name = "shop"

    @classmethod
    def of(cls, landing: Path) -> "Shop":
        shop.land(landing, "a", 0)
        return cls(landing=str(landing))

    def declare(self, home: Path, spark: "SparkSession | SparkSettings", clock: Clock) -> tm.Pipeline:
        return shop.declare(home, self.options["landing"], spark, clock=clock)

    def live(self, home: Path, spark: "SparkSession | SparkSettings", clock: Clock) -> None:
        with self.declare(home, spark, clock) as pipeline:
            self.act(pipeline)
            shop.clean_up(pipeline)

    def seen(self, pipeline: tm.Pipeline) -> dict[str, object]:
        left = shop.orphans(pipeline)
        assert not left, str(left)
        return shop.seen(pipeline, steps=False)


def append(pipeline: tm.Pipeline, rows: Any) -> None:
    orders = pipeline["orders"]
    assert isinstance(orders, tm.Dataset)
    orders.append(rows)


# --- what there is


def seen(pipeline: tm.Pipeline, name: str) -> dict[str, object]:
    """A table as readers find it. Which number a lot has means nothing: they are counted by their events."""
    site = pipeline.context
    published = site.store.run(lambda tx: events.read(tx, site.keys.lots, DatasetId(name), 0, 1000))
    assert [event.position for event in published] == list(range(1, len(published) + 1))
    numbers = {lot: number for number, lot in enumerate(dict.fromkeys(event.lot for event in published))}
    rows = site.store.run(lambda tx: lots.listed(tx, site.keys.lots, DatasetId(name), "", 1000))
    manifests = Manifests(site.objects, site.clock)
    listed = []
    for row in rows:
        root = manifests.load(row.manifest)
        parts = sorted(
            (str(sorted(item.partition.items())), item.rows) for item in manifests.lot_objects(row.manifest)
        )
        inputs = [(source.dataset, source.generation) for source in root.inputs]
        listed.append((numbers[row.lot], row.generation, row.revision, row.rows, inputs, parts))
    return {
        "rows": shop.table(pipeline, name),
        "events": sorted((numbers[event.lot], event.generation, event.state) for event in published),
        "lots": sorted(listed),
    }


def marks(pipeline: tm.Pipeline) -> list[bytes]:
    keys, store = SourceKeys(pipeline.context.place.cluster), pipeline.context.store
    return [row.value for row in store.run(lambda tx: tx.range(*keys.checkpoint.all()))]


def orphans(pipeline: tm.Pipeline, scene: Scene) -> list[str]:
    """Data and manifests that no generation of a lot lists, and rows of work that has ended."""
    site = pipeline.context
    roots = [
        site.store.run(_resolved(site.keys.lots, name, event)).manifest
        for name in (*scene.tables, "orders_quarantine")
        for event in site.store.run(lambda tx, n=name: events.read(tx, site.keys.lots, DatasetId(n), 0, 1000))
    ]
    left = unlisted(site.objects, Manifests(site.objects, site.clock), roots)
    left += [f"open {attempt}" for attempt in site.store.run(lambda tx: attempts.open_ids(tx, site.keys))]
    arcs = ArcKeys(site.place.cluster)
    for space in (arcs.running, arcs.request):
        left += [f"{row.key!r}" for row in site.store.run(lambda tx, s=space: tx.range(*s.all()))]
    return left + [name for name in scene.spaces if _any(site.store, site.place.cluster, name)]


def _resolved(keys: Any, name: str, event: events.LotEvent) -> Callable[[Any], lots.LotRow]:
    return lambda tx: lots.resolve(tx, keys, DatasetId(name), event.lot, event.generation)


def _any(store: Store, cluster: str, space: str) -> bool:
    return bool(store.run(lambda tx: tx.range(*Space(cluster, space).all(), limit=1)))


# --- which there are

SCENES: dict[str, type[Scene]] = {
    scene.name: scene for scene in (Ordered, Compaction, Folder, Bucket, Poll, Kafka, Push)
}
"""The scenes of the life of lots. `Shop` is not one of them: it has matrices of its own."""


def made(name: str, folder: Path, server: Callable[[str], Any]) -> Scene:
    """The scene of a name, with what it needs: files in a folder, or a server that is asked for by name."""
    if name == "folder":
        return Folder.of(folder / "landing")
    if name == "bucket":
        return Bucket.stored(server("s3_server"), folder / "landing")
    if name == "poll":
        return Poll.asking(server("web"))
    if name == "kafka":
        return Kafka.reading(server("kafka_server"))
    return SCENES[name]()


class Stage:
    """A home before a scene, to be copied for every life; and what is there after an undisturbed one."""

    def __init__(self, scene: Scene, folder: Path, spark: "SparkSession") -> None:
        self.scene = scene
        self.folder = folder
        self.spark = spark
        self.clock = ShiftedClock(SYSTEM)
        with scene.declare(folder / "before", spark, self.clock) as pipeline:
            certify_views(pipeline)
            scene.before(pipeline)
        self.calm: dict[str, object] = {}

    def fresh(self) -> Path:
        home = self.folder / "home"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(self.folder / "before", home)
        return home

    def live(self, home: Path) -> None:
        self.scene.live(home, self.spark, self.clock)

    def seen(self, home: Path) -> dict[str, object]:
        with self.scene.declare(home, self.spark, self.clock) as pipeline:
            return self.scene.seen(pipeline)

    def later(self) -> None:
        """The leases of the dead are over."""
        self.clock.wall_shift_s += LEASES_S
        self.clock.monotonic_shift_s += LEASES_S

    def trouble_after(self, home: Path) -> str:
        """What is wrong after another process has lived where one died; empty if nothing is."""
        self.later()
        try:
            self.live(home)
            state = self.seen(home)
            other = {key: (state[key], calm) for key, calm in self.calm.items() if state[key] != calm}
            assert not other, str(other)
        except Exception as error:  # noqa: BLE001 - gathered
            return f"{type(error).__name__}: {error}"
        return ""


S = TypeVar("S", bound=Stage)
Staged = Callable[[str, pytest.FixtureRequest], S]
"""The stage of a scene, by its name."""


def staged(
    kind: Callable[[Scene, Path, "SparkSession"], S],
    folders: pytest.TempPathFactory,
    spark: "SparkSession",
) -> Staged[S]:
    """Stages of a kind, each made once; but for the scene whose server is of one test alone."""
    known: dict[str, S] = {}

    def stage(name: str, request: pytest.FixtureRequest) -> S:
        if name in known:
            return known[name]
        folder = folders.mktemp(name)
        new_stage = kind(made(name, folder, request.getfixturevalue), folder, spark)
        if name != "poll":
            known[name] = new_stage
        return new_stage

    return stage
