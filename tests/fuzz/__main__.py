"""Run the cases of targets: `python -m tests.fuzz json --seconds 60`; repeat one: `--seed N --count 1`."""

import argparse
import itertools
import random
import sys
from collections.abc import Iterator

from tests.fuzz import targets
from tests.fuzz.campaign import failures, reduced
from tidemill.clock import SYSTEM

MOST_KINDS = 10
"""After this many different failures, a run ends."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets",
        nargs="+",
        choices=[*targets.NAMES, *targets.SPARK_NAMES, "views"],
        metavar="target",
        help=f"the inputs to fuzz: {', '.join((*targets.NAMES, *targets.SPARK_NAMES))}, or views alone",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run each target")
    parser.add_argument("--seed", type=int, help="the seed of the first case; default: random")
    parser.add_argument("--count", type=int, help="the number of cases, instead of a time")
    parser.add_argument("--short", action="store_true", help="run as many cases of each target as make test")
    options, others = parser.parse_known_args(arguments)
    if options.targets[0] == "views":
        from tests import fuzz_views

        return fuzz_views.main([*(sys.argv[1:] if arguments is None else arguments)][1:])
    if others:
        parser.error(f"unknown arguments: {' '.join(others)}")
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(2**40)
    sys.stdout.write(f"seed {first}\n")
    sys.stdout.flush()
    for name in options.targets:  # imported before the first fork, which limits the memory
        targets.load(name)
    failed = 0
    for name in options.targets:
        count = targets.cases(name) if options.short else options.count
        failed += _run(name, first, count, options.seconds)
    return 1 if failed else 0


def _run(name: str, first: int, count: int | None, seconds: float) -> int:
    """Run the cases of a target, print what fails, and return the number of different failures."""
    target = targets.load(name)
    numbers = range(first, first + count) if count is not None else itertools.count(first)
    counted = _Counted(iter(numbers), None if count is not None else seconds)
    kinds: set[str] = set()
    for failure in failures(target, counted):
        if failure.outcome.kind in kinds:
            continue
        kinds.add(failure.outcome.kind)
        sys.stdout.write(f"\n{failure.describe(reduced(failure))}\n")
        sys.stdout.flush()
        if len(kinds) >= MOST_KINDS:
            break
    outcome = f"{len(kinds)} different failures" if kinds else "no failure"
    sys.stdout.write(f"{name}: {counted.count} cases, {outcome}\n")
    return len(kinds)


class _Counted(Iterator[int]):
    """Seeds, until the time is over."""

    def __init__(self, seeds: Iterator[int], seconds: float | None) -> None:
        self._seeds = seeds
        self._deadline = None if seconds is None else SYSTEM.monotonic() + seconds
        self.count = 0

    def __next__(self) -> int:
        if self._deadline is not None and SYSTEM.monotonic() >= self._deadline:
            raise StopIteration
        seed = next(self._seeds)
        self.count += 1
        return seed


if __name__ == "__main__":
    sys.exit(main())
