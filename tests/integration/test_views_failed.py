"""A view that fails on a row is set aside; the other views of its group continue, and it resumes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill import crash
from tidemill.cli import main
from tidemill.errors import NothingYet, UsageError
from tidemill.pipeline import view_retries
from tidemill.pipeline.reader import failed
from tidemill.pipeline.status import status_of
from tidemill.views.spark.execution import SETTING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("assumed_certificates")

DECLARED = """
import tidemill as tm

p = tm.Pipeline("p", home="{home}")
p.dataset("t", "id INT, k INT")
p.view("bad", "SELECT id, 10 DIV k AS r FROM t")
p.view("reader", "SELECT r, count(*) AS n FROM bad GROUP BY r")
p.view("good", "SELECT count(*) AS n FROM t")
"""

RANKS = """
SELECT g, v, count_if(v > 0) OVER (ORDER BY v DESC) AS place
FROM (SELECT g, {value} AS v FROM t GROUP BY g)
"""


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in table.df().collect())


def followed(table: Any, after: int) -> list[tuple[Any, ...]]:
    """Return the changes after a position: the columns and the weight."""
    names = [*table.df().columns, "_weight"]
    return sorted(tuple(row) for row in table.changes(after=after).select(*names).collect())


@pytest.mark.rule("DBSP-40")
@pytest.mark.parametrize("place", ["runner", "spark"])
def test_a_row_that_fails_one_view_stops_only_that_view_and_its_readers(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """One view follows the change, and one is recomputed."""
    monkeypatch.setenv(SETTING, place)
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        table = pipeline.dataset("t", "id INT, k INT", deletes=True)
        bad = pipeline.view("bad", "SELECT id, 10 DIV k AS r FROM t")
        full = pipeline.view("full", "SELECT id, 10 DIV k AS r FROM t", refresh="full")
        reader = pipeline.view("reader", "SELECT r, count(*) AS n FROM bad GROUP BY r")
        good = pipeline.view("good", "SELECT k, count(*) AS n FROM t GROUP BY k")
        table.append([(1, 2)])
        assert pipeline.run().ok
        at = bad.position
        table.append([(2, 0), (3, 5)])
        report = pipeline.run()
        assert set(report.failures) == {"view:p/bad", "view:p/full", "view:p/reader"}
        for view in ("bad", "full"):
            assert "DIVIDE_BY_ZERO" in report.failures[f"view:p/{view}"]
            assert 'row {"id": 2, "k": 0}' in report.failures[f"view:p/{view}"]
        assert rows(good) == [(0, 1), (2, 1), (5, 1)]
        assert (rows(bad), rows(full), rows(reader)) == ([(1, 5)], [(1, 5)], [(5, 1)])
        assert (bad.position, full.position, reader.position) == (at, at, at)
        assert not status_of(pipeline).ok
        table.append([(4, 10)])
        assert not pipeline.run().ok
        assert rows(bad) == rows(full) == [(1, 5)]
        table.delete([(2, 0)])
        assert pipeline.run().ok
        assert rows(bad) == rows(full) == [(1, 5), (3, 2), (4, 1)]
        assert rows(reader) == [(1, 1), (2, 1), (5, 1)]
        for view in (bad, full):
            assert followed(view, at) == [(3, 2, 1), (4, 1, 1)]
            (inputs,) = {tuple(row[0]) for row in view.changes(after=at).select("_inputs").collect()}
            assert len(inputs) == 3, "the changes cover the steps without the view"
        table.append([(5, 2)])
        assert pipeline.run().ok
        assert rows(reader) == [(1, 1), (2, 1), (5, 2)]
        assert bad.position == full.position == good.position


@pytest.mark.rule("DBSP-40")
def test_views_that_fail_in_their_first_load_at_different_rows_resume_one_by_one(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        table = pipeline.dataset("t", "id INT, k INT, text STRING", deletes=True)
        divides = pipeline.view("divides", "SELECT id, 10 DIV k AS r FROM t")
        casts = pipeline.view("casts", "SELECT sum(CAST(text AS INT)) AS s FROM t")
        counts = pipeline.view("counts", "SELECT count(*) AS n FROM t")
        table.append([(1, 0, "7"), (2, 5, "seven"), (3, 2, "3")])
        report = pipeline.run()
        assert set(report.failures) == {"view:p/divides", "view:p/casts"}
        assert rows(counts) == [(3,)]
        with pytest.raises(NothingYet, match="DIVIDE_BY_ZERO"):
            divides.df()
        table.delete([(1, 0, "7")])
        assert set(pipeline.run().failures) == {"view:p/casts"}
        assert rows(divides) == [(2, 2), (3, 5)]
        table.delete([(2, 5, "seven")])
        assert pipeline.run().ok
        assert (rows(casts), rows(counts)) == ([(3,)], [(1,)])


@pytest.mark.rule("DBSP-40")
def test_a_group_of_which_all_views_fail_resumes_with_right_traces(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        table = pipeline.dataset("t", "id INT, k INT", deletes=True)
        view = pipeline.view("v", "SELECT sum(10 DIV k) AS s, count(*) AS n FROM t")
        table.append([(1, 2)])
        assert pipeline.run().ok
        table.append([(2, 0)])
        assert not pipeline.run().ok
        table.append([(3, 5)])
        assert not pipeline.run().ok
        table.delete([(2, 0)])
        assert pipeline.run().ok
        assert rows(view) == [(7, 2)]
        table.append([(4, 10)])
        assert pipeline.run().ok
        assert rows(view) == [(8, 3)]


@pytest.mark.rule("DBSP-40")
def test_an_operator_lets_a_view_pass_over_the_lot_on_which_it_fails(
    tmp_path: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        table = pipeline.dataset("t", "id INT, k INT")
        bad = pipeline.view("bad", "SELECT id, 10 DIV k AS r FROM t")
        reader = pipeline.view("reader", "SELECT r, count(*) AS n FROM bad GROUP BY r")
        good = pipeline.view("good", "SELECT count(*) AS n FROM t")
        table.append([(1, 2)])
        table.append([(2, 0), (3, 5)])
        assert not pipeline.run().ok
        with pytest.raises(UsageError, match="waits for the view bad"):
            view_retries.pass_over(pipeline, "reader")
        with pytest.raises(UsageError, match="a step computes a view as a whole"):
            pipeline.retry(bad, lots=[table.lots()[1].lot])
        assert not failed(pipeline)["bad"].requested
        with crash.armed("views.retry.before"), pytest.raises(crash.Crashed):
            view_retries.pass_over(pipeline, "bad")
        assert not failed(pipeline)["bad"].passed
        with crash.armed("views.retry.after"), pytest.raises(crash.Crashed):
            view_retries.retry(pipeline, "bad")
        assert failed(pipeline)["bad"].requested
        file = tmp_path / "p.py"
        file.write_text(DECLARED.format(home=tmp_path / "home"))
        assert main(["retry", "bad", "--skip", "-f", str(file), "--json"]) == 0
        (passed,) = json.loads(capsys.readouterr().out)["passed"]
        assert (passed["dataset"], passed["used"]) == ("t", None)
        assert pipeline.run().ok
        assert (rows(bad), rows(reader), rows(good)) == ([(1, 5)], [(5, 1)], [(3,)])
        assert bad.explain().runs.endswith(f"it passes over t {passed['lot']}")
        assert reader.explain().runs.endswith("it reads the view bad, which is recomputed")
        table.append([(4, 1)])
        assert pipeline.run().ok
        assert (rows(bad), rows(reader), rows(good)) == ([(1, 5), (4, 10)], [(5, 1), (10, 1)], [(4,)])


@pytest.mark.rule("DBSP-17", "DBSP-40")
def test_a_view_with_a_recomputed_operator_returns_to_its_circuit_when_it_reads_the_lot_again(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    with tm.Pipeline("p", home=tmp_path / "home", spark=spark) as pipeline:
        table = pipeline.dataset("t", "g STRING, k INT")
        ranks = pipeline.view("ranks", RANKS.format(value="sum(10 DIV k)"))
        counts = pipeline.view("counts", RANKS.format(value="count(*)"))
        table.append([("a", 1), ("b", 2)])
        assert pipeline.run().ok
        table.append([("b", 0)])
        assert set(pipeline.run().failures) == {"view:p/ranks"}
        (passed,) = view_retries.pass_over(pipeline, "ranks")
        assert pipeline.run().ok
        assert (rows(ranks), rows(counts)) == ([("a", 10, 1), ("b", 5, 2)], [("a", 1, 2), ("b", 2, 1)])
        explanation = ranks.explain()
        assert (explanation.json()["runs"], explanation.cuts) == ("full", ())
        assert counts.explain().json()["runs"] == "partly incremental"
        table.replace(passed.lot, [("b", 1)])
        assert pipeline.run().ok
        assert rows(ranks) == [("a", 10, 2), ("b", 15, 1)]
        assert ranks.explain().json()["runs"] == "partly incremental"
        table.append([("a", 1)])
        assert pipeline.run().ok
        assert (rows(ranks), rows(counts)) == ([("a", 20, 1), ("b", 15, 2)], [("a", 2, 2), ("b", 2, 2)])
