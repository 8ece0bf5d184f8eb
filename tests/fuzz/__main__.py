"""Run the cases of a target: `python -m tests.fuzz json --seconds 60`; repeat one: `--seed N --count 1`."""

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
        "target", choices=[*targets.NAMES, *targets.SPARK_NAMES, "views"], help="the input to fuzz"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run")
    parser.add_argument("--seed", type=int, help="the seed of the first case; default: random")
    parser.add_argument("--count", type=int, help="the number of cases, instead of a time")
    options, others = parser.parse_known_args(arguments)
    if options.target == "views":
        from tests import fuzz_views

        return fuzz_views.main([*(sys.argv[1:] if arguments is None else arguments)][1:])
    if others:
        parser.error(f"unknown arguments: {' '.join(others)}")
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(2**40)
    sys.stdout.write(f"seed {first}\n")
    target = targets.load(options.target)
    numbers = range(first, first + options.count) if options.count is not None else itertools.count(first)
    counted = _Counted(iter(numbers), None if options.count is not None else options.seconds)
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
    sys.stdout.write(f"{options.target}: {counted.count} cases, {outcome}\n")
    return 1 if kinds else 0


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
