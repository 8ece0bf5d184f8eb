"""Define `tidemill config`: show the settings that decide where a pipeline runs, and where each was set."""

import click
from rich.table import Table
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline.pipeline_file import configured, find, locate
from tidemill.pipeline.settings import Setting, environment


@click.command("config")
@pipeline_option
@json_option
def config_command(output: CommandOutput, file: str | None) -> None:
    """Show the settings: each value, and where it was set. Secrets are not shown.

    A setting comes from the environment, from the chosen profile in tidemill.toml, from the declaration of
    the pipeline, or it has its default.
    """
    target, folder = locate(file)
    configuration = configured() if file is None else None
    origin = "-f" if configuration is None else f"configuration file in {folder}"
    with find(file) as pipeline:
        settings = [Setting("pipeline", target, origin), *pipeline.settings, *environment()]
    output.result({"pipeline": pipeline.name, "settings": settings})
    if output.json:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("setting", "value", "set by"):
        table.add_column(name, overflow="fold")
    for setting in settings:
        table.add_row(Text(setting.name, style="bold"), setting.value, Text(setting.origin, style="dim"))
    output.people.print(table)
