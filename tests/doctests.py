"""The examples in docstrings, as tests run them.

An example may use `spark`, a session that the test provides. Files are written below the working directory.
"""

import ast
import doctest
import importlib
import re
from collections.abc import Mapping
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples() -> list[str]:
    """Find every module that has an example, without importing it."""
    prompt = re.compile(r"^\s*>>> ", re.MULTILINE)
    paths = [path for path in sorted(SRC.rglob("*.py")) if prompt.search(path.read_text())]
    return [".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__") for path in paths]


def examples_of(module_name: str, *, with_spark: bool) -> list[doctest.DocTest]:
    """Return the examples of a module that use `spark`, or those that do not."""
    module = importlib.import_module(module_name)
    tests = doctest.DocTestFinder(exclude_empty=True).find(module, module_name)
    return [test for test in tests if test.examples and _uses_spark(test) is with_spark]


def run_example(test: doctest.DocTest, names: Mapping[str, object]) -> str:
    """Run an example; return what differs from its text, or nothing."""
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    test.globs.update(names)
    runner.run(test, out=report.append)
    if any(doctest.SKIP in example.options for example in test.examples):
        report.append(f"{test.name} skips lines: an example must run\n")
    return "".join(report)


def _uses_spark(test: doctest.DocTest) -> bool:
    nodes = (node for example in test.examples for node in ast.walk(ast.parse(example.source)))
    return any(isinstance(node, ast.Name) and node.id == "spark" for node in nodes)
