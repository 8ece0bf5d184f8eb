"""The reference pages that exist only on the site, and the folder that the site is built from."""

import re
from pathlib import Path

import pytest

from tests.site import settings, stage
from tests.site.markdown import described, signature
from tests.unit.test_docs_links import CODE, LINK

SOURCE = Path(__file__).parents[2] / "src" / "tidemill"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stage.stage(tmp_path_factory.mktemp("pages"))


def test_links_between_staged_pages_lead_to_staged_files(pages: Path) -> None:
    broken = []
    for page in pages.rglob("*.md"):
        for link in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
            target = link["target"]
            if target and "://" not in target and not (page.parent / target).is_file():
                broken.append(f"{page.relative_to(pages)}: {target}")
    assert broken == []


def test_each_reference_has_what_users_look_up(pages: Path) -> None:
    def text(name: str) -> str:
        return (pages / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")

    assert "#### Pipeline.dataset" in text("api")
    assert "- `key`: columns that identify a row." in text("api")
    assert "## tidemill store copy" in text("cli") or "### tidemill store copy" in text("cli")
    assert "--select SELECTOR" in text("cli")
    assert "### StepCommitted" in text("events")
    assert "`tidemill_steps_total` | counter" in text("metrics")
    assert '"$schema"' in text("manifest")


def test_every_environment_variable_is_described() -> None:
    known = settings.VARIABLES.keys() | settings.INTERNAL
    assert settings.used_variables(SOURCE) - known == set()
    assert settings.VARIABLES.keys() - settings.used_variables(SOURCE) == set()


def test_docstrings_become_markdown() -> None:
    def example(path: str, *, most: int = 3) -> None:
        """Do something.

        >>> example("a")
        >>> example("b")

        It is safe.

        Args:
            path: a file, or
                a folder.
            most: how many.
        """

    text = described(example)
    assert '```python\n>>> example("a")\n>>> example("b")\n```' in text
    assert "- `path`: a file, or a folder.\n- `most`: how many." in text
    assert signature("example", example) == "example(path, *, most=3)"
    assert not re.search(r"<function", signature("f", lambda key=print: key))
