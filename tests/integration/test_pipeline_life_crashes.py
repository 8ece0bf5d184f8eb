"""The crash matrix of the life of lots: replay, backfill, compaction and every kind of source, on Spark.

A process that lives in a scene (`life_scenes`) dies at a point, all its threads at once: what it has is
dropped, but for the Spark session. The next life ends, and there is what an undisturbed life leaves: tables,
events, manifests, marks, and nothing else.

Here it dies behind each step of what a scene is about, at the first visit; in `make crash` before and behind
every step, those of the layers below too, at the first visit and at one by chance.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.life_scenes import SCENES, Scene, Stage, Staged, staged
from tests.unit.test_sources_http_poll import web
from tidemill import crash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["web"]  # a fixture
BELOW = ("store.", "objects.", "futures.round.", "triggers.", "publish.project-")
"""What every process passes, often: `make crash` stops there."""

BY_CHANCE = ("publish.abandon",)
"""What a slow machine makes a process do, and a quick one does not."""

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


class Matrix(Stage):
    """A scene, and the points that an undisturbed life passes."""

    def __init__(self, scene: Scene, folder: Path, spark: "SparkSession") -> None:
        super().__init__(scene, folder, spark)
        home, calm = self.fresh(), Death()
        with calm.armed():
            self.live(home)
        self.visits = calm.visits
        self.calm = self.seen(home)

    def trouble(self, point: str, visit: int) -> str:
        """What is wrong after a death at this point; empty if nothing is."""
        home, death = self.fresh(), Death(point, visit)
        try:
            with death.armed():
                self.live(home)
        except crash.Crashed:
            pass
        except Exception as error:  # noqa: BLE001 - gathered
            if not death.dead:
                return f"before it died: {type(error).__name__}: {error}"
        if not death.dead and visit == 1 and not point.startswith((*BELOW, *BY_CHANCE)):
            return "was not reached"
        return self.trouble_after(home)


# --- the matrix


QUICK = ("compaction",)
"""Those of `make test`; `make crash` has all of them, at more points."""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Staged[Matrix]:
    return staged(Matrix, tmp_path_factory, spark)


@pytest.mark.rule("LOT-37")
@pytest.mark.parametrize("name", QUICK)
def test_after_a_death_in_the_life_of_lots_the_next_process_leaves_what_an_undisturbed_one_does(
    name: str, scenes: Staged[Matrix], request: pytest.FixtureRequest
) -> None:
    matrix = scenes(name, request)
    assert {point.rpartition(".")[0] for point in matrix.visits} >= matrix.scene.steps
    steps = [point for point in sorted(matrix.visits) if not point.startswith(BELOW)]
    points = [point for point in steps if point.endswith(".after")]
    troubles = {point: matrix.trouble(point, 1) for point in points}
    assert {point: trouble for point, trouble in troubles.items() if trouble} == {}


@pytest.mark.crash
@pytest.mark.rule("LOT-31")
@pytest.mark.rule("LOT-35")
@pytest.mark.rule("LOT-37")
@pytest.mark.rule("CLU-22")
@pytest.mark.parametrize("name", SCENES)
def test_every_point_of_every_layer_is_met_at_its_first_visit_and_at_one_by_chance(
    name: str, scenes: Staged[Matrix], request: pytest.FixtureRequest
) -> None:
    matrix, chance = scenes(name, request), random.Random(f"21 {name}")
    assert {point.rpartition(".")[0] for point in matrix.visits} >= matrix.scene.steps
    cases = {
        (point, visit) for point, count in matrix.visits.items() for visit in (1, chance.randint(1, count))
    }
    troubles = {f"{point}:{visit}": matrix.trouble(point, visit) for point, visit in sorted(cases)}
    assert {case: trouble for case, trouble in troubles.items() if trouble} == {}
