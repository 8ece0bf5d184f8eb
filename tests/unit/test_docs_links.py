import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "bench").glob("*.md")])

CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")


def links(page: Path) -> list[tuple[str, str]]:
    """The links of a page that lead to files of the repository, as (target, anchor)."""
    targets = LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8")))
    return [(link["target"], link["anchor"] or "") for link in targets if "://" not in link["target"]]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_finds_its_file_and_its_heading(page: Path) -> None:
    broken = []
    for target, anchor in links(page):
        file = (page.parent / target) if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert broken == []


def test_the_index_leads_to_every_page() -> None:
    index = DOCS / "README.md"
    reached = {(DOCS / target).resolve() for target, _ in links(index)}
    assert [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page not in {index, *reached}] == []
