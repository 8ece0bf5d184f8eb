import re
from collections import Counter
from pathlib import Path

import pytest

from tests.rules import PAGES, ROOMS, RULE_ID, known_rules, number_gaps, rules_of

LOOKS_LIKE_A_RULE = re.compile(rf"\s*[-*+]\W*{RULE_ID.pattern}")


def test_every_rule_is_defined_once() -> None:
    ids = [rule for page in PAGES.glob("*.md") for rule, _ in rules_of(page.read_text(encoding="utf-8"))]
    assert [rule for rule, times in Counter(ids).items() if times > 1] == []
    assert known_rules().keys() == set(ids)


def test_the_numbers_of_each_package_have_no_gap() -> None:
    assert number_gaps(known_rules()) == []


def test_every_package_has_one_page_with_its_rules() -> None:
    prefixes = {
        page.name: {rule.split("-")[0] for rule, _ in rules_of(page.read_text())}
        for page in PAGES.glob("*.md")
    }
    assert prefixes == {name: {prefix} for name, prefix in ROOMS.items()} | {
        "README.md": set(),
        "coverage.md": set(),
    }


def test_every_rule_that_a_rule_page_mentions_exists() -> None:
    rules = known_rules()
    mentioned = {
        (page.name, rule) for page in PAGES.glob("*.md") for rule in RULE_ID.findall(page.read_text())
    }
    assert sorted(m for m in mentioned if m[1] not in rules) == []


def test_a_list_item_that_looks_like_a_rule_is_one() -> None:
    # An item with a slip in it (`-**STO-5**`, `- STO-5`) would silently be no rule, and its tests unknown.
    for page in PAGES.glob("*.md"):
        items = [line for line in page.read_text().splitlines() if LOOKS_LIKE_A_RULE.match(line)]
        parsed = [rule for rule, _ in rules_of(page.read_text())]
        assert len(items) == len(parsed), page.name


def test_a_rules_text_is_its_whole_paragraph() -> None:
    page = "- **STO-1** One\n  two\n  three.\n\nProse.\n- **STO-2** Four.\n- **STO-3** Five.\n| a |\n  b\n"
    assert list(rules_of(page)) == [("STO-1", "One two three."), ("STO-2", "Four."), ("STO-3", "Five.")]


def test_a_rule_defined_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("- **STO-1** One.\n")
    (tmp_path / "b.md").write_text("- **STO-1** The other.\n")
    with pytest.raises(ValueError, match=r"STO-1 is written twice; the second time in b\.md"):
        known_rules(tmp_path)


def test_a_gap_is_named() -> None:
    assert number_gaps(["STO-1", "STO-4", "CLU-2"]) == ["CLU-1", "STO-2", "STO-3"]
    assert number_gaps(["STO-2", "STO-1"]) == []
