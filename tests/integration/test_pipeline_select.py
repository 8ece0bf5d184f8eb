"""Several sources fill one dataset, and parts of a pipeline run alone (`--select`)."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidemill.cli import main
from tidemill.events import Event
from tidemill.pipeline.run_events import RunPlanned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = """
import tidemill as tm

shop = tm.Pipeline("shop", home="home")
orders = shop.dataset("orders", "id BIGINT, region STRING, _file STRING, _line BIGINT, _arrived_at TIMESTAMP")
where = {"file_column": "_file", "line_column": "_line", "arrived_column": "_arrived_at", "settle_s": 0}
shop.source(orders, tm.folder("landing/*.json", **where))
shop.source(orders, tm.folder("landing/*.csv", **where), name="csv")


@shop.arc(reads=orders, writes="clean")
def clean(df):
    return df.where("id > 0")


shop.view("n", "SELECT region, count(*) AS n FROM clean GROUP BY region")
shop.view("m", "SELECT count(*) AS m FROM clean", group="other")
"""


def test_sources_of_two_formats_and_runs_of_a_part(
    tmp_path: Path,
    spark: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(FILE)
    (tmp_path / "tidemill.toml").write_text('pipeline = "shop.py:shop"\n')
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "a.json").write_text('{"id": 1, "region": "n"}\n{"id": "x"}\n')
    (landing / "b.csv").write_text("region,id\ns,2\nn,3\n")

    def shown(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*arguments, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    from tidemill.pipeline import pipeline_file

    shop = pipeline_file.find()
    shop.use_spark(spark)
    events: list[Event] = []
    with shop:
        # the sources alone
        assert shop.run(select="source:*", emit=events.append).ok
        planned = next(event for event in events if isinstance(event, RunPlanned))
        assert (sorted(planned.sources), planned.arcs, planned.views) == (["orders", "orders#csv"], 0, 0)
        rows = {row["id"]: (row["_file"], row["_line"]) for row in shop["orders"].df().collect()}
        assert rows == {1: ("a.json", 1), 2: ("b.csv", 2), 3: ("b.csv", 3)}
        assert all(row["_arrived_at"] for row in shop["orders"].df().collect())
        (bad,) = shop["orders_quarantine"].df().collect()
        assert (bad["file"], bad["line"]) == ("a.json", 2)
        assert shop["clean"].position == 0

        # what a view needs, but not another group
        assert shop.run(select="+n", exclude="source:*").ok
        assert {row["region"]: row["n"] for row in shop["n"].df().collect()} == {"n": 2, "s": 1}
        assert shop["m"].position == 0

        # a part of a status, of a list and of a plan
        runs = shown("status", "--select", "source:* view:m")["runs"]
        assert [(run["kind"], run["name"]) for run in runs] == [
            ("source", "orders"),
            ("source", "orders#csv"),
            ("views", "other"),
        ]
        assert [table["name"] for table in shown("ls", "--select", "clean+")["tables"]] == ["clean", "n", "m"]
        stages = shown("plan", "--select", "orders#csv", "--select", "m")["stages"]
        assert [(stage["what"], stage["name"]) for stage in stages] == [
            ("source", "orders#csv"),
            ("views", "main, other"),
            ("circuit", "m"),
        ]
        error = shown("ls", "--select", "cleam", code=1)["error"]
        assert (error["code"], error["hint"]) == ("bad-selection", "did you mean clean?")

        # the rest
        assert shop.run().ok
        assert shop["m"].df().collect()[0]["m"] == 3
        assert shop.retry("orders") == []
