"""`tidemill run`: a runner that catches up, or watches."""

import click
import msgspec

from tidemill.cli.output import Output, json_option
from tidemill.cli.pipeline import located, pipeline_option
from tidemill.cluster.leases import TTL_S, LeaseTiming
from tidemill.pipeline.child_process import MAIN, Asked, ask
from tidemill.runner.part_futures import resource_of
from tidemill.runner.supervisor import RunnerOptions, run_runner


@click.command("run")
@pipeline_option
@click.option("--watch", is_flag=True, help="Stay, and process what arrives.")
@click.option("--spark", default="", metavar="MASTER", help="local[4], spark://host:port or sc://host:port.")
@click.option("--threads", default=4, show_default=True, type=click.IntRange(1, 256), help="Parts at once.")
@click.option(
    "--grace",
    "grace_s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds for running parts after SIGTERM.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say only what goes wrong.")
@json_option
def run_command(
    output: Output,
    file: str | None,
    watch: bool,
    spark: str,
    threads: int,
    grace_s: float,
    quiet: bool,
) -> int:
    """Take everything that has arrived through sources, arcs and views.

    Exit code 1 when something failed. Any number of runners may run one pipeline at once, on any machines
    that share its store and objects.
    """
    return run_pipeline(file, output, watch=watch, spark=spark, threads=threads, grace_s=grace_s, quiet=quiet)


def run_pipeline(
    file: str | None,
    output: Output,
    *,
    watch: bool,
    starts: bool = True,
    spark: str = "",
    threads: int = 4,
    grace_s: float = 30.0,
    ttl_s: float = TTL_S,
    quiet: bool = False,
) -> int:
    """Be a runner of a pipeline: a supervisor here, and a child that imports it; the exit code."""
    target, folder = located(file)
    about = ask(target, folder)
    asked = Asked(
        target=target,
        folder=str(folder),
        watch=watch,
        starts=starts,
        spark=spark,
        threads=threads,
        json=output.json,
        quiet=quiet,
    )
    options = RunnerOptions(
        names=frozenset({resource_of(about.name)}),
        threads=threads,
        grace_s=grace_s,
        timing=LeaseTiming(ttl_s),
    )
    return run_runner(about.place, MAIN, msgspec.to_builtins(asked), options)
