"""The digest of an arc's code: another one when the code is, wherever it stands; else always the same."""

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.futures.values.code_digests import _Code, code_digest

MAIN = """
import helper
from helper import kept
import json

TAGS = {"a", "b", "c", "d"}
NUMBER = 1


class Rule:
    limit = 3

    def holds(self, row):
        return row < self.limit


def inner(row):
    return row in TAGS and json.dumps(row)


def arc(df, more=("x", 1)):
    found = [helper.fix(inner(row)) for row in df if Rule().holds(row) and row in {"p", "q", "r"}]
    return found, NUMBER, kept(df)


def unrelated(df):
    return helper.other(df)
"""
HELPER = """
LEVEL = 5

def fix(row):
    return row if row else LEVEL

def kept(df):
    return df

def other(df):
    return 1
"""
ASK = """
import sys
sys.path.insert(0, sys.argv[1])
import shop_main
from tidemill.futures.values.code_digests import code_digest
print(code_digest(shop_main.arc).hex())
"""


def digest(folder: Path, *changes: tuple[str, str, str], seed: str = "1") -> str:
    """Of `arc` in a process of its own, after changes of the files."""
    texts = {"shop_main.py": MAIN, "helper.py": HELPER}
    for file, old, new in changes:
        assert texts[file].count(old) == 1
        texts[file] = texts[file].replace(old, new)
    for file, text in texts.items():
        (folder / file).write_text(text)
    command = [sys.executable, "-B", "-c", ASK, str(folder)]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.rule("LOT-18")
def test_any_change_of_what_a_function_does_is_another_digest_and_nothing_else_is(tmp_path: Path) -> None:
    first = digest(tmp_path)
    same = {
        "another process": digest(tmp_path, seed="2"),
        "lines": digest(tmp_path, ("shop_main.py", "import json\n", "import json\n\n\n# words\n")),
        "others": digest(tmp_path, ("shop_main.py", "return helper.other(df)", "return 2")),
    }
    assert set(same.values()) == {first}, same
    other = {
        "itself": digest(tmp_path, ("shop_main.py", 'row in {"p", "q", "r"}', 'row in {"p", "q", "s"}')),
        "a default": digest(tmp_path, ("shop_main.py", '("x", 1)', '("x", 2)')),
        "a global": digest(tmp_path, ("shop_main.py", "NUMBER = 1", "NUMBER = 2")),
        "a function beside it": digest(
            tmp_path, ("shop_main.py", "and json.dumps(row)", "or json.dumps(row)")
        ),
        "a set that one uses": digest(tmp_path, ("shop_main.py", '"c", "d"}', '"c", "e"}')),
        "a class": digest(tmp_path, ("shop_main.py", "limit = 3", "limit = 4")),
        "a method": digest(tmp_path, ("shop_main.py", "row < self.limit", "row > self.limit")),
        "of another file": digest(tmp_path, ("helper.py", "return row if row", "return not row if row")),
        "a global there": digest(tmp_path, ("helper.py", "LEVEL = 5", "LEVEL = 6")),
        "imported by name": digest(
            tmp_path, ("helper.py", "def kept(df):\n    return df", "def kept(df):\n    return 0")
        ),
    }
    assert first not in other.values(), [what for what, value in other.items() if value == first]
    assert len(set(other.values())) == len(other)


def test_what_a_function_closes_over_counts_and_what_cannot_be_pickled_by_its_type() -> None:
    def made(value: object) -> Callable[..., object]:
        def arc(df: object) -> object:
            return df, value

        return arc

    lock = __import__("threading").Lock
    assert code_digest(made(1)) == code_digest(made(1)) != code_digest(made(2))
    assert code_digest(made({"b", "a"})) == code_digest(made({"a", "b"}))
    assert code_digest(made(lock())) == code_digest(made(lock())) != code_digest(made(1))


def test_functions_that_refer_to_each_other_and_methods_have_a_digest() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    class Holder:
        size = 1

        def arc(self, df: object) -> object:
            return df, self.size

    assert code_digest(even) != code_digest(odd)
    assert code_digest(Holder().arc) == code_digest(Holder().arc)
    assert len(code_digest(len)) == 32


def test_a_library_outside_the_environment_is_not_the_users_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster's own Spark is in its own folder; its code would take minutes to digest."""
    for place in ("spark/python/pyspark", "other/site-packages/library", "mine/own"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "__init__.py").write_text("")
        name = Path(place).name
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / place / "__init__.py")
        monkeypatch.setitem(sys.modules, name, module)
    code = _Code("shop")
    assert [code.is_users(name) for name in ("pyspark", "library", "own")] == [False, False, True]
