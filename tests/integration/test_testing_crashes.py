"""The fixture `crash`: it interrupts a user's pipeline, and notices tables that differ."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.errors import UsageError
from tidemill.testing.crash_tests import CrashTests
from tidemill.testing.pipeline_clock import PipelineClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")


def declared(folder: Path, spark: "SparkSession", function: Any) -> tuple[tm.Pipeline, CrashTests]:
    clock = PipelineClock()
    pipeline = tm.Pipeline("p", home=folder / "home", spark=spark, clock=clock)
    orders = pipeline.dataset("orders", "id BIGINT")
    pipeline.arc(reads=orders, writes="clean", name="clean")(function)
    pipeline.view("total", "SELECT count(*) AS n, sum(id) AS s FROM clean")
    pipeline.move_to(folder)
    clock.before_jump = pipeline.close
    return pipeline, CrashTests(pipeline, clock)


def write(pipeline: tm.Pipeline) -> None:
    pipeline["orders"].append([(1,), (2,)])  # type: ignore[attr-defined]


def test_a_pipeline_that_is_interrupted_leaves_the_tables_of_an_undisturbed_one(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    pipeline, crash = declared(tmp_path, spark, lambda df: df.where("id > 1"))
    with pipeline:
        points = ["arcs.begin.after", "publish.commit.before", "views.commit.after"]
        assert crash(write, at=points) == points
        with pytest.raises(UsageError, match=r"does not reach the crash point no\.such"):
            crash(write, at="no.such")


def test_an_arc_that_returns_other_rows_in_its_next_attempt_is_noticed(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    calls = itertools.count()

    def counted(df: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as sf

        return df.select((sf.col("id") + 1000 * next(calls)).alias("id"))

    pipeline, crash = declared(tmp_path, spark, counted)
    with pipeline, pytest.raises(AssertionError, match=r"after crashes at .*, the table clean"):
        crash(write, at="publish.commit.before")
