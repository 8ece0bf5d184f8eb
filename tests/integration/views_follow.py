"""Run the kernels of several views of one group in both places, and compare every view with plain Spark."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration import views_oracle
from tests.integration.views_kernels import Kernels
from tidemill.testing import Step
from tidemill.views.certify.table_contents import TableContents
from tidemill.views.circuit.rewrites import rewrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def follow(
    spark: "SparkSession",
    folder: Path,
    tables: Mapping[str, str],
    views: Mapping[str, str],
    steps: Sequence[Step],
    remaining: Step | None = None,
) -> Kernels:
    """Run all steps in this process and as Spark jobs. Every view that has a chain must equal its query.

    All tables accept deletes. Returns the kernels, with the reasons of the views without a chain.

    - remaining: the rows of the tables after all steps; None to compute them from the steps.
    """
    contents = TableContents(tables)
    with views_oracle.stage(spark, {}, tables) as names:
        outputs = {
            view: rewrite(views_oracle.compiled(spark, names, sql).output) for view, sql in views.items()
        }
        kernels = Kernels(spark, folder, tables, outputs, kinds=dict.fromkeys(tables, "changes"))
        jobs = kernels.fork("jobs", 2)
        jobs.runs_jobs = True
        for step in steps:
            kernels.step(step)
            jobs.step(step)
        for step in steps if remaining is None else [remaining]:
            contents.apply(step)
        for name in tables:
            contents.frame(spark, name).createOrReplaceTempView(name)
        compared = sorted(kernels.group.views)
        frames = []
        for view in compared:
            query = spark.sql(views[view])
            frames += [query, *(each.frame(view).toDF(*query.columns) for each in (kernels, jobs))]
        rows = views_oracle.bags_of(frames)
    for view, expected, in_process, on_spark in zip(compared, rows[::3], rows[1::3], rows[2::3], strict=True):
        assert in_process == expected, f"{view}, in the runner"
        assert on_spark == expected, f"{view}, on Spark"
    return kernels
