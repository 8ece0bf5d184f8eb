"""A simulation that catches nothing proves nothing: each mutant of the cluster room must be caught.

The seeds are those of the simulation itself, where the unmutated room breaks no rule. Some mutants fail only
in rare moments; those are looked for under the misfortunes that bring them about, and the unmutated room must
pass the same world.
"""

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from tests.simulation import Violation
from tests.simulation.__main__ import main
from tests.simulation.mutants import MUTANTS, mutated, world_for
from tests.simulation.test_cluster_simulation import SEEDS


def first_caught(name: str) -> tuple[int, Violation]:
    with mutated(name):
        for seed in range(SEEDS):
            try:
                world_for(name, seed).run()
            except Violation as violation:
                return seed, violation
    pytest.fail(f"{name}: not caught in {SEEDS} seeds")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, record_property: Callable[[str, object], None]) -> None:
    seed, violation = first_caught(name)
    record_property("caught", f"by seed {seed}: {str(violation).splitlines()[0]}")
    world_for(name, seed).run()  # nothing but the mutation did it


def test_a_failing_seed_prints_the_one_command_that_replays_it() -> None:
    name = "take and claim in two transactions"
    seed, violation = first_caught(name)
    replay = next(line for line in str(violation).splitlines() if line.startswith("replay: "))
    command = replay.removeprefix("replay: python -m tests.simulation ").split()
    assert f"--seed {seed}" in replay
    with mutated(name):
        again = CliRunner().invoke(main, command)
    assert again.exit_code == 1
    assert str(violation).splitlines()[0] in again.output
    assert "VIOLATED" in again.output
    assert "commits" in again.output
    healthy = CliRunner().invoke(main, command)
    assert healthy.exit_code == 0
    assert "every rule held" in healthy.output


def test_many_seeds_end_with_a_summary_that_names_those_that_failed() -> None:
    with mutated("an index that keeps the old expiry"):
        ran = CliRunner().invoke(main, ["--seeds", "3"])
    assert ran.exit_code == 1
    assert "3 seeds" in ran.output
    assert "failed: 0 1 2" in ran.output
