"""Stage the pages of the site: copy what the documentation links to, and write the reference from the code.

The copy has the same folders as the repository, so relative links keep working.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.site import api, cli, events, metrics, settings

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "pages"
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)")

REFERENCE: dict[str, Callable[[], str]] = {
    "api": api.page,
    "cli": cli.page,
    "configuration": settings.page,
    "events": events.page,
    "metrics": metrics.page,
}
"""The pages of docs/reference that exist only on the site."""

SCHEMA_PAGE = """# The manifest schema

Each lot has a manifest: a JSON file that lists its objects. This is its schema. It is also a
[file](manifest.schema.json) of its own.

```json
{schema}
```
"""


def stage(pages: Path = PAGES) -> Path:
    """Write all pages into a folder, and return it."""
    shutil.rmtree(pages, ignore_errors=True)
    for file in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*")]:
        if file.is_file():
            _copy(file, pages)
    for name, page in REFERENCE.items():
        (pages / "docs" / "reference" / f"{name}.md").write_text(page(), encoding="utf-8")
    schema = (ROOT / "docs" / "reference" / "manifest.schema.json").read_text(encoding="utf-8")
    page_of_schema = pages / "docs" / "reference" / "manifest.md"
    page_of_schema.write_text(SCHEMA_PAGE.format(schema=schema.strip()), encoding="utf-8")
    return pages


def _copy(file: Path, pages: Path) -> None:
    """Copy a file, and the files outside of docs that it links to."""
    target = pages / file.relative_to(ROOT)
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix != ".md":
        shutil.copyfile(file, target)
        return
    text = file.read_text(encoding="utf-8")
    target.write_text(LINK.sub(lambda link: _linked(link, file), text), encoding="utf-8")
    for link in LINK.finditer(text):
        other = (file.parent / link["target"]).resolve()
        if "://" not in link["target"] and other.is_relative_to(ROOT):
            other = other / "README.md" if other.is_dir() else other
            if other.is_file():
                _copy(other, pages)


def _linked(link: re.Match[str], file: Path) -> str:
    """Let a link to a folder lead to the page in it."""
    target = link["target"]
    if "://" not in target and (file.parent / target).is_dir():
        page = f"{target.rstrip('/')}/README.md"
        return f"]({page}" if (file.parent / page).is_file() else link[0]
    return link[0]
