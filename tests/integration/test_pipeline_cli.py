"""The commands of a pipeline: their output as text and JSON, their exit codes, and how they find it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests import shop
from tidemill.cli import main
from tidemill.errors import PipelineNotFound
from tidemill.pipeline import pipeline_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = """
from pyspark.sql import SparkSession
import tidemill as tm

shop = tm.Pipeline("shop", home={home!r}, spark=SparkSession.getActiveSession())
orders = shop.dataset("orders", "id BIGINT, region STRING")


@shop.arc(reads=orders, writes="checked", retries=0)
def check(df):
    if df.where("region = 'bad'").count() and not {fixed!r}:
        raise ValueError("a bad region")
    return df


total = shop.view("total", "SELECT region, count(*) AS n FROM orders GROUP BY region")
"""
Capture = pytest.CaptureFixture[str]


class Folder:
    """A folder with a pipeline file and its configuration, in which tests run commands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("shop.py", FILE.format(home=str(path / "home"), fixed=""))
        self.write("tidemill.toml", 'pipeline = "shop.py:shop"\n')

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(exist_ok=True, parents=True)
        (self.path / name).write_text(text)
        pipeline_file.sys.modules.pop(f"tidemill_pipeline_{Path(name).stem}", None)

    def json(self, capsys: Capture, *arguments: str, code: int = 0) -> Any:
        """Run a command with --json, check its exit code, and return its result."""
        capsys.readouterr()
        assert main([*arguments, "--json"]) == code
        out = capsys.readouterr().out
        assert len(out.splitlines()) == 1
        return json.loads(out)

    def text(self, capsys: Capture, *arguments: str, code: int = 0) -> str:
        """Run a command, check its exit code, and return its standard output and standard error."""
        capsys.readouterr()
        assert main(list(arguments)) == code
        captured = capsys.readouterr()
        return captured.out + captured.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Folder(tmp_path)


def test_the_commands_of_a_pipeline_from_its_plan_to_a_retry(
    folder: Folder, spark: "SparkSession", capsys: Capture
) -> None:
    # nothing has happened yet
    plan = folder.json(capsys, "plan")
    assert plan["pipeline"] == "shop"
    stages = {(stage["what"], stage["name"]): stage["status"] for stage in plan["stages"]}
    assert stages["dataset", "orders"] == stages["arc", "check"] == stages["views", "main"] == "new"
    assert all("shop.py:" in stage["where"] for stage in plan["stages"])
    assert "shop.py:" in folder.text(capsys, "plan")
    status = folder.json(capsys, "status")
    assert {run["state"] for run in status["runs"]} == {"new"}
    assert "never run" in folder.text(capsys, "status")
    assert folder.json(capsys, "lots", "orders") == {"table": "orders", "lots": []}
    assert "orders has no lots yet" in folder.text(capsys, "lots", "orders")
    missing = folder.json(capsys, "query", "SELECT * FROM orders", code=1)
    assert missing["error"]["code"]
    assert "has no lots yet" in missing["error"]["message"]
    assert folder.json(capsys, "retry") == {"requested": [], "views": [], "passed": []}
    assert "no lot has failed" in folder.text(capsys, "retry")

    # one of two lots fails
    pipeline = pipeline_file.find()
    orders = pipeline["orders"]
    orders.append([(1, "n"), (2, "s")])  # type: ignore[attr-defined]
    orders.append([(3, "bad")])  # type: ignore[attr-defined]
    assert not pipeline.run().ok
    good, bad = (lot.lot for lot in orders.lots())
    status = folder.json(capsys, "status", code=1)
    assert status["ok"] is False
    (arc,) = (run for run in status["runs"] if run["kind"] == "arc")
    assert (arc["name"], arc["partial"], arc["behind"]) == ("check", 1, 0)
    assert "a bad region" in arc["notes"][0]
    text = folder.text(capsys, "status", code=1)
    assert "1 lot failed" in text
    assert "tidemill retry" in text
    listed = folder.json(capsys, "ls")["tables"]
    assert {table["name"]: table["position"] for table in listed} | {"total": 0} == {
        "orders": 2,
        "checked": 1,
        "total": 0,
    }
    assert "checked" in folder.text(capsys, "ls")
    lots = folder.json(capsys, "lots", "checked")["lots"]
    assert {lot["lot"]: lot["state"] for lot in lots} == {good: "complete", bad: "partial"}
    drawn = folder.text(capsys, "lots", "checked")
    assert "complete: 1" in drawn
    assert "failed (finished parts are kept): 1" in drawn
    assert "a bad region" in drawn
    assert good in folder.text(capsys, "lots", "checked", "--list")
    assert len(folder.json(capsys, "lots", "total")["lots"]) >= 1

    # reading
    result = folder.json(capsys, "query", "SELECT region, n FROM total ORDER BY region")
    assert result == {"columns": ["region", "n"], "rows": [["bad", 1], ["n", 1], ["s", 1]], "more": False}
    assert folder.json(capsys, "query", "SELECT * FROM orders", "--limit", "2")["more"] is True
    assert "region" in folder.text(capsys, "query", "SELECT * FROM total")
    for sql in (
        "SELECT * FROM nowhere",
        "SELEC 1",
        "SELECT nothing FROM orders",
        "SELECT id / 0 FROM orders",
    ):
        assert folder.json(capsys, "query", sql, code=1)["error"]["message"], sql

    # invalid requests
    assert folder.json(capsys, "lots", "nowhere", code=1)["error"]["code"]
    assert folder.json(capsys, "retry", "nothing", code=1)["error"]["code"]
    assert folder.json(capsys, "retry", "check", good, code=1)["error"]["code"]
    assert folder.json(capsys, "lots", code=2)["error"]["code"] == "usage"
    assert folder.json(capsys, "query", "SELECT 1", "--limit", "0", code=2)["error"]["code"] == "usage"
    pipeline.close()

    # a retry after a fix: the code has changed, so the whole lot is processed again
    folder.write("shop.py", FILE.format(home=str(folder.path / "home"), fixed="yes"))
    assert folder.json(capsys, "retry")["requested"] == [{"arc": "check", "lot": bad}]
    assert "the next run retries lot" in folder.text(capsys, "retry")
    again = {stage["name"]: stage["status"] for stage in folder.json(capsys, "plan")["stages"]}
    assert again["check"] == "changed"
    pipeline = pipeline_file.find()
    assert pipeline.run().ok
    assert folder.json(capsys, "status")["ok"] is True
    assert [row[0] for row in shop.table(pipeline, "checked")] == [1, 2, 3]
    pipeline.close()


