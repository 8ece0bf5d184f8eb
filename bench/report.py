"""The command line of every bench: options, progress on stderr, figures on stdout.

With `--json` the last line of stdout is one object: the headline figures under their keys, and below them
`targets`, `raw` (both sides of each figure), `machine`, `versions` and `flags`. Without it, a table.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.comparison import Comparison, Series, rounded

REPETITIONS = 5


@dataclass(frozen=True)
class Target:
    """The limit of a figure: at least, or at most, this."""

    limit: float
    at_most: bool = False

    def met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:g}"


def at_least(limit: float) -> Target:
    return Target(limit)


def at_most(limit: float) -> Target:
    return Target(limit, at_most=True)


class Report:
    """Collects the figures of one bench."""

    def __init__(self, name: str, *, quick: bool) -> None:
        self.name = name
        self.quick = quick
        self.repetitions = 1 if quick else REPETITIONS
        self.headline: dict[str, float | None] = {}
        self.targets: dict[str, Target] = {}
        self.raw: dict[str, Any] = {}
        self.flags: dict[str, Any] = {"quick": quick}
        self.versions: dict[str, Any] = {}
        self.failed: dict[str, str] = {}
        self.machine = machine.describe()
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print progress."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def figure(self, key: str, value: float, raw: Any = None, *, target: Target | None = None) -> None:
        """Add a headline figure and its raw data."""
        self.headline[key] = rounded(value)
        if target is not None:
            self.targets[key] = target
        if raw is not None:
            self.raw[key] = raw
        self.say(f"{key} = {rounded(value):g}" + (f" (target {target})" if target else ""))

    def absent(
        self, key: str, *, target: Target | None = None, why: str = "its peer is not installed"
    ) -> None:
        """Add a key without a figure, for example in a smoke test without the peers."""
        self.headline[key] = None
        if target is not None:
            self.targets[key] = target
        self.raw[key] = {"not_run": why}
        self.say(f"{key}: {why}")

    def compare(self, key: str, comparison: Comparison, *, target: Target | None = None) -> None:
        """Add a ratio, with both sides."""
        self.figure(key, comparison.ratio, comparison.as_json(), target=target)

    def as_json(self) -> dict[str, Any]:
        return {
            "bench": self.name,
            **self.headline,
            "targets": {
                key: {"target": str(target), "met": self._met(key)} for key, target in self.targets.items()
            },
            "raw": self.raw,
            "machine": self.machine | {"load_after": machine.load()},
            "versions": self.versions,
            "flags": self.flags,
            **({"failed": self.failed} if self.failed else {}),
            "seconds": round(time.monotonic() - self._began, 1),
        }

    def table(self) -> Table:
        """Return the figures as text."""
        before = ", ".join(f"{value:g}" for value in self.machine["load_before"])
        table = Table(
            title=f"bench.{self.name}",
            caption=f"{self.machine['cores']} cores, load before: {before}"
            + (" (--quick: figures mean nothing)" if self.quick else ""),
        )
        for heading in ("figure", "value", "target", "ours", "peer", "unit", "CPU s, ours", "CPU s, peer"):
            table.add_column(heading, justify="left" if heading in ("figure", "unit") else "right")
        for key, value in self.headline.items():
            text = "" if value is None else f"{value:g}"
            table.add_row(key, text, self._target(key), *_sides(self.raw.get(key)))
        return table

    def _target(self, key: str) -> str:
        target = self.targets.get(key)
        if target is None:
            return ""
        return f"{target} " + {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[self._met(key)]

    def _met(self, key: str) -> bool | None:
        value = self.headline[key]
        return None if value is None else self.targets[key].met(value)


def _sides(raw: Any) -> tuple[str, str, str, str, str]:
    if not isinstance(raw, dict) or "ours" not in raw or "peer" not in raw:
        return ("", "", "", "", "")
    ours, peer = raw["ours"], raw["peer"]
    medians = (f"{ours['median']:,.4g}", f"{peer['median']:,.4g}")
    return (*medians, ours["unit"], f"{ours['cpu_s']:.2f}", f"{peer['cpu_s']:.2f}")


def options(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the options that every bench has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line of stdout")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test: everything runs, figures mean nothing"
    )
    return parser


def tell(report: Report, *, as_json: bool) -> None:
    """Print the figures to stdout."""
    if as_json:
        print(json.dumps(report.as_json()), flush=True)
    else:
        Console().print(report.table())


def main(name: str, description: str | None, measure: Callable[[Report], None]) -> None:
    """Run a bench from the command line."""
    given = options(name, description).parse_args()
    report = Report(name, quick=given.quick)
    measure(report)
    tell(report, as_json=given.json)


__all__ = [
    "REPETITIONS",
    "Comparison",
    "Report",
    "Series",
    "Target",
    "at_least",
    "at_most",
    "main",
    "options",
    "tell",
]
