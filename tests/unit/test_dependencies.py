"""The dependencies that the package declares are those that it needs."""

import ast
import importlib.util
import re
import sys
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tidemill.errors import MissingDriver
from tidemill.spark.sessions import require

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {
    "fdb": "foundationdb",
    "openlineage": "openlineage_python",
    "opentelemetry": "opentelemetry_sdk",
    "py4j": "pyspark",
}
"""The packages of modules that have another name than their package."""


def declared() -> set[str]:
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    return {re.split(r"[\[<>=]", line)[0].replace("-", "_") for line in lines}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def test_every_imported_package_is_declared() -> None:
    names = set().union(*(imported(path) for path in (ROOT / "src").rglob("*.py")))
    packages = {MODULES.get(name, name) for name in names - sys.stdlib_module_names - {"tidemill"}}
    assert packages - declared() == set()


def test_the_local_extra_has_the_pandas_that_pyspark_needs() -> None:
    local = PROJECT["optional-dependencies"]["local"]
    assert "pandas>=2.2,<3" in local, "pyspark raises an error below 2.2 and warns from 3.0 on"


def test_a_missing_pandas_is_reported_when_spark_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def without_pandas(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "pandas" else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_pandas)
    with pytest.raises(MissingDriver, match="pandas is not installed") as raised:
        require(object())  # type: ignore[arg-type]
    assert "tidemill[local]" in raised.value.hint