# --- find the pipeline

OTHER = """
import tidemill as tm
one = tm.Pipeline("one")
two = tm.Pipeline("two")
number = 7
"""


EVOLVING = """
from pyspark.sql import SparkSession
import tidemill as tm

shop = tm.Pipeline("shop", home={home!r}, spark=SparkSession.getActiveSession())
orders = shop.dataset("orders", "{columns}", drift="{drift}")
other = shop.dataset("other", "id BIGINT")
shop.source(orders, tm.folder("in/*.json", settle_s=0))


@shop.arc(reads=orders, writes="copies")
def copy(df):
    return df


@shop.arc(reads=other, writes="others")
def copy_others(df):
    return df


shop.view("n", "SELECT count(*) AS n FROM copies")
{more}
"""


def test_an_arc_that_passes_columns_on_gains_the_columns_that_its_source_gained(
    folder: Folder, spark: "SparkSession", capsys: Capture
) -> None:
    def write(columns: str = "id BIGINT", drift: str = "evolve", more: str = "") -> None:
        home = str(folder.path / "home")
        folder.write("shop.py", EVOLVING.format(home=home, columns=columns, drift=drift, more=more))

    def run() -> bool:
        return pipeline_file.find().run().ok

    write(more="shop.view('old', 'SELECT id FROM copies')")
    folder.write("in/1.json", '{"id": 1}')
    assert run()
    folder.write("in/2.json", '{"id": 2, "extra": 5}')
    assert run()
    folder.write("in/3.json", '{"id": 3, "extra": 6}')
    write()
    plan = folder.json(capsys, "plan")
    stages = {(stage["what"], stage["name"]): stage["status"] for stage in plan["stages"]}
    assert stages["dataset", "copies"] == "changed"
    assert stages["dataset", "others"] == "same"
    assert stages["view", "old"] == "removed"
    assert plan["refused"] == []
    assert run()
    shop = pipeline_file.find()
    assert {row["id"]: row["extra"] for row in shop["copies"].df().collect()} == {1: None, 2: None, 3: 6}
    plan = folder.json(capsys, "plan")
    assert {stage["status"] for stage in plan["stages"] if stage["what"] != "certify"} == {"same"}

    write(columns="id STRING, extra BIGINT", drift="freeze")
    plan = folder.json(capsys, "plan", code=1)
    stages = {(stage["what"], stage["name"]): stage["status"] for stage in plan["stages"]}
    assert stages["dataset", "orders"] == stages["dataset", "copies"] == "refused"
    assert stages["dataset", "others"] == "same"
    assert "id was bigint and cannot become string" in plan["refused"][0]["message"]
    text = folder.text(capsys, "plan", code=1)
    assert "refused" in text
    assert "error: shop.py:" in text


