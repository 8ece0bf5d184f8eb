import pytest

from tests.rules import known_rules, rules_of
from tests.rules_page import Marks, page


def test_a_room_shows_its_tested_rules_in_order_and_names_the_others() -> None:
    rules = {"STO-2": "", "STO-10": "", "STO-3": "", "CLU-1": ""}
    text = page(
        rules, {"STO-10": {"tests/b.py::test_y", "tests/a.py::test_x"}, "STO-2": {"tests/a.py::test_x"}}
    )
    rows = [line for line in text.splitlines() if line.startswith("| STO")]
    assert rows == [
        "| STO-2 | `tests/a.py::test_x` |",
        "| STO-10 | `tests/a.py::test_x`<br>`tests/b.py::test_y` |",
    ]
    assert "## [STO](store.md): 2 of 3 have a test" in text
    assert "None yet: STO-3." in text
    assert "## [CLU](cluster.md): 0 of 1 have a test" in text


def test_the_page_is_not_taken_for_a_page_of_rules() -> None:
    text = page(known_rules(), {rule: {"tests/a.py::test_x"} for rule in known_rules()})
    assert list(rules_of(text)) == []


def test_a_test_with_parameters_is_named_once(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = rule\n")
    path = pytester.makepyfile(
        """
        import pytest

        @pytest.mark.rule("STO-1")
        @pytest.mark.parametrize("n", [1, 2])
        def test_x(n):
            pass
        """
    )
    marks = Marks()
    pytester.inline_run("--collect-only", "-p", "no:hypothesispytest", plugins=[marks])
    assert marks.tests == {"STO-1": {f"{path.name}::test_x"}}
