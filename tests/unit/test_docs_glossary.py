import re
from pathlib import Path

GLOSSARY = Path(__file__).parent.parent.parent / "docs" / "glossary.md"


def test_the_terms_are_sorted_and_each_is_defined_once() -> None:
    terms = re.findall(r"^### (.+)$", GLOSSARY.read_text(), re.MULTILINE)
    assert terms == sorted(set(terms))
