import re
from pathlib import Path

GLOSSARY = Path(__file__).parent.parent.parent / "docs" / "glossary.md"


def test_the_words_are_in_alphabetical_order_and_each_is_defined_once() -> None:
    terms = re.findall(r"^### (.+)$", GLOSSARY.read_text(), re.MULTILINE)
    assert terms == sorted(set(terms))