def test_an_error_in_a_query_is_printed_without_a_stack_trace(
    folder: Folder, spark: "SparkSession", capfd: Capture
) -> None:
    pipeline_file.find()["orders"].append([(1, "n")])  # type: ignore[attr-defined]
    assert main(["query", "SELECT nope FROM orders"]) == 1
    text = "".join(capfd.readouterr())
    assert "nope" in text
    assert "SQLQueryContextLogger" not in text
    assert "Traceback" not in text
    folder.write(
        "shop.py", FILE.format(home=str(folder.path / "home"), fixed="").replace("count(*)", "max(nope)")
    )
    assert main(["plan"]) == 1
    text = "".join(capfd.readouterr())
    assert "nope" in text
    assert "SQLQueryContextLogger" not in text


def test_compact_names_a_table_that_does_not_exist(
    folder: Folder, spark: "SparkSession", capsys: Capture
) -> None:
    missing = folder.json(capsys, "compact", "order", code=1)["error"]
    assert "no table 'order'" in missing["message"]
    assert missing["hint"] == "did you mean orders?"


def test_a_pipeline_is_found_by_a_file_by_a_module_and_by_the_configuration_above(folder: Folder) -> None:
    folder.write("deep/er/x.txt", "")
    folder.write("pack/__init__.py", "")
    folder.write("pack/flow.py", "import tidemill as tm\nonly = tm.Pipeline('packed')\n")
    assert pipeline_file.find(start=folder.path / "deep" / "er").name == "shop"
    assert pipeline_file.find("shop.py").name == "shop"  # its only pipeline
    assert pipeline_file.find("shop.py:shop").name == "shop"
    assert pipeline_file.find("pack.flow:only").name == "packed"
    (folder.path / "tidemill.toml").unlink()
    folder.write("pyproject.toml", '[tool.tidemill]\npipeline = "pack.flow"\n')
    assert pipeline_file.find().name == "packed"
    folder.write("other.py", OTHER)
    assert pipeline_file.find("other.py:two").name == "two"


@pytest.mark.parametrize(
    ("files", "target", "message"),
    [
        ({"tidemill.toml": "pipeline = 3"}, None, r"tidemill\.toml: the setting `pipeline` is missing"),
        ({"tidemill.toml": "pipeline ="}, None, r"tidemill\.toml cannot be read"),
        ({"tidemill.toml": 'pipeline = "gone.py:x"'}, None, r"the file .*gone\.py does not exist"),
        (
            {"pyproject.toml": "[tool.tidemill]\npipeline = 1"},
            None,
            r"pyproject\.toml: the setting `pipeline` is missing",
        ),
        ({}, "gone.py", r"the file .*gone\.py does not exist"),
        ({}, "gone.module:x", "gone.module:x cannot be imported: ModuleNotFoundError"),
        ({"other.py": OTHER}, "other.py", "has several pipelines: one, two"),
        ({"other.py": OTHER}, "other.py:number", "number has type int"),
        ({"other.py": OTHER}, "other.py:three", "three does not exist"),
        ({"bad.py": "x = 1\n1 / 0\n"}, "bad.py", r"ZeroDivisionError: division by zero \(.*bad\.py:2\)"),
        ({"bad.py": "def (\n"}, "bad.py", "SyntaxError"),
        ({"bad.py": "import sys\nsys.exit(3)\n"}, "bad.py", "SystemExit|ended"),
        ({"empty.py": ""}, "empty.py", "has no pipeline"),
    ],
)
def test_a_pipeline_that_is_not_found_is_an_error_with_the_reason(
    files: dict[str, str], target: str | None, message: str, folder: Folder, capsys: Capture
) -> None:
    if target is None:
        (folder.path / "tidemill.toml").unlink()
    for name, text in files.items():
        folder.write(name, text)
    with pytest.raises(PipelineNotFound, match=message):
        pipeline_file.find(target)
    options = ["-f", target] if target else []
    for command in (["ls"], ["status"], ["plan"], ["lots", "x"], ["retry"], ["query", "SELECT 1"]):
        answer = folder.json(capsys, *command, *options, code=1)
        assert answer["error"]["code"] == "pipeline-not-found", command


def test_a_run_of_a_pipeline_that_cannot_be_loaded_ends_with_the_reason(
    folder: Folder, capsys: Capture
) -> None:
    folder.write("shop.py", "1 / 0\n")
    answer = folder.json(capsys, "run", code=1)
    assert "ZeroDivisionError" in answer["error"]["message"]
    assert "shop.py:1" in answer["error"]["message"]
    folder.write("shop.py", "import os\nos._exit(7)\n")
    assert "ended the process with exit code 7" in folder.json(capsys, "run", code=1)["error"]["message"]
    assert folder.json(capsys, "run", "--threads", "0", code=2)["error"]["code"] == "usage"


