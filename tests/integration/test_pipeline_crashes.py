"""The crash matrix of a pipeline: at every point where a process may die, on a real Spark.

A folder, two chained arcs with parts and two sinks, a view over both (`tests.shop`). For each stage there is
a home in which all before it is done; a life is a runner that catches up, then cleans as if a day had passed.
It dies at a point: what it has is dropped, but for the Spark session. The next life has the same slot of the
home, so it waits for no lease; it ends, and there is what an undisturbed life leaves, and nothing else.

In `make test` a life dies at every third point. Several lives die in the same home, each at a later point,
and the life after them ends undisturbed. In `make crash` each home sees one death, and a point has a home for
each time that a life passes it.
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import shop
from tests.certificates import certify_views
from tests.shop import STAGES, Upto
from tidemill import crash
from tidemill.triggers.terms import Terms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

SEED = 20
MOST_DEATHS = 6
"""So many lives die in one home."""
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
        "spark.write_table",
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
ALWAYS = {"futures.round", "runner.forget", "publish.forget"}


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
                    certify_views(pipeline)
            shutil.copytree(work, folder / f"before-{upto}")
            self.visits[upto] = Counter()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(crash, "point", lambda name, upto=upto: self.visits[upto].update([name]))
                self.live(work, upto)
            self.calm[upto] = self.seen(work, upto)

    def live(self, home: Path, upto: Upto) -> None:
        """One life of a process: it knows nothing of those before but what the home says.

        It retries at once what earlier lives died in. The pause after such a death has tests of its own.
        """
        with (
            pytest.MonkeyPatch.context() as patch,
            shop.declare(home, self.landing, self.spark, upto=upto) as pipeline,
        ):
            patch.setattr(Terms, "backoff", lambda _terms, _failures, _jitter: 0)
            report = pipeline.run()
            assert report.ok, report
            shop.clean_up(pipeline)

    def seen(self, home: Path, upto: Upto) -> dict[str, object]:
        with shop.declare(home, self.landing, self.spark, upto=upto) as pipeline:
            left = shop.orphans(pipeline)
            assert not left, str(left)
            return shop.seen(pipeline)

    def cases(self, upto: Upto) -> Iterator[tuple[str, int]]:
        """Yield every point with each visit to it; of those that are passed dozens of times, two visits."""
        chance = random.Random(f"{SEED} {upto}")
        for name, count in sorted(self.visits[upto].items()):
            for visit in {1, chance.randint(1, count)} if name.startswith(LOW) else range(1, count + 1):
                yield name, visit

    def points(self, upto: Upto) -> list[tuple[str, int]]:
        """Return every third point once, in the order in which an undisturbed life reaches them.

        The second arc has the points of the first one; only those that it adds are returned. The first arc
        has the points of lower layers that the source has.
        """
        chance = random.Random(f"{SEED} {upto}")
        known: set[str] = set()
        if upto == "clean":
            known = {name for name in self.visits["source"] if name.startswith(LOW)}
        elif upto == "double":
            known = {*self.visits["clean"]}
        names = [name for name in self.visits[upto] if name not in known]
        low = [(name, chance.randint(1, self.visits[upto][name])) for name in names if name.startswith(LOW)]
        every = [*((name, 1) for name in names if not name.startswith(LOW)), *low]
        return every[chance.randrange(3) :: 3]

    def trouble(self, upto: Upto, *deaths: tuple[str, int]) -> dict[str, str]:
        """Let lives die at these points, several in each home; return what is wrong after them.

        A life that does not reach its point ends undisturbed. Its home is checked; the point gets a new one.
        """
        wrong: dict[str, str] = {}
        waiting = list(deaths)
        while waiting:
            home = self.new_home(upto)
            died: list[tuple[str, int]] = []
            while waiting and len(died) < MOST_DEATHS and self.died(home, upto, *waiting[0]):
                died.append(waiting.pop(0))
            if not died:  # also in a new home
                point, visit = waiting.pop(0)
                if visit == 1 and not point.startswith((*LOW, *BESIDE)):
                    wrong[point] = "was not reached"
            try:
                self.live(home, upto)
                seen = self.seen(home, upto)
                other = {key: (seen[key], calm) for key, calm in self.calm[upto].items() if seen[key] != calm}
                assert not other, str(other)
            except Exception as error:  # noqa: BLE001 - gathered
                wrong[str(died)] = f"{type(error).__name__}: {error}"
        return wrong

    def new_home(self, upto: Upto) -> Path:
        home = self.folder / "home"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(self.folder / f"before-{upto}", home)
        return home

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
    assert matrix.trouble(upto, *matrix.points(upto)) == {}


@pytest.mark.crash
@pytest.mark.rule("LOT-20")
@pytest.mark.rule("LOT-9")
@pytest.mark.parametrize("upto", STAGES)
def test_after_a_death_at_any_point_the_next_life_leaves_what_an_undisturbed_one_does(
    upto: Upto, matrix: Matrix
) -> None:
    wrong = [matrix.trouble(upto, case) for case in matrix.cases(upto)]
    assert [trouble for trouble in wrong if trouble] == []
