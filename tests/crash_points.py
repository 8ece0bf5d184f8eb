"""The crash points of the source, found by reading it.

There are three forms: `crash.point("a.b.before")`; a name that is put together from an argument of the
function; and `scope.step("a.b", …)`, which has a point before the transaction and one after it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tidemill

_STEP = re.compile(r"(^|\b|_)scope\.step$")

ROOT = Path(tidemill.__file__).parent


def points(root: Path = ROOT) -> dict[str, Path]:
    """Every point, and the file it is in."""
    return {
        name: file
        for file in sorted(root.rglob("*.py"))
        if file != root / "scope.py"  # the definition of `step`
        for name in _in_file(ast.parse(file.read_text()))
    }


def _in_file(module: ast.Module) -> Iterator[str]:
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call):
                continue
            if _STEP.search(ast.unparse(call.func)):
                for step in _values(module, function, call.args[0]):
                    yield from (f"{step}.before", f"{step}.after")
            if ast.unparse(call.func) != "crash.point":
                continue
            (argument,) = call.args
            if isinstance(argument, ast.Constant):
                yield str(argument.value)
                continue
            assert isinstance(argument, ast.JoinedStr), ast.unparse(argument)
            (word,) = [part.value for part in argument.values if isinstance(part, ast.FormattedValue)]
            assert isinstance(word, ast.Name), ast.unparse(argument)
            for value in _given(module, function, word.id):
                yield "".join(
                    value if isinstance(part, ast.FormattedValue) else str(part.value)  # type: ignore[attr-defined]
                    for part in argument.values
                )


def _values(module: ast.Module, function: ast.FunctionDef, argument: ast.expr) -> Iterator[str]:
    """The values of an argument: a constant, a choice of two, or an argument of the function itself."""
    for value in [argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument]:
        if isinstance(value, ast.Name):
            yield from _given(module, function, value.id)
        else:
            assert isinstance(value, ast.Constant), ast.unparse(argument)
            yield str(value.value)


def _given(module: ast.Module, function: ast.FunctionDef, word: str) -> Iterator[str]:
    """The values that callers in this file pass for an argument of a function, also through each other."""
    place = [parameter.arg for parameter in function.args.args if parameter.arg != "self"].index(word)
    names = (function.name, f"self.{function.name}")
    called = False
    for caller in ast.walk(module):
        if not isinstance(caller, ast.FunctionDef):
            continue
        for call in ast.walk(caller):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) in names):
                continue
            called = True
            yield from _values(module, caller, call.args[place])
    assert called, f"no code calls {function.name}"
