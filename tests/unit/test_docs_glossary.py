import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
GLOSSARY = DOCS / "glossary.md"
LINK = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")


def terms() -> list[str]:
    return re.findall(r"^### (.+)$", GLOSSARY.read_text(), re.MULTILINE)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_the_words_are_in_alphabetical_order_and_each_is_defined_once() -> None:
    assert terms() == sorted(set(terms()))


@pytest.mark.parametrize(
    "page", [GLOSSARY, *sorted((DOCS / "rules").glob("*.md"))], ids=lambda page: page.name
)
def test_a_link_to_a_heading_finds_it(page: Path) -> None:
    broken = [
        f"{target}#{anchor}"
        for target, anchor in LINK.findall(page.read_text())
        if anchor not in anchors((page.parent / target) if target else page)
    ]
    assert broken == []
