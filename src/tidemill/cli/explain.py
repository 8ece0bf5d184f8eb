"""Define `tidemill explain`: show how a view is computed."""

from pathlib import Path

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.errors import UsageError
from tidemill.pipeline.explanation import retry_certification
from tidemill.pipeline.pipeline_file import find
from tidemill.pipeline.tables import View


@click.command("explain")
@click.argument("view")
@pipeline_option
@click.option(
    "--draw",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a drawing of the circuit to this SVG file.",
)
@click.option(
    "--retry",
    is_flag=True,
    help="Tidemill tests a view by comparing it with plain Spark. If this test failed, repeat it in the next"
    " run.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show each operator of the view, and how it is updated."
)
@json_option
def explain_command(
    output: CommandOutput, view: str, file: str | None, draw: Path | None, retry: bool, verbose: bool
) -> None:
    """Show how a view is kept up to date: from its changes, or by computing it again, and why.

    With --verbose, the output shows how Tidemill updates each operator of the view, and why. There are four
    ways, called rungs: linear, native, keyed and full.
    """
    with find(file) as pipeline:
        table = pipeline[view]
        if not isinstance(table, View):
            raise UsageError(
                f"{view} is not a view",
                hint=f"the views of this pipeline are: {', '.join(pipeline.views) or '(none)'}",
            )
        if retry and not retry_certification(pipeline, view):
            raise UsageError(
                f"nothing to retry: the comparison of {view} with plain Spark has not failed",
                hint="omit --retry",
            )
        explanation = table.explain()
    if draw is not None:
        draw.write_text(explanation.drawing())
    output.result(explanation.json() | ({} if draw is None else {"drawing": str(draw)}))
    if not output.json:
        output.people.print(Text(explanation.text() if verbose else explanation.summary()))
        if not verbose and explanation.circuit is not None:
            hint = f"`tidemill explain {view} --verbose` shows each operator"
            output.people.print(Text(hint, style="dim"))
        if draw is not None:
            output.people.print(Text(f"the drawing is in {draw}", style="dim"))