def test_lots_are_replaced_and_removed_and_the_changes_are_shown(
    folder: Folder, spark: "SparkSession", capsys: Capture, tmp_path: Path
) -> None:
    first = pipeline_file.find()["orders"].append([(1, "north"), (2, "south")])  # type: ignore[attr-defined]
    assert folder.json(capsys, "changes", "orders")["position"] == 1

    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1, "region": "north"}\n\n{"id": 2, "region": "east"}\n')
    replaced = folder.json(capsys, "replace", "orders", first.lot, str(rows))
    assert (replaced["rows"], replaced["position"]) == (2, 2)
    changed = folder.json(capsys, "changes", "orders", "--after", "1")
    named = [dict(zip(changed["columns"], row, strict=True)) for row in changed["rows"]]
    assert sorted((row["region"], row["_weight"]) for row in named if row["id"] == 2) == [
        ("east", 1),
        ("south", -1),
    ]
    assert changed["position"] == 2
    assert "there are more rows" in folder.text(capsys, "changes", "orders", "--limit", "1")

    folder.json(capsys, "remove", "orders", first.lot, "--why", "a mistake")
    assert folder.json(capsys, "query", "SELECT * FROM orders")["rows"] == []

    parquet.write_table(pa.table({"id": [7], "region": ["west"]}), tmp_path / "rows.parquet")
    folder.json(capsys, "replace", "orders", first.lot, str(tmp_path / "rows.parquet"))
    assert folder.json(capsys, "query", "SELECT * FROM orders")["rows"] == [[7, "west"]]


def test_a_correction_that_is_not_possible_is_an_error(
    folder: Folder, capsys: Capture, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1}\nnot json\n')
    assert "rows.jsonl, line 2: " in folder.text(capsys, "replace", "orders", "0000000001", str(rows), code=1)
    (tmp_path / "rows.parquet").write_text("not parquet")
    path = str(tmp_path / "rows.parquet")
    assert "is not a Parquet file" in folder.text(capsys, "replace", "orders", "0000000001", path, code=1)
    assert "total is not a dataset" in folder.text(capsys, "remove", "total", "0000000001", code=1)
    assert "pass either lots" in folder.text(capsys, "replay", "checked", code=2)
    assert "pass either lots" in folder.text(capsys, "replay", "checked", "0000000001", "--all", code=2)


@pytest.mark.usefixtures("assumed_certificates")
def test_plan_says_what_a_run_would_rebuild_and_compares_with_another_home(
    folder: Folder, capsys: Capture, spark: "SparkSession"
) -> None:
    views = """
orders = shop.dataset("orders", "id BIGINT, region STRING")
shop.source(orders, tm.folder("landing/*.json"))
shop.view("total", "SELECT region, count(*) AS n FROM orders {where} GROUP BY region")
shop.view("most", "SELECT max(n) AS n FROM total")
"""
    head = FILE.format(home=str(folder.path / "home"), fixed="").partition("orders =")[0]
    folder.write("shop.py", head + views.format(where=""))
    folder.write("landing/a.json", '{"id": 1, "region": "x"}\n{"id": 2, "region": "y"}\n')
    planned = folder.json(capsys, "plan")
    assert [(cost["view"], cost["rebuilds"], cost["why"]) for cost in planned["costs"]] == [
        ("total", False, "it is new"),
        ("most", False, "it is new"),
    ]
    with pipeline_file.find() as pipeline:
        assert pipeline.run().ok
    assert folder.json(capsys, "plan", "--against", str(folder.path / "home"))["costs"] == []

    other = head.replace(str(folder.path / "home"), str(folder.path / "dev"))
    edited = (other + views.format(where="WHERE id > 0")).replace(
        'shop.source(orders, tm.folder("landing/*.json"))', ""
    )
    folder.write("shop.py", edited)
    planned = folder.json(capsys, "plan", "--against", str(folder.path / "home"), code=2)
    costs = {cost["view"]: cost for cost in planned["costs"]}
    assert {name: cost["why"] for name, cost in costs.items()} == {
        "total": "its query changed",
        "most": "it reads total, which is rebuilt",
    }
    assert all((cost["lots"], cost["rows"]) == (1, 2) and cost["size"] for cost in costs.values())
    assert ("removed", "source", "orders") in {
        (stage["status"], stage["what"], stage["name"]) for stage in planned["stages"]
    }
    text = folder.text(capsys, "plan", "--against", str(folder.path / "home"), code=2)
    assert "rebuild" in text
    assert "2 rows" in text
    assert not (folder.path / "dev" / "store.db").exists(), "only the other home is opened"
    assert (
        "is not the home of a cluster"
        in folder.json(capsys, "plan", "--against", "nowhere", code=2)["error"]["message"]
    )
