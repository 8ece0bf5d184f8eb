"""The targets, one module each: `generate`, `check`, and how many cases `make test` runs."""

import importlib

from tests.fuzz.campaign import Target

NAMES = (
    *("json", "append", "kafka", "push", "poll"),
    *("manifests", "runs", "store"),
    *("sql", "schemas", "declarations", "config", "cli"),
)

SPARK_NAMES = ("files",)
"""Targets that need Spark."""


def cases(name: str) -> int:
    """Return how many cases of a target `make test` runs."""
    return int(importlib.import_module(f"{__name__}.{name}_input").CASES)


def load(name: str) -> Target:
    """Import a target by its name."""
    module = importlib.import_module(f"{__name__}.{name}_input")
    getattr(module, "prepare", lambda: None)()  # once, before processes are forked
    return Target(name, module.generate, module.check, forks=getattr(module, "FORKS", True))
