"""Define `tidemill run`: run a pipeline until it has processed all new data, or keep watching for data."""

from typing import Any

import click
import msgspec
from rich.text import Text

from tidemill.cli.options import pipeline_option, select_options, ttl_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.cli.ui import page_options
from tidemill.clock import SYSTEM
from tidemill.cluster.leases import TTL_S, LeaseTiming
from tidemill.events import Event
from tidemill.futures.worker.events import ChildEnded
from tidemill.obs.lines import line_of
from tidemill.pipeline.child_process import MAIN, RunRequest, read_info
from tidemill.pipeline.pipeline_file import locate
from tidemill.runner.part_futures import resource_of
from tidemill.runner.supervisor import RunnerInterrupted, RunnerOptions, run_runner
from tidemill.ui import runner_page
from tidemill.ui.runner_page import PageRunRequest
from tidemill.ui.server import PageOptions, require_packages


@click.command("run")
@pipeline_option
@click.option("--watch", is_flag=True, help="Keep running, and process new data as it arrives.")
@click.option(
    "--spark",
    default="",
    metavar="MASTER",
    help="Use this Spark master instead of the one in the pipeline: local[4], spark://host:port or"
    " sc://host:port.",
)
@click.option(
    "--threads",
    default=4,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Maximum number of parts to process in parallel.",
)
@click.option(
    "--grace",
    "grace_s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Grace period: seconds that running parts may take to finish after SIGTERM.",
)
@ttl_option("runner")
@select_options
@click.option(
    "--log-json",
    is_flag=True,
    help="Print events as JSON lines on standard error, for log collectors.",
)
@click.option("--ui", is_flag=True, help="Serve the page of the cluster while the pipeline runs.")
@page_options("ui-")
@click.option("-q", "--quiet", is_flag=True, help="Print only warnings and errors.")
@json_option
def run_command(
    output: CommandOutput,
    /,
    file: str | None,
    watch: bool,
    spark: str,
    threads: int,
    grace_s: float,
    ttl_s: float,
    ui: bool,
    quiet: bool,
    log_json: bool,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
    **page: Any,
) -> int:
    """Run the pipeline: its sources, arcs and views process new data.

    Without --watch, the command ends when all data that has arrived is processed. The exit code is 1 if
    something failed. If the command is stopped before all data is processed, the exit code is 130 for Ctrl-C
    and 143 for SIGTERM. With --select, the run starts only the selected sources, arcs and views; views of one
    group are updated together. Several runners may run one pipeline at the same time, on machines that share
    its store and its object storage.
    """
    if ui:
        require_packages()
    return run_pipeline(
        file,
        output,
        watch=watch,
        spark=spark,
        threads=threads,
        grace_s=grace_s,
        ttl_s=ttl_s,
        quiet=quiet,
        log_json=log_json,
        select=select,
        exclude=exclude,
        page=PageOptions(**page) if ui else None,
    )


def run_pipeline(
    file: str | None,
    output: CommandOutput,
    *,
    watch: bool,
    starts: bool = True,
    spark: str = "",
    threads: int = 4,
    grace_s: float = 30.0,
    ttl_s: float = TTL_S,
    quiet: bool = False,
    log_json: bool = False,
    select: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    page: PageOptions | None = None,
) -> int:
    """Run a pipeline in a child process, supervised by this process; return the exit code."""
    target, folder = locate(file)
    info = read_info(target, folder)
    request = RunRequest(
        target=target,
        folder=str(folder),
        watch=watch,
        starts=starts,
        spark=spark,
        threads=threads,
        json=output.json,
        quiet=quiet,
        log_json=log_json,
        select=select,
        exclude=exclude,
    )
    options = RunnerOptions(
        names=frozenset({resource_of(info.name)}),
        threads=threads,
        grace_s=grace_s,
        timing=LeaseTiming(ttl_s),
        finishes=not watch,
    )

    def tell(event: Event) -> None:
        if isinstance(event, RunnerInterrupted):
            output.interrupted()
        elif isinstance(event, ChildEnded) and (line := line_of(event)) is not None:
            output.stderr.print(Text(f"{line.about:<16} {line.text}", style="yellow"))

    if page is None:
        return run_runner(info.place, MAIN, msgspec.to_builtins(request), options, emit=tell)
    page.policy(SYSTEM)  # raises an error now, not in the child
    with_page = msgspec.to_builtins(PageRunRequest(run=request, page=page))
    return run_runner(info.place, runner_page.MAIN, with_page, options, emit=tell)
