"""Operators that are recomputed inside a view: the results equal Spark, and the rest stays incremental."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.integration import views_oracle
from tests.integration.views_kernels import Kernels
from tests.integration.views_queries import CUT, TOP
from tidemill.events import Event
from tidemill.testing import Case, Judge
from tidemill.views.certify.equality import equality_of
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.steps.events import StepTimed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.rule("DBSP-13", "DBSP-15", "DBSP-17")
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(tuple(CUT)[::3], id="some"),
        pytest.param(tuple(CUT)[1::3], id="more", marks=pytest.mark.crash),
        pytest.param(tuple(CUT)[2::3], id="rest", marks=pytest.mark.crash),
    ],
)
def test_operators_that_are_recomputed_inside_a_view_equal_spark_after_every_step(
    spark: Any, tmp_path: Path, names: tuple[str, ...]
) -> None:
    steps = views_oracle.steps(spark)
    with views_oracle.stage(spark, {}) as tables:
        outputs = {name: rewrite(views_oracle.compiled(spark, tables, CUT[name]).output) for name in names}
        kinds = dict.fromkeys(views_oracle.TABLES, "changes")
        kernels = Kernels(spark, tmp_path, views_oracle.TABLES, outputs, kinds=kinds)
        cases = [
            Case(name, CUT[name], kernels.maintained(name), equality_of(outputs[name])) for name in names
        ]
        assert kernels.group.reasons == {}
        assert all(kernels.group.cuts[name] for name in names), "every query has a recomputed operator"
        verdict = Judge(spark, views_oracle.TABLES, batch=60).run(cases, steps)
    assert verdict, str(verdict)
    assert verdict.compared == len(names) * len(steps)
    assert kernels.loads == 1, "only the first step reads complete inputs"


@pytest.mark.rule("DBSP-13", "DBSP-14", "DBSP-17")
def test_limits_equal_spark_after_every_step(spark: Any, tmp_path: Path) -> None:
    steps = views_oracle.steps(spark)
    with views_oracle.stage(spark, {}) as tables:
        outputs = {
            name: rewrite(views_oracle.compiled(spark, tables, sql).output) for name, sql in TOP.items()
        }
        kinds = dict.fromkeys(views_oracle.TABLES, "changes")
        kernels = Kernels(spark, tmp_path, views_oracle.TABLES, outputs, kinds=kinds)
        cases = [
            Case(name, sql, kernels.maintained(name), equality_of(outputs[name])) for name, sql in TOP.items()
        ]
        assert kernels.group.reasons == {}
        assert not any(kernels.group.cuts.values())
        verdict = Judge(spark, views_oracle.TABLES, batch=60).run(cases, steps)
    assert verdict, str(verdict)
    assert verdict.compared == len(TOP) * len(steps)
    assert kernels.loads == 1, "only the first step reads complete inputs"


@pytest.mark.rule("DBSP-17")
def test_a_step_reads_only_the_stored_input_of_a_recomputed_operator(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("shop", home=tmp_path / "home", spark=spark) as shop:
        orders = shop.dataset("orders", "region STRING, amount BIGINT", deletes=True)
        view = shop.view(
            "ranks",
            "SELECT region, total, percentile(total, 1.0) OVER () AS most"
            " FROM (SELECT region, sum(amount) AS total FROM orders GROUP BY region)",
        )
        orders.append([(f"r{n % 5}", n) for n in range(1000)])
        assert shop.run().ok
        orders.append([("r0", 10_000)])
        events: list[Event] = []
        assert shop.run(emit=events.append).ok
        (timed,) = [event for event in events if isinstance(event, StepTimed)]
        assert timed.load_s == 0
        assert (timed.changed_rows, timed.recomputed_rows) == (1, 5)
        assert timed.incremental_share == 1 / 6
        assert view.df().where("total = most").collect()[0]["region"] == "r0"
        explanation = view.explain()
        assert explanation.json()["runs"] == "partly incremental"
        (cut,) = explanation.cuts
        assert cut.kind == "window"
        assert 5 <= cut.rows <= 7, "the change of a group may not be merged yet"
        assert 0 < explanation.incremental_share < 1
        assert f"window (about {cut.rows} rows): " in explanation.text()

        orders.delete([(f"r{n % 5}", n) for n in range(1000)] + [("r0", 10_000)])
        assert shop.run().ok
        assert view.df().count() == 0
