"""`tidemill explain`: a view's circuit, what is incremental in it and what is not, and why."""

from pathlib import Path

import click
from rich.text import Text

from tidemill.cli.output import CommandOutput, json_option
from tidemill.cli.pipeline import find, pipeline_option
from tidemill.errors import UsageError
from tidemill.pipeline.tables import View


@click.command("explain")
@click.argument("view")
@pipeline_option
@click.option(
    "--draw", type=click.Path(dir_okay=False, path_type=Path), help="Write the circuit as an SVG file."
)
@json_option
def explain_command(output: CommandOutput, view: str, file: str | None, draw: Path | None) -> None:
    """Say how a view is kept: its operators, the rung each could have, and the reasons."""
    with find(file) as pipeline:
        table = pipeline[view]
        if not isinstance(table, View):
            raise UsageError(f"{view} is no view", hint=f"views are {', '.join(pipeline.views) or 'none'}")
        found = table.explain()
    if draw is not None:
        draw.write_text(found.drawing())
    output.result(found.json() | ({} if draw is None else {"drawing": str(draw)}))
    if not output.json:
        output.people.print(Text(found.text()))
        if draw is not None:
            output.people.print(Text(f"drawn in {draw}", style="dim"))
