"""The examples run, and the docs show them as they are."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.servers.spark import jvm_options
from tidemill.testing.threads import STUCK_S

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
TUTORIAL = ROOT / "docs" / "tutorial" / "futures.md"
PIPELINE = ROOT / "docs" / "tutorial" / "pipeline.md"
TRIGGERS = ROOT / "docs" / "howto" / "triggers.md"
PAGES = [ROOT / "README.md", TUTORIAL, PIPELINE, TRIGGERS]

BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
INCLUDED = re.compile(rf"^<!-- (?P<file>\S+): (?P<region>\w+) -->\n{BLOCK.pattern[1:]}", BLOCK.flags)
REGION = re.compile(r"^ *# region: (?P<name>\w+)\n(?P<code>.*?)^ *# endregion$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```text\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FUTURE_ID = re.compile(r"\b[0-9a-f]{32}\b")


def regions(file: str) -> dict[str, str]:
    """The marked regions of an example, each without its indentation and the blank lines around it."""
    matches = REGION.finditer((EXAMPLES / file).read_text(encoding="utf-8"))
    return {region["name"]: textwrap.dedent(region["code"]).strip() for region in matches}


def run(file: str, folder: Path) -> str:
    """What an example prints when it is run in a folder."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / file],
        cwd=folder,
        env={**os.environ, "JDK_JAVA_OPTIONS": jvm_options()},  # a Spark of the example starts as ours do
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_python_in_the_docs_is_a_region_of_an_example(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    included = list(INCLUDED.finditer(text))
    assert included
    assert len(included) == len(BLOCK.findall(text)), "a block of Python without the name of its example"
    for block in included:
        assert block["code"].strip() == regions(block["file"])[block["region"]], block["region"]


def test_the_tutorial_leaves_no_region_of_its_example_out() -> None:
    shown = {block["region"] for block in INCLUDED.finditer(TUTORIAL.read_text(encoding="utf-8"))}
    assert shown == regions("03_futures_tutorial.py").keys()


def test_the_example_of_the_readme_prints_what_the_readme_says(tmp_path: Path) -> None:
    output = run("01_futures.py", tmp_path)
    assert [shown["text"] for shown in SHOWN.finditer(PAGES[0].read_text(encoding="utf-8"))] == [output]


def test_the_tutorial_prints_what_it_says_and_again_the_second_time(tmp_path: Path) -> None:
    shown = "".join(block["text"] for block in SHOWN.finditer(TUTORIAL.read_text(encoding="utf-8")))
    for _ in range(2):
        output = run("03_futures_tutorial.py", tmp_path)
        assert FUTURE_ID.sub("…", output) == FUTURE_ID.sub("…", shown)


def test_the_tutorial_of_pipelines_leaves_no_region_out_and_prints_what_it_says(tmp_path: Path) -> None:
    text = PIPELINE.read_text(encoding="utf-8")
    assert {block["region"] for block in INCLUDED.finditer(text)} == regions("04_shop.py").keys()
    copy = tmp_path / "shop.py"  # a pipeline keeps its home beside its file
    copy.write_text((EXAMPLES / "04_shop.py").read_text(encoding="utf-8"), encoding="utf-8")
    assert run(str(copy), tmp_path) == "".join(block["text"] for block in SHOWN.finditer(text))


def test_the_page_about_triggers_leaves_no_region_out_and_its_example_has_the_arcs_it_names(
    tmp_path: Path,
) -> None:
    text = TRIGGERS.read_text(encoding="utf-8")
    assert {block["region"] for block in INCLUDED.finditer(text)} == regions("05_triggers.py").keys()
    copy = tmp_path / "shop.py"
    copy.write_text((EXAMPLES / "05_triggers.py").read_text(encoding="utf-8"), encoding="utf-8")
    assert run(str(copy), tmp_path).split() == ["daily", "hourly", "clean[raw_orders]", "clean[raw_visits]"]


def test_the_whole_shop_ingests_two_formats_corrects_a_lot_and_its_views_follow(tmp_path: Path) -> None:
    assert run("07_whole_shop.py", tmp_path).splitlines() == [
        "arrived 2 lots; in quarantine: 1",
        "first [('north', 10), ('south', 7)] ('north', 10)",
        "moved [('south', 22)] ('south', 22)",
        "changes [('north', 10, -1), ('south', 7, -1), ('south', 22, 1)]",
        "corrected [('south', 112)] ('south', 112)",
    ]
