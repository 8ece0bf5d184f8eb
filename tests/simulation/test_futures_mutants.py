"""A simulation that catches nothing proves nothing: each mutant of the futures room must be caught.

The seeds are those of the simulation itself, where the unmutated room breaks no rule.
"""

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from tests.simulation import Violation
from tests.simulation.__main__ import main
from tests.simulation.futures.scenario import futures_world
from tests.simulation.futures_mutants import MUTANTS, mutated

WITHIN = 500
"""Seeds in which each is found; most take one or two."""

LATE = {
    "a failure without the fence": 1827,
    "a loss reported without its version": 85,
    "a worker that does not look for claims it does not know of": 759,
}
"""Those that take most, and the seed that is tried first: the first one that found it, when it was noted."""


def first_caught(name: str) -> tuple[int, Violation]:
    with mutated(name):
        for seed in [LATE.get(name, 0), *range(WITHIN)]:
            try:
                futures_world(seed).run()
            except Violation as violation:
                return seed, violation
    pytest.fail(f"{name}: not caught in {WITHIN} seeds")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, record_property: Callable[[str, object], None]) -> None:
    seed, violation = first_caught(name)
    record_property("caught", f"by seed {seed}: {str(violation).splitlines()[0]}")
    futures_world(seed).run()  # nothing but the mutation did it


def test_a_failing_seed_prints_the_one_command_that_replays_it() -> None:
    name = "a claim that leaves the ready row"
    seed, violation = first_caught(name)
    replay = next(line for line in str(violation).splitlines() if line.startswith("replay: "))
    command = replay.removeprefix("replay: python -m tests.simulation ").split()
    assert f"--scenario futures --seed {seed}" in replay
    with mutated(name):
        again = CliRunner().invoke(main, command)
    assert again.exit_code == 1
    assert "VIOLATED" in again.output
    assert CliRunner().invoke(main, command).exit_code == 0
