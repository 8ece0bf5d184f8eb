"""The notebook in the examples runs, and what its cells end with shows itself as HTML."""

import ast
import json
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tidemill.pipeline.notebook import html_table, preformatted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parent.parent.parent / "examples" / "06_notebook.ipynb"
HOSTILE = "<script>alert(1)</script>"


def run_cell(source: str, names: dict[str, Any], file: Path) -> Any:
    """Run a cell like IPython; return the value of its last line."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), file, "eval"), names)


@pytest.mark.usefixtures("assumed_certificates")
def test_the_notebook_runs_and_each_result_shows_itself(tmp_path: Path, spark: "SparkSession") -> None:
    names: dict[str, Any] = {}
    shown: list[str] = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert not cell.get("outputs"), "clear the outputs before you save the notebook"
        if cell["cell_type"] != "code":
            continue
        value = run_cell("".join(cell["source"]), names, tmp_path / "notebook.py")
        if not shown and isinstance(value, tm.Pipeline):
            shown.append(unescape(value._repr_html_()))
            assert not value.is_open, "showing a pipeline creates nothing"
            value.use_spark(spark)
        elif hasattr(value, "_repr_html_"):
            shown.append(unescape(value._repr_html_()))
    declared, plan, report, revenue, lots, _, failing, explained = shown
    assert "revenue_failures" in declared
    assert "dataset" in declared
    assert "it is new" in plan
    assert "caught up" in report
    assert "280.00" in revenue
    assert "A00000000000000002" in lots
    assert "not true: total < 1000" in failing
    assert "each step processes only the changes" in explained


def test_html_escapes_names_and_values() -> None:
    text = html_table(["<a>"], [[HOSTILE, 1234567]])
    assert HOSTILE not in text
    assert "&lt;a&gt;" in text
    assert "1,234,567" in text
    assert HOSTILE not in preformatted(HOSTILE)
