"""The crash matrix of a pipeline: at every point where a process may die, on a real Spark.

A folder, two chained arcs with parts and two sinks, a view over both (`tests.shop`). For each stage there is
a home in which all before it is done; a life is a runner that catches up, then cleans as if a day had passed.
It dies at a point: what it has is dropped, but for the Spark session. The next life has the same slot of the
home, so it waits for no lease; it ends, and there is what an undisturbed life leaves, and nothing else.

In `make test` one life dies before a step and the next one behind it, where it first comes by, so both share
the life that ends; a life that does not come by has its own. In `make crash` there is one death at a time,
and two for what a life comes by dozens of times.
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import shop
from tests.shop import STAGES, Upto
from tidemill import crash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20
LOW = ("store.", "objects.", "futures.round.", "triggers.")
"""What is passed dozens of times in a life, most of them between points of what is going on: of these one by
chance, and in `make crash` the first as well."""

BESIDE = ("publish.project-", "triggers.", "publish.abandon")
"""What is done beside the work, when there is time, or what only a slow machine makes a life do: how often it
is, is another number in each life."""

EXPECTED: dict[Upto, set[str]] = {
    "source": {
        "sources.take",
        "sources.begin",
        "spark.write",
        "publish.intent",
        "publish.part-manifest",
        "publish.commit",
    },
    "clean": {
        "arcs.begin",
        "spark.write",
        "publish.intent",
        "publish.part-manifest",
        "publish.commit",
        "publish.project-arc",
    },
    "double": {
        "arcs.begin",
        "spark.write",
        "publish.manifest",
        "publish.part-manifest",
        "publish.project-lot",
    },
    "views": {"views.cut", "views.open", "views.trace", "views.manifest", "views.commit"},
}
ALWAYS = {"futures.round", "runner.forget", "publish.swept"}


class Matrix:
    """Homes before each stage, and what is there after it."""

    def __init__(self, folder: Path, spark: "SparkSession") -> None:
        self.folder = folder
        self.landing = folder / "landing"
        self.spark = spark
        self.calm: dict[Upto, dict[str, object]] = {}
        self.visits: dict[Upto, Counter[str]] = {}
        shop.land(self.landing, "a", 0)
        work = folder / "calm"
        work.mkdir()
        for upto in STAGES:
            if upto == "views":  # a view is certified when it is first declared: once is enough
                with shop.declare(work, self.landing, spark, upto=upto) as pipeline:
                    pipeline.plan().apply("matrix")
            shutil.copytree(work, folder / f"before-{upto}")
            self.visits[upto] = Counter()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(crash, "point", lambda name, upto=upto: self.visits[upto].update([name]))
                self.live(work, upto)
            self.calm[upto] = self.seen(work, upto)

    def live(self, home: Path, upto: Upto) -> None:
        """One life of a process: it knows nothing of those before but what the home says."""
        with shop.declare(home, self.landing, self.spark, upto=upto) as pipeline:
            report = pipeline.run()
            assert report.ok, report
            shop.clean_up(pipeline)

    def seen(self, home: Path, upto: Upto) -> dict[str, object]:
        with shop.declare(home, self.landing, self.spark, upto=upto) as pipeline:
            left = shop.orphans(pipeline)
            assert not left, str(left)
            return shop.seen(pipeline)

    def cases(self, upto: Upto, *, first: bool = True) -> Iterator[tuple[str, int]]:
        chance = random.Random(f"{SEED} {upto}")
        for name, count in sorted(self.visits[upto].items()):
            some = {chance.randint(1, count)}
            visits = some | ({1} if first else set()) if name.startswith(LOW) else range(1, count + 1)
            for visit in visits:
                yield name, visit

    def pairs(self, upto: Upto) -> Iterator[tuple[tuple[str, int], ...]]:
        """The same cases, that behind a step as the death of the life that follows the one before it."""
        for name, visit in self.cases(upto, first=False):
            behind = name.replace("before", "after")
            ahead = name.replace("after", "before")
            if ahead != name and ahead in self.visits[upto]:
                continue
            paired = behind != name and behind in self.visits[upto]
            yield ((name, visit), (behind, 1)) if paired else ((name, visit),)

    def trouble(self, upto: Upto, first: tuple[str, int], *later: tuple[str, int]) -> str:
        """What is wrong after lives that died at these points; empty if nothing is."""
        home = self.folder / "home"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(self.folder / f"before-{upto}", home)
        if not self.died(home, upto, *first) and first[1] == 1 and not first[0].startswith((*LOW, *BESIDE)):
            return "was not reached"
        missed = [one for one in later if not self.died(home, upto, *one)]
        try:
            self.live(home, upto)
            seen = self.seen(home, upto)
            other = {key: (seen[key], calm) for key, calm in self.calm[upto].items() if seen[key] != calm}
            assert not other, str(other)
        except Exception as error:  # noqa: BLE001 - gathered
            return f"{type(error).__name__}: {error}"
        return "; ".join(filter(None, (self.trouble(upto, (point, first[1])) for point, _ in missed)))

    def died(self, home: Path, upto: Upto, point: str, visit: int) -> bool:
        """Whether a life came by this point so often, and died there."""
        try:
            with crash.armed(point, visit=visit):
                self.live(home, upto)
        except crash.Crashed:
            return True
        return False


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Matrix:
    return Matrix(tmp_path_factory.mktemp("matrix"), spark)


@pytest.mark.rule("LOT-20")
@pytest.mark.rule("LOT-9")
@pytest.mark.parametrize("upto", STAGES)
def test_after_deaths_before_and_behind_any_step_the_next_life_leaves_what_an_undisturbed_one_does(
    upto: Upto, matrix: Matrix
) -> None:
    steps = {name.rpartition(".")[0] for name in matrix.visits[upto]}
    assert steps >= EXPECTED[upto] | ALWAYS
    pairs = [*matrix.pairs(upto)]
    assert {name for deaths in pairs for name, _ in deaths} == {*matrix.visits[upto]}
    found = {str(deaths): matrix.trouble(upto, *deaths) for deaths in pairs}
    assert {case: trouble for case, trouble in found.items() if trouble} == {}


@pytest.mark.crash
@pytest.mark.rule("LOT-20")
@pytest.mark.rule("LOT-9")
@pytest.mark.parametrize("upto", STAGES)
def test_after_a_death_at_any_point_the_next_life_leaves_what_an_undisturbed_one_does(
    upto: Upto, matrix: Matrix
) -> None:
    found = {f"{point}:{visit}": matrix.trouble(upto, (point, visit)) for point, visit in matrix.cases(upto)}
    assert {case: trouble for case, trouble in found.items() if trouble} == {}
