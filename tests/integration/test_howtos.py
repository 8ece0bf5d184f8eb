"""The Python code of how-to pages runs, on one Spark for all pages.

The blocks of a page run one after the other, in one namespace and in an empty folder. A page states its
results with `assert`. A block after a comment `<!-- not run: reason -->` is only compiled.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
BLOCK = re.compile(
    r"^(?P<not_run><!-- not run: .+ -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
RUN = (
    "airflow",
    "backfill",
    "emr-databricks",
    "from-dbt",
    "from-declarative-pipelines",
    "from-structured-streaming",
    "late-data",
    "quarantine",
)


@pytest.mark.parametrize("name", RUN)
def test_the_code_of_a_page_runs(
    name: str, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create = tm.Pipeline.__init__
    pipelines: list[tm.Pipeline] = []

    def created(self: tm.Pipeline, *arguments: Any, **options: Any) -> None:
        options["home"] = tmp_path / options["home"]  # relative to the page, so not to this test
        create(self, *arguments, **{**options, "spark": spark})
        pipelines.append(self)

    monkeypatch.setattr(tm.Pipeline, "__init__", created)
    page = HOWTO / f"{name}.md"
    blocks = list(BLOCK.finditer(page.read_text(encoding="utf-8")))
    assert blocks
    namespace: dict[str, Any] = {}
    try:
        for block in blocks:
            code = compile(block["code"], str(page), "exec")
            if not block["not_run"]:
                exec(code, namespace)
    finally:
        for pipeline in pipelines:
            pipeline.close()
