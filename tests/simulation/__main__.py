"""Run seeds from the command line: `python -m tests.simulation --seed 12345 --trace`."""

import sys
from collections import Counter

import click

from tests.simulation import SCENARIOS
from tests.simulation.world import SimulationReport, Violation, World
from tidemill.clock import SYSTEM

PROGRESS_S = 5.0


@click.command()
@click.option("--seed", type=int, help="Replay one seed.")
@click.option("--seeds", type=int, default=200, show_default=True, help="The number of seeds.")
@click.option("--start", type=int, default=0, show_default=True, help="The first seed.")
@click.option("--scenario", type=click.Choice(sorted(SCENARIOS)), default="cluster", show_default=True)
@click.option("--trace", is_flag=True, help="Print the timeline of the seed.")
@click.option("--digest", is_flag=True, help="Print one number for each timeline.")
@click.option("--stop", is_flag=True, help="Stop at the first seed that fails.")
def main(
    seed: int | None, seeds: int, start: int, scenario: str, trace: bool, digest: bool, stop: bool
) -> None:
    """Simulate clusters with faults; the exit code is 1 if a rule was broken."""
    if seed is not None:
        sys.exit(0 if replay(SCENARIOS[scenario](seed), trace=trace, digest=digest) else 1)
    sys.exit(1 if run_many(scenario, range(start, start + seeds), digest=digest, stop=stop) else 0)


def replay(world: World, *, trace: bool, digest: bool) -> bool:
    """Run one world and print the result; return whether every rule held."""
    broken = None
    try:
        world.run()
    except Violation as violation:
        broken = violation
    if trace:
        click.echo("\n".join(world.timeline.lines()))
        click.echo(f"conditions: {world.swarm}")
    if digest:
        click.echo(world.timeline.digest())
    if broken is not None:
        click.echo(str(broken).splitlines()[0] if trace else str(broken), err=True)
        return False
    report = world.report()
    click.echo(
        f"seed {world.seed}: every rule held; {report.events} events, {report.commits} commits, "
        f"{report.conflicts} conflicts, {report.true_s:.1f} s simulated"
    )
    return True


def run_many(scenario: str, seeds: range, *, digest: bool, stop: bool) -> list[int]:
    """Run seeds, print progress and a summary; return the seeds that failed."""
    failed: list[int] = []
    reports: list[SimulationReport] = []
    began = printed = SYSTEM.monotonic()
    for number, seed in enumerate(seeds, start=1):
        world = SCENARIOS[scenario](seed)
        try:
            reports.append(world.run())
        except Violation as violation:
            failed.append(seed)
            click.echo(str(violation) if len(failed) == 1 else str(violation).splitlines()[0], err=True)
            if stop:
                break
        if digest:
            click.echo(f"{seed} {world.timeline.digest()}")
        if SYSTEM.monotonic() - printed > PROGRESS_S:
            printed = SYSTEM.monotonic()
            click.echo(
                f"{number} of {len(seeds)} seeds, {len(failed)} failed, {printed - began:.0f} s", err=True
            )
    summarise(reports, failed, SYSTEM.monotonic() - began)
    return failed


def summarise(reports: list[SimulationReport], failed: list[int], took_s: float) -> None:
    """Print the number of seeds, events and faults."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    click.echo(
        f"{len(reports) + len(failed)} seeds in {took_s:.1f} s: {len(failed)} failed; "
        f"{sum(report.events for report in reports):,} events, "
        f"{sum(report.commits for report in reports):,} commits, "
        f"{sum(report.conflicts for report in reports):,} conflicts, "
        f"{sum(report.true_s for report in reports) / 3600:.1f} h simulated"
    )
    click.echo(", ".join(f"{name} {count:,}" for name, count in counts.most_common()))
    if failed:
        click.echo(f"failed: {' '.join(map(str, failed))}")


if __name__ == "__main__":
    main()
