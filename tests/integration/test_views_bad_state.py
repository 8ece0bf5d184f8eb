"""State that is not as it was, a disk without room, memory that does not suffice, keys that most rows have.

In the runner, where small steps are computed; Python workers in the same trouble are in `test_views_trouble`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.integration.views_stage import bag
from tidemill import crash
from tidemill.errors import ObjectsFull
from tidemill.events import Event
from tidemill.triggers.events import RunFailed
from tidemill.views.spark import tasks
from tidemill.views.spark.execution import SETTING
from tidemill.views.steps import commits
from tidemill.views.steps.events import StepTimed
from tidemill.views.trace.version_file import read_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

TOTALS = """
    SELECT r.name, count(*) AS n, sum(o.amount) AS total
    FROM orders o JOIN regions r ON o.region = r.region GROUP BY r.name"""


class Stage:
    """A pipeline whose state is read from its files in every step, as by a process that has just begun."""

    def __init__(self, home: Path, spark: "SparkSession") -> None:
        self.folder = home / "objects"
        self.pipeline = tm.Pipeline("p", home=home, spark=spark)
        self.orders = self.pipeline.dataset("orders", "id BIGINT, region STRING, amount BIGINT", deletes=True)
        self.regions = self.pipeline.dataset("regions", "region STRING, name STRING", key="region")
        self.totals = self.pipeline.view("totals", TOTALS)
        self.told: list[Event] = []

    def run(self) -> list[str]:
        """Run, and return the reason of each failure."""
        tasks._caches.clear()
        tasks._version.cache_clear()
        self.told.clear()
        report = self.pipeline.run(emit=self.told.append)
        failed = [f"{event.code}: {event.message}" for event in self.told if isinstance(event, RunFailed)]
        assert report.ok == (not failed)
        return failed

    def timed(self) -> StepTimed:
        return [event for event in self.told if isinstance(event, StepTimed)][-1]

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.totals.df().collect()))

    def version(self) -> str:
        """The file of the last committed version."""
        site = self.pipeline.context
        rows = site.store.run(lambda tx: commits.rows(tx, site.keys, "p", "main", 0, 1 << 60))
        return [row.version for row in rows if row.version][-1]

    def runs(self) -> list[str]:
        return sorted(read_version(self.pipeline.context.objects, self.version()).files())

    @contextmanager
    def changed(self, files: list[str], change: Callable[[bytes], bytes | None]) -> Iterator[None]:
        """While these files are others, or not there."""
        bodies = {self.folder / file: (self.folder / file).read_bytes() for file in files}
        try:
            for place, body in bodies.items():
                other = change(body)
                if other is None:
                    place.unlink()
                else:
                    place.write_bytes(other)
            yield
        finally:
            for place, body in bodies.items():
                place.write_bytes(body)


@contextmanager
def raising(point: str, what: Callable[[], BaseException]) -> Iterator[None]:
    def hit() -> None:
        raise what()

    crash._armed[point] = hit
    try:
        yield
    finally:
        del crash._armed[point]


@pytest.fixture(scope="module")
def stage(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEMILL_CACHE", "off")
        patch.setenv(SETTING, "runner")
        stage = Stage(tmp_path_factory.mktemp("home"), spark)
        stage.regions.upsert([("a", "x"), ("b", "y")])
        stage.orders.append([(n, "ab?"[n % 3], n) for n in range(30)])
        assert stage.run() == []
        assert stage.rows() == FIRST
        yield stage
        stage.pipeline.close()


FIRST = [("x", 10, 135), ("y", 10, 145)]


@pytest.mark.parametrize(
    ("what", "code", "detail"),
    [
        ("damaged", "trace-corrupt", ".runs'"),
        ("cut short", "trace-corrupt", ".runs'"),
        ("missing", "trace-missing", ".runs'"),
        ("newer runs", "trace-format", "has format 9; this release reads 2"),
        ("newer version", "trace-format", "version' has format 99"),
        ("damaged version", "trace-corrupt", "version' is damaged"),
        ("missing version", "trace-missing", "no version file"),
        ("full", "objects-full", ".runs'"),
    ],
)
def test_a_step_in_trouble_names_the_file_and_the_last_version_serves(
    stage: Stage, what: str, code: str, detail: str
) -> None:
    changes: dict[str, Callable[[bytes], bytes | None]] = {
        "damaged": lambda body: bytes(255 - byte for byte in body),
        "cut short": lambda body: body[: len(body) // 2],
        "missing": lambda body: None,
        "newer runs": lambda body: body[:8] + (9).to_bytes(4, "little") + body[12:],
        "newer version": lambda body: body.replace(b'"format":2', b'"format":99', 1),
        "damaged version": lambda body: body[:-3] + b"?" + body[-2:],
        "missing version": lambda body: None,
    }
    stage.orders.append([(100, "a", 1000)])
    if what == "full":
        with raising("views.trace.before_bundle", lambda: ObjectsFull("no space left for 'x.runs'")):
            failed = stage.run()
    else:
        files = [stage.version()] if "version" in what else stage.runs()
        with stage.changed(files, changes[what]):
            failed = stage.run()
            assert stage.rows() == FIRST, "what was committed before is there, and needs no state"
    assert failed, "the step failed"
    assert all(failure.startswith(f"{code}: ") and detail in failure for failure in failed), failed
    assert stage.rows() == FIRST

    # the trouble is over: the step runs once, without a load
    assert stage.run() == []
    assert stage.timed().load_s == 0
    assert stage.rows() == [("x", 11, 1135), ("y", 10, 145)]
    stage.orders.delete([(100, "a", 1000)])
    assert stage.run() == []
    assert stage.rows() == FIRST


def test_a_step_that_does_not_fit_the_runner_is_computed_by_spark(stage: Stage) -> None:
    stage.orders.append([(100, "a", 1000)])
    ours = [True]

    def once() -> None:  # in this process alone: workers of Spark have crash points of their own
        if ours.pop():
            ours.append(False)
            raise MemoryError

    crash._armed["views.trace.before_bundle"] = once
    try:
        assert stage.run() == []
    finally:
        del crash._armed["views.trace.before_bundle"]
    assert stage.timed().place == "spark"
    assert stage.rows() == [("x", 11, 1135), ("y", 10, 145)]
    stage.orders.delete([(100, "a", 1000)])
    assert stage.run() == []
    assert stage.rows() == FIRST


@pytest.mark.rule("DBSP-9")
@pytest.mark.parametrize(
    ("place", "count"), [("runner", 1_000), pytest.param("spark", 20_000, marks=pytest.mark.crash)]
)
def test_a_key_that_nearly_all_rows_have_gives_right_results(
    tmp_path: Path, spark: "SparkSession", place: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, place)
    queries = {
        "sold": "SELECT o.id, r.name FROM orders o JOIN regions r ON o.region = r.region",
        "most": "SELECT region, max(amount) AS most, min(id) AS first FROM orders GROUP BY region",
    }
    stage = Stage(tmp_path / "home", spark)
    views = {name: stage.pipeline.view(f"{name}_", sql) for name, sql in queries.items()}
    stage.regions.upsert([("a", "x"), ("b", "y")])
    stage.orders.append([(n, "b" if n % 100 == 0 else "a", n % 50) for n in range(count)])
    assert stage.run() == []
    steps: list[Callable[[], Any]] = [
        lambda: stage.orders.append([(count + n, "a", n) for n in range(50)]),
        lambda: stage.orders.delete([(n, "a", n % 50) for n in range(49, count, 50) if n % 100]),
    ]
    for change in steps:
        change()
        stage.regions.upsert([("a", f"after {change.__code__.co_firstlineno}")])
        assert stage.run() == []
        assert stage.timed().load_s == 0
    assert stage.timed().place == place
    stage.orders.df().createOrReplaceTempView("orders")
    stage.regions.df().createOrReplaceTempView("regions")
    try:
        contents = {name: bag(view.df()) for name, view in views.items()}
        assert contents == {name: bag(spark.sql(sql)) for name, sql in queries.items()}
    finally:
        spark.catalog.dropTempView("orders")
        spark.catalog.dropTempView("regions")
    assert isinstance(contents["sold"], Counter)
    assert max(Counter(row[1] for row in contents["sold"].elements()).values()) > 0.9 * count
    stage.pipeline.close()
