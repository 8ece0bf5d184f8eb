"""The crash matrix of the life of lots: replay, backfill, compaction and every kind of source, on Spark.

A scene is a home in which all before it is done, and what a process does then: it asks for what is to be
made again, if nobody has yet, or receives, fetches and reads; it catches up, and cleans as if a day had
passed. It dies at a point, all its threads at once: what it has is dropped, but for the Spark session. The
next life ends, and there is what an undisturbed life leaves: tables, events, manifests, marks, and nothing
else.

Here it dies behind each step of what a scene is about, at the first visit; in `make crash` before and behind
every step, those of the layers below too, at the first visit and at one by chance.
"""

import json
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import tidemill as tm
from tests import shop
from tests.servers.kafka import KafkaServer
from tests.servers.process import wait_until
from tests.servers.s3 import S3Server
from tests.unit.push_stage import post
from tests.unit.test_sources_polling import Web, web
from tidemill import crash
from tidemill.arcs.keys import ArcKeys
from tidemill.clock import SYSTEM, Clock
from tidemill.lots import events, lots
from tidemill.lots.keys import DatasetId
from tidemill.objects import open_objects
from tidemill.publish import attempts
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.manifests import Manifests, attempt_in
from tidemill.publish.projections import Projections
from tidemill.runner.leftovers import Leftovers
from tidemill.runner.making import make_part
from tidemill.runner.part_futures import PartFutures
from tidemill.sources.bucket import BucketListing
from tidemill.sources.keys import SourceKeys
from tidemill.store import Store
from tidemill.testing.fake_clock import ShiftedClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["web"]  # a fixture
BELOW = ("store.", "objects.", "runner.round.", "tender.", "publish.project-")
"""What every process passes, often: `make crash` stops there."""

BY_CHANCE = ("publish.abandon",)
"""What a slow machine makes a process do, and a quick one does not."""

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

    def declare(self, home: Path, spark: "SparkSession", clock: Clock) -> tm.Pipeline:
        pipeline = tm.Pipeline("shop", home=home, spark=spark, clock=clock)
        self.fill(pipeline)
        return pipeline

    def fill(self, pipeline: tm.Pipeline) -> None:
        raise NotImplementedError

    def before(self, pipeline: tm.Pipeline) -> None:
        """What is done when the scene begins."""

    def act(self, pipeline: tm.Pipeline) -> None:
        """What a process does. It knows nothing of those before it but what the home says."""
        report = pipeline.run()
        assert report.ok, report


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
        shown = {one.lot: one for one in pipeline["doubled"].lots()}
        passed, made = sorted(shown)
        if shown[passed].state != "complete":
            pipeline.backfill("doubled", [passed], at_once=1)
        if shown[made].generation == 0:
            pipeline.replay("doubled", [made], at_once=1)
        super().act(pipeline)


class Compaction(Scene):
    name = "compaction"
    steps: ClassVar[set[str]] = {
        "publish.intent",
        "publish.compact-open",
        "publish.compact-commit",
        "publish.retired",
    }

    def fill(self, pipeline: tm.Pipeline) -> None:
        pipeline.dataset("orders", "id BIGINT, region STRING")

    def before(self, pipeline: tm.Pipeline) -> None:
        with pipeline.site.spark() as spark:
            frame = spark.range(30).selectExpr("id", "IF(id % 2 = 0, 'n', NULL) AS region")
            append(pipeline, frame.repartition(6))

    def act(self, pipeline: tm.Pipeline) -> None:
        pipeline["orders"].compact()


