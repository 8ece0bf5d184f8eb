"""Define `tidemill alerts`: show which tables are too old, and send alerts without a runner."""

import os
import signal
import socket
import threading

import click
import msgspec
from rich.table import Table
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.errors import UsageError
from tidemill.pipeline import observing
from tidemill.pipeline.pipeline_file import find


@click.command("alerts")
@pipeline_option
@click.option(
    "--watch",
    is_flag=True,
    help="Keep running, and send alerts to the hooks of the pipeline.",
)
@json_option
def alerts_command(output: CommandOutput, file: str | None, watch: bool) -> int:
    """Show how old the tables with fresh_within= are. The exit code is 1 if one of them is too old.

    Runners send alerts while they run. Use --watch on another machine, so that an alert arrives when all
    runners are gone. Any number of processes may send: one of them does, and another one takes over.
    """
    with find(file) as pipeline:
        if watch:
            if not any(pipeline.hooks.values()):
                raise UsageError(
                    f"the pipeline {pipeline.name} has no hooks",
                    hint="declare them: tm.Pipeline(…, on_failure=…, on_stale=…)",
                )
            observing.declare_tables(pipeline)
            stop = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            output.stderr.print(Text(f"sending the alerts of {pipeline.name}"))
            holder = f"alerts {socket.gethostname()} {os.getpid()}"
            with observing.sending(pipeline, holder):
                while not pipeline.context.clock.wait(stop, 3600.0):
                    continue
            return 0
        ages = observing.ages(pipeline)
    output.result({"tables": [{**msgspec.to_builtins(age), "stale": age.is_stale} for age in ages]})
    if not output.json:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("table", "age", "limit", ""):
            table.add_column(name)
        for age in ages:
            state = Text("stale", style="red") if age.is_stale else Text("fresh", style="green")
            table.add_row(Text(age.table), f"{age.age_s:,.0f} s", f"{age.within_s:,.0f} s", state)
        output.people.print(table if ages else Text("no table has fresh_within="))
    return 1 if any(age.is_stale for age in ages) else 0
