"""The number of ranges changes while a pipeline runs: no state is rewritten, and nothing else changes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import tidemill as tm
from tidemill.cli import main
from tidemill.errors import RoundNotReady
from tidemill.pipeline.scaling import scale
from tidemill.views.steps import commits, groups
from tidemill.views.trace.version_file import read_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

FILE = """
import tidemill as tm

shop = tm.Pipeline("shop", home="home")
orders = shop.dataset("orders", "id BIGINT, region STRING, amount DECIMAL(10,2)", deletes=True)
regions = shop.dataset("regions", "region STRING, name STRING", key="region")
shop.view("totals", "SELECT region, count(*) AS n, sum(amount) AS s FROM orders GROUP BY region", group="a")
shop.view("named", "SELECT o.id, r.name FROM orders o JOIN regions r ON o.region = r.region", group="b")
"""
COUNTS = [0, 2, 8, 1, 0]


def write(pipeline: tm.Pipeline, number: int) -> None:
    orders, regions = cast(tm.Dataset, pipeline["orders"]), cast(tm.Dataset, pipeline["regions"])
    rows = [(100 * number + n, f"r{n % 20}", f"{n}.25") for n in range(60)]
    orders.append(rows)
    if number:
        orders.delete([(100 * (number - 1), "r0", "0.25")])
    regions.upsert([(f"r{n}", f"name {number}") for n in range(number, 20, 3)])


def steps(pipeline: tm.Pipeline) -> dict[str, list[tuple[Any, ...]]]:
    """The digests of the changes and of the table at each step of each group."""
    context = pipeline.context
    return {
        group: [
            (row.step, [(output.view, output.rows, output.digest, output.content) for output in row.outputs])
            for row in context.store.run(
                lambda tx, group=group: commits.rows(tx, context.keys, pipeline.name, group, 0, 10**9, 1000)
            )
        ]
        for group in ("a", "b")
    }


def state(pipeline: tm.Pipeline) -> dict[str, int]:
    """The objects of the groups' state, with their sizes."""
    return {info.key: info.size for info in pipeline.context.objects.list("data/name=views")}


def tasks(pipeline: tm.Pipeline, before: dict[str, int]) -> int:
    """How many ranges wrote state since then."""
    names = {
        key.rpartition("/")[2] for key in state(pipeline).keys() - before.keys() if key.endswith(".runs")
    }
    return len({name.split("-")[1] for name in names})


def opened(folder: Path, spark: "SparkSession") -> tm.Pipeline:
    folder.mkdir()
    (folder / "shop.py").write_text(FILE)
    (folder / "tidemill.toml").write_text('pipeline = "shop.py:shop"\n')
    from tidemill.pipeline import pipeline_file

    pipeline = pipeline_file.load("shop.py:shop", folder)
    pipeline.use_spark(spark)
    return pipeline


@pytest.mark.rule("DBSP-3", "DBSP-1", "DBSP-42")
def test_ranges_are_doubled_and_reduced_and_no_byte_of_state_is_rewritten(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path / "fixed", spark) as fixed, opened(tmp_path / "scaled", spark) as scaled:
        monkeypatch.chdir(tmp_path / "scaled")
        used = []
        for number, ranges in enumerate(COUNTS):
            for pipeline in (fixed, scaled):
                write(pipeline, number)
            before = state(scaled)
            if number:
                capsys.readouterr()
                assert main(["scale", "--ranges", str(ranges), "--json"]) == 0
                result = json.loads(capsys.readouterr().out.splitlines()[-1])
                assert (result["before"], result["ranges"]) == (COUNTS[number - 1], ranges)
                assert state(scaled) == before, "scaling neither writes nor deletes state"
            kept = read_files(scaled)
            for pipeline in (fixed, scaled):
                assert pipeline.run().ok
            used.append(tasks(scaled, before))
            assert kept <= state(scaled).keys()
        assert steps(scaled) == steps(fixed)
        assert used[1] == 2
        assert used[2] == 8
        assert used[0] == used[3] == used[4] == 1
        snapshots = [
            {name: sorted(map(tuple, frame.collect())) for name, frame in pipeline.snapshot().items()}
            for pipeline in (fixed, scaled)
        ]
        assert snapshots[0] == snapshots[1]
        write(scaled, 9)
        scaled.pause("named")
        assert scaled.run().ok
        with pytest.raises(RoundNotReady, match="did not reach step") as caught:
            scale(scaled, 4, wait_s=0)
        assert "tidemill run" in caught.value.hint
        scaled.resume("named")
        assert scaled.run().ok, "a round that failed has changed nothing"


def read_files(pipeline: tm.Pipeline) -> set[str]:
    context = pipeline.context
    declared = context.store.run(lambda tx: groups.listed(tx, context.keys, pipeline.name))
    versions = [group.version for group in declared if group.version]
    return {*versions}.union(*(read_version(context.objects, version).files() for version in versions))