class Folder(Scene):
    name = "folder"
    tables = ("orders", "orders_quarantine")
    steps: ClassVar[set[str]] = {"sources.take", "sources.begin", "publish.intent", "publish.commit"}

    def __init__(self, landing: Path) -> None:
        self.landing = landing
        landing.mkdir()
        (landing / "a.json").write_text('{"id": 1, "region": "n"}\n{"id": "x"}\n')
        (landing / "b.json").write_text('{"id": 2}\n')

    def fill(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")
        pipeline.source(orders, tm.folder(f"{self.landing}/*.json", settle_s=0.0, max_files=1))


class Bucket(Folder):
    """The same files in a bucket: listed, looked at and opened there. The Spark of these tests has no
    connector, so it is told to read copies.
    """

    name = "bucket"

    def __init__(self, server: S3Server, landing: Path) -> None:
        super().__init__(landing)
        self.place = f"s3://{server.access_key}:{server.secret_key}@{server.new_bucket()}"
        self.settings = f"?endpoint={server.endpoint}&region={server.region}"
        objects = open_objects(self.place + self.settings, clock=SYSTEM, probe=False)
        for file in landing.iterdir():
            objects.put(f"in/{file.name}", file.read_bytes())

    def fill(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")
        pipeline.source(orders, tm.bucket(f"{self.place}/in/*.json{self.settings}", max_files=1))

    def act(self, pipeline: tm.Pipeline) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BucketListing, "uri", lambda _, path: (self.landing / path).as_uri())
            super().act(pipeline)


class Poll(Scene):
    name = "poll"
    tables = ("orders", "orders_quarantine")
    steps: ClassVar[set[str]] = {"sources.draw", "publish.intent", "publish.part-manifest", "publish.commit"}

    def __init__(self, web: Web) -> None:
        self.web = web

    def fill(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")
        pipeline.source(orders, tm.http_poll(self.web.url, every_s=3600))

    def act(self, pipeline: tm.Pipeline) -> None:
        for version in (1, 2):  # as if some time had passed
            self.web.says([{"id": version, "region": "n"}, {"id": "x"}], ETag=f'"{version}"')
            if version not in {row[0] for row in shop.table(pipeline, "orders")}:
                super().act(pipeline)


class Kafka(Scene):
    name = "kafka"
    spaces = ("future", "pin")  # the partitions of a topic stay
    tables = ("orders", "orders_quarantine")
    steps: ClassVar[set[str]] = {"sources.draw", "sources.mark", "publish.intent", "publish.commit"}

    def __init__(self, server: KafkaServer) -> None:
        self.server, self.topic = server, server.new_topic(2)
        server.send(self.topic, [(n % 2, b'{"id": %d}' % n) for n in range(10)] + [(0, b"[]")])

    def fill(self, pipeline: tm.Pipeline) -> None:
        orders = pipeline.dataset("orders", "id BIGINT, region STRING")
        pipeline.source(orders, tm.kafka(self.server.brokers, self.topic, linger_s=0.2))


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
            wait_until(lambda: ended.is_set() or bool(orders.address().url), timeout_s=60, every_s=0.02)
            for seq in range(1, self.requests + 1):
                while not ended.is_set() and not self._sent(orders, seq):
                    ended.wait(0.05)
        finally:
            stop.set()
            server.join(60)
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


def append(pipeline: tm.Pipeline, rows: Any) -> None:
    orders = pipeline["orders"]
    assert isinstance(orders, tm.Dataset)
    orders.append(rows)


# --- deaths


class Death:
    """From a visit to a point on, every thread dies at whatever point it comes to next."""

    def __init__(self, point: str = "", visit: int = 1) -> None:
        self.point = point
        self.left = visit
        self.dead = False
        self.visits: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            self.visits[name] += 1
            if name == self.point:
                self.left -= 1
                self.dead = self.dead or self.left == 0
            if self.dead:
                raise crash.Crashed(name)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """A process lives in this block. Of one that died no thread comes past a point any more."""
        others = set(threading.enumerate())
        _GHOSTS.current = self
        try:
            yield
        finally:
            _GHOSTS.current = None
            if self.dead:
                _GHOSTS.threads.update(set(threading.enumerate()) - others)


class _Ghosts:
    """What `crash.point` is while the matrix runs."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()
        self.current: Death | None = None

    def __call__(self, name: str) -> None:
        if threading.current_thread() in self.threads:
            raise crash.Crashed(name)
        if self.current is not None:
            self.current(name)


_GHOSTS = _Ghosts()


@pytest.fixture(autouse=True)
def _points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "point", _GHOSTS)


class Matrix:
    """A home before a scene, and what is there after it."""

    def __init__(self, scene: Scene, folder: Path, spark: "SparkSession") -> None:
        self.scene = scene
        self.folder = folder
        self.spark = spark
        self.clock = ShiftedClock(SYSTEM)
        home = folder / "calm"
        with scene.declare(home, spark, self.clock) as pipeline:
            pipeline.plan().apply("before")
            scene.before(pipeline)
        shutil.copytree(home, folder / "before")
        calm = Death()
        with calm.armed():
            self.live(home)
        self.visits = calm.visits
        self.calm = self.seen(home)

    def live(self, home: Path) -> None:
        with self.scene.declare(home, self.spark, self.clock) as pipeline:
            self.scene.act(pipeline)
            clean_up(pipeline)

    def seen(self, home: Path) -> dict[str, object]:
        with self.scene.declare(home, self.spark, self.clock) as pipeline:
            left = orphans(pipeline, self.scene)
            assert not left, str(left)
            return {name: seen(pipeline, name) for name in self.scene.tables} | {"marks": marks(pipeline)}

    def trouble(self, point: str, visit: int) -> str:
        """What is wrong after a death at this point; empty if nothing is."""
        home = self.folder / "home"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(self.folder / "before", home)
        death = Death(point, visit)
        try:
            with death.armed():
                self.live(home)
        except crash.Crashed:
            pass
        except Exception as error:  # noqa: BLE001 - gathered
            if not death.dead:
                return f"before it died: {type(error).__name__}: {error}"
        self.clock.wall_shift_s += LEASES_S
        self.clock.monotonic_shift_s += LEASES_S
        if not death.dead and visit == 1 and not point.startswith((*BELOW, *BY_CHANCE)):
            return "was not reached"
        try:
            self.live(home)
            found = self.seen(home)
            other = {key: (found[key], calm) for key, calm in self.calm.items() if found[key] != calm}
            assert not other, str(other)
        except Exception as error:  # noqa: BLE001 - gathered
            return f"{type(error).__name__}: {error}"
        return ""


# --- what there is


def seen(pipeline: tm.Pipeline, name: str) -> dict[str, object]:
    """A table as readers find it. Which number a lot has means nothing: they are counted by their events."""
    site = pipeline.site
    told = site.store.run(lambda tx: events.read(tx, site.keys.lots, DatasetId(name), 0, 1000))
    assert [event.position for event in told] == list(range(1, len(told) + 1))
    numbers = {lot: number for number, lot in enumerate(dict.fromkeys(event.lot for event in told))}
    rows = site.store.run(lambda tx: lots.listed(tx, site.keys.lots, DatasetId(name), "", 1000))
    manifests = Manifests(site.objects, site.clock)
    listed = []
    for row in rows:
        root = manifests.load(row.manifest)
        parts = sorted(
            (str(sorted(item.partition.items())), item.rows) for item in manifests.listed(row.manifest)
        )
        inputs = [(one.dataset, one.generation) for one in root.inputs]
        listed.append((numbers[row.lot], row.generation, row.revision, row.rows, inputs, parts))
    return {
        "rows": shop.table(pipeline, name),
        "events": sorted((numbers[event.lot], event.generation, event.state) for event in told),
        "lots": sorted(listed),
    }


def marks(pipeline: tm.Pipeline) -> list[bytes]:
    keys, store = SourceKeys(pipeline.site.place.cluster), pipeline.site.store
    return [row.value for row in store.run(lambda tx: tx.range(*keys.mark.all()))]


def clean_up(pipeline: tm.Pipeline) -> None:
    """What a runner does every so often, but as if a day had passed."""
    site = pipeline.site
    parts = PartFutures(site.store, site.place.cluster, site.place.key, make_part, objects=site.objects)
    projections = Projections(site.store, site.keys, site.objects)
    cleaner = Cleaner(
        site.store,
        site.keys,
        site.objects,
        site.door,
        site.clock,
        drop=Leftovers(site.store, ArcKeys(site.place.cluster), parts, projections),
        grace_s=0.0,
        keep_s=0.0,
        readers_s=0.0,
    )
    while cleaner.clean():
        pass
    parts.forget_ended()


def orphans(pipeline: tm.Pipeline, scene: Scene) -> list[str]:
    """Data and manifests that no generation of a lot lists, and rows of work that has ended."""
    site = pipeline.site
    manifests = Manifests(site.objects, site.clock)
    live: set[str] = set()
    for name in (*scene.tables, "orders_quarantine"):
        for event in site.store.run(
            lambda tx, n=name: events.read(tx, site.keys.lots, DatasetId(n), 0, 1000)
        ):
            key = site.store.run(_resolved(site.keys.lots, name, event)).manifest
            live |= {key, *manifests.load(key).parts, *(item.uri for item in manifests.listed(key))}
    keys = [info.key for info in site.objects.list("")]
    found = [key for key in keys if key.startswith("data/") and key not in live]
    found += [
        key
        for key in keys
        if key.startswith("datasets/")
        and attempt_in(key)
        and key not in live
        and "/state=removed/" not in key
    ]
    found += [f"open {one}" for one in site.store.run(lambda tx: attempts.open_ids(tx, site.keys))]
    arcs = ArcKeys(site.place.cluster)
    for space in (arcs.running, arcs.ask):
        found += [f"{row.key!r}" for row in site.store.run(lambda tx, s=space: tx.range(*s.all()))]
    return found + [name for name in scene.spaces if _any(site.store, site.place.cluster, name)]


def _resolved(keys: Any, name: str, event: events.LotEvent) -> Callable[[Any], lots.LotRow]:
    return lambda tx: lots.resolve(tx, keys, DatasetId(name), event.lot, event.generation)


def _any(store: Store, cluster: str, space: str) -> bool:
    from tidemill.store import Space

    return bool(store.run(lambda tx: tx.range(*Space(cluster, space).all(), limit=1)))


# --- the matrix


SCENES = ("ordered", "compaction", "bucket", "poll", "kafka", "push")
QUICK = ("compaction",)
"""Those of `make test`; `make crash` has all of them, at more points."""


@pytest.fixture(scope="module")
def scenes(
    tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession"
) -> Callable[[str, pytest.FixtureRequest], Matrix]:
    known: dict[str, Matrix] = {}

    def matrix(name: str, request: pytest.FixtureRequest) -> Matrix:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            make: dict[str, Callable[[], Scene]] = {
                "ordered": Ordered,
                "compaction": Compaction,
                "bucket": lambda: Bucket(request.getfixturevalue("s3_server"), folder / "landing"),
                "folder": lambda: Folder(folder / "landing"),
                "poll": lambda: Poll(request.getfixturevalue("web")),
                "kafka": lambda: Kafka(request.getfixturevalue("kafka_server")),
                "push": Push,
            }
            found = Matrix(make[name](), folder, spark)
            if name == "poll":
                return found  # its server is of this test alone
            known[name] = found
        return known[name]

    return matrix


@pytest.mark.rule("LOT-31")
@pytest.mark.rule("LOT-35")
@pytest.mark.rule("LOT-37")
@pytest.mark.rule("CLU-22")
@pytest.mark.parametrize("name", QUICK)
def test_after_a_death_in_the_life_of_lots_the_next_process_leaves_what_an_undisturbed_one_does(
    name: str, scenes: Callable[[str, pytest.FixtureRequest], Matrix], request: pytest.FixtureRequest
) -> None:
    matrix = scenes(name, request)
    assert {point.rpartition(".")[0] for point in matrix.visits} >= matrix.scene.steps
    steps = [point for point in sorted(matrix.visits) if not point.startswith(BELOW)]
    points = [point for point in steps if point.endswith(".after")]
    found = {point: matrix.trouble(point, 1) for point in points}
    assert {point: trouble for point, trouble in found.items() if trouble} == {}


@pytest.mark.crash
@pytest.mark.parametrize("name", [*SCENES, "folder"])
def test_every_point_of_every_layer_is_met_at_its_first_visit_and_at_one_by_chance(
    name: str, scenes: Callable[[str, pytest.FixtureRequest], Matrix], request: pytest.FixtureRequest
) -> None:
    matrix, chance = scenes(name, request), random.Random(f"21 {name}")
    cases = {
        (point, visit) for point, count in matrix.visits.items() for visit in (1, chance.randint(1, count))
    }
    found = {f"{point}:{visit}": matrix.trouble(point, visit) for point, visit in sorted(cases)}
    assert {case: trouble for case, trouble in found.items() if trouble} == {}
