"""The crash points of the source, found by reading it: those that are named where they are passed, and those
whose name is put together from a word that callers give.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import tidemill

ROOT = Path(tidemill.__file__).parent


def points(root: Path = ROOT) -> dict[str, Path]:
    """Every point, and the file it is in."""
    return {
        name: file for file in sorted(root.rglob("*.py")) for name in _in_file(ast.parse(file.read_text()))
    }


def _in_file(module: ast.Module) -> Iterator[str]:
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "crash.point"):
                continue
            (said,) = call.args
            if isinstance(said, ast.Constant):
                yield str(said.value)
                continue
            assert isinstance(said, ast.JoinedStr), ast.unparse(said)
            (word,) = [part.value for part in said.values if isinstance(part, ast.FormattedValue)]
            assert isinstance(word, ast.Name), ast.unparse(said)
            for value in _given(module, function, word.id):
                yield "".join(
                    value if isinstance(part, ast.FormattedValue) else str(part.value)  # type: ignore[attr-defined]
                    for part in said.values
                )


def _given(module: ast.Module, function: ast.FunctionDef, word: str) -> Iterator[str]:
    """What the callers of a function of this file give for one of its arguments, through others of them."""
    place = [one.arg for one in function.args.args if one.arg != "self"].index(word)
    names = (function.name, f"self.{function.name}")
    found = False
    for caller in ast.walk(module):
        if not isinstance(caller, ast.FunctionDef):
            continue
        for call in ast.walk(caller):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) in names):
                continue
            found = True
            said = call.args[place]
            for one in [said.body, said.orelse] if isinstance(said, ast.IfExp) else [said]:
                if isinstance(one, ast.Name):
                    yield from _given(module, caller, one.id)
                else:
                    assert isinstance(one, ast.Constant), ast.unparse(call)
                    yield str(one.value)
    assert found, f"nobody calls {function.name}"
