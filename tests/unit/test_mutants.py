"""The tables of mutants fit the source and the tests, and the script tells caught mutants from survivors."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, page
from tests.mutants.__main__ import choose, is_expected
from tests.mutants.mutant import ROOT, DoesNotApply, Mutant
from tests.mutants.runner import Outcome, Result, Tree, TreeUnusable
from tests.rules import known_rules

PACKAGES = ("store", "cluster", "futures", "lots", "publish", "triggers", "steps")


def test_there_are_enough_mutants_of_every_package() -> None:
    caught = Counter(mutant.package for mutant in MUTANTS if not mutant.equivalent)
    assert [package for package in PACKAGES if caught[package] < 10] == []
    assert caught.total() >= 80


def test_the_names_of_mutants_are_unique() -> None:
    assert [name for name, count in Counter(m.name for m in MUTANTS).items() if count > 1] == []


def test_each_mutant_applies_to_the_source_and_its_tests_and_rule_exist() -> None:
    rules = known_rules()
    for mutant in MUTANTS:
        compile(mutant.apply(), mutant.name, "exec")
        assert mutant.rule in rules, mutant.name
        assert mutant.caught_by, mutant.name
        for test in mutant.caught_by:
            file, _, function = test.partition("::")
            assert function in functions(file), f"{mutant.name}: {test}"


@cache
def functions(file: str) -> set[str]:
    """The test functions of a file, with those of the test classes that it inherits from."""
    texts = [(ROOT / "tests" / file).read_text(encoding="utf-8")]
    if "Conformance" in texts[0]:
        texts += [path.read_text(encoding="utf-8") for path in (ROOT / "src/tidemill/testing").rglob("*.py")]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    names = {"", *(node.name for node in nodes if isinstance(node, ast.FunctionDef))}
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    return names | {f"{outer}::{name}" for outer in classes for name in names}


def test_the_page_lists_the_mutants() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run `make docs`"


# --- the script

RIGHT = Mutant(
    name="right",
    file="sums.py",
    rule="STO-1",
    breaks="a + b",
    old="a + b",
    new="a - b",
    caught_by=("test_sums.py",),
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Return a tree with one function and one test."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # its tests start faster
    root = tmp_path / "tree"
    (root / "src/tidemill").mkdir(parents=True)
    (root / "src/tidemill/__init__.py").touch()
    (root / "src/tidemill/sums.py").write_text("def add(a, b):\n    '''Add.'''\n    return a + b\n")
    (root / "tests").mkdir()
    (root / "tests/test_sums.py").write_text(
        "import pytest\nfrom tidemill.sums import add\n\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_add(n):\n    assert add(n, n) == 2 * n\n"
    )
    (root / "pytest.ini").write_text("[pytest]\n")
    return Tree(root, root, limit_s=120)


def replaced(**changes: str) -> Mutant:
    return Mutant(**{**{name: getattr(RIGHT, name) for name in Mutant.__struct_fields__}, **changes})


def test_a_mutant_is_caught_if_a_test_fails_and_the_copy_is_restored(tree: Tree) -> None:
    before = (tree.root / "src/tidemill/sums.py").read_text()
    result = tree.run(RIGHT)
    assert (result.outcome, result.caught_by) == (Outcome.CAUGHT, "tests/test_sums.py::test_add")
    assert (tree.root / "src/tidemill/sums.py").read_text() == before


def test_a_mutant_survives_if_all_tests_pass(tree: Tree) -> None:
    assert tree.run(replaced(old="'''Add.'''", new="'''Sum.'''")).outcome is Outcome.SURVIVED


def test_a_mutant_that_cannot_be_imported_is_broken(tree: Tree) -> None:
    result = tree.run(replaced(old="return a + b", new="return ("))
    assert result.outcome is Outcome.BROKEN
    assert "SyntaxError" in result.output


def test_an_edit_that_does_not_match_exactly_once_is_an_error(tree: Tree) -> None:
    for old in ("a * b", "a"):
        with pytest.raises(DoesNotApply, match="times"):
            replaced(old=old).apply(tree.root)
    with pytest.raises(DoesNotApply, match="equal"):
        replaced(new="a + b").apply(tree.root)


def test_tests_that_fail_without_a_mutant_and_another_package_are_refused(tree: Tree, tmp_path: Path) -> None:
    tree.check_import()
    (tree.root / "tests/test_wrong.py").write_text("def test_wrong():\n    assert False\n")
    with pytest.raises(TreeUnusable, match="without a mutant"):
        tree.check_tests(["tests/test_wrong.py"])
    with pytest.raises(TreeUnusable, match="instead of the copy"):
        Tree(tmp_path, tmp_path).check_import()


def test_a_survivor_is_expected_only_if_it_is_explained() -> None:
    mutant = MUTANTS[0]
    ends = {
        outcome: is_expected(Result(name=mutant.name, package=mutant.package, outcome=outcome))
        for outcome in Outcome
    }
    assert ends[Outcome.BROKEN] is False
    assert ends[Outcome.SURVIVED] is bool(mutant.equivalent)
    assert ends[Outcome.CAUGHT] is not bool(mutant.equivalent)
    assert choose([mutant.name], []) == [mutant]
    assert choose([], ["no such package"]) == []
