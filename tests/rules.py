"""The rules of docs/rules, read from their pages.

A rule is a list item that begins `- **STO-5** `; its text runs on over indented lines until a blank line or
the next item. Everything else on a page (headings, tables, prose) is explanation and not a rule. The tests
name rules by these ids, so the pages are the one place where a rule is written down.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PAGES = Path(__file__).parent.parent / "docs" / "rules"

ROOMS = {
    "store.md": "STO",
    "cluster.md": "CLU",
    "futures.md": "FUT",
    "lots.md": "LOT",
    "triggers.md": "HEAP",
    "steps.md": "DBSP",
}
"""The prefix of the rules on each page."""

RULE_ID = re.compile(rf"\b(?:{'|'.join(ROOMS.values())})-\d+\b")

_ITEM = re.compile(r"- \*\*([A-Z]+-\d+)\*\* (\S.*)")


def known_rules(pages: Path = PAGES) -> dict[str, str]:
    """Every rule on the pages of a folder, id to text; a rule that is written twice is an error."""
    rules: dict[str, str] = {}
    for page in sorted(pages.glob("*.md")):
        for rule, text in rules_of(page.read_text(encoding="utf-8")):
            if rule in rules:
                raise ValueError(f"{rule} is written twice; the second time in {page.name}")
            rules[rule] = text
    return rules


def rules_of(page: str) -> Iterator[tuple[str, str]]:
    """The rules on one page as (id, text), in the order of the page, each text joined into one line."""
    rule, lines = "", list[str]()
    for line in [*page.splitlines(), ""]:
        if rule and line.startswith("  "):
            lines.append(line.strip())
            continue
        if rule:
            yield rule, " ".join(lines)
        item = _ITEM.fullmatch(line.rstrip())
        rule, lines = (item[1], [item[2]]) if item else ("", [])


def number_gaps(rules: Iterable[str]) -> list[str]:
    """The ids that are missing between 1 and the highest number of each prefix."""
    numbers: dict[str, set[int]] = {}
    for rule in rules:
        prefix, number = rule.split("-")
        numbers.setdefault(prefix, set()).add(int(number))
    return [
        f"{prefix}-{number}"
        for prefix, present in sorted(numbers.items())
        for number in range(1, max(present) + 1)
        if number not in present
    ]
