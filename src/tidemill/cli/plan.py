"""Define `tidemill plan`: show what running a pipeline would change, and what it would cost."""

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from tidemill.cli.options import ClusterLocation, pipeline_option, select_options
from tidemill.cli.output import CommandOutput, json_option
from tidemill.futures.home import CLUSTER
from tidemill.obs.lines import counted
from tidemill.pipeline.pipeline import Pipeline
from tidemill.pipeline.pipeline_file import find
from tidemill.pipeline.plan.costs import ViewCost
from tidemill.pipeline.selection import KINDS, Selection
from tidemill.pipeline.selection import select as selected

STYLES = {"new": "green", "same": "dim", "changed": "yellow", "removed": "red", "refused": "red"}
REFUSED, REBUILDS = 1, 2
AGAINST = "--against"


@click.command("plan")
@click.option(
    "--against",
    metavar="HOME|STORE",
    help="Compare with this home folder or store URL instead of the pipeline's own, for example with"
    " production. The exit code is 2 if a view would be rebuilt.",
)
@pipeline_option
@select_options
@json_option
def plan_command(
    output: CommandOutput,
    against: str | None,
    file: str | None,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
) -> int:
    """Check the declarations, and show what a run would change and which views it would rebuild.

    The exit code is 1 if a run would refuse a declaration. With --select, only what concerns the selected
    sources, arcs and views is shown; the whole pipeline is checked nevertheless.
    """
    with find(file) as pipeline:
        if against is not None:
            _use_store(pipeline, against)
        plan = pipeline.plan()
        stages, refusals, costs = plan.describe(), plan.refusals(), plan.costs()
        if select or exclude:
            selection = selected(pipeline, select, exclude)
            groups = {pipeline.views[view].group for view in selection.views}
            stages = [stage for stage in stages if _concerns(stage, selection, groups)]
            costs = [cost for cost in costs if cost.view in selection.views]
    refused = [{"code": error.code, "message": error.message, "hint": error.hint} for error in refusals]
    output.result({"pipeline": pipeline.name, "stages": stages, "refused": refused, "costs": costs})
    if not output.json:
        _print(output, pipeline.name, stages, costs)
        for error in refusals:
            output.error(error.code, error.message, error.hint)
    if refused:
        return REFUSED
    return REBUILDS if against is not None and any(cost.rebuilds for cost in costs) else 0


def _concerns(stage: dict[str, str], selection: Selection, groups: set[str]) -> bool:
    """Return whether a stage declares a selected node, the group of a selected view, or compares the view."""
    what, name = stage["what"], stage["name"]
    if what == "views":
        return bool(groups & set(name.split(", ")))
    return selection.has(what, name) or (what not in KINDS and name in selection.views)


def _use_store(pipeline: Pipeline, where: str) -> None:
    if "://" in where:
        pipeline.use_settings({"store": where}, AGAINST, Path.cwd())
        return
    ClusterLocation(where, None, CLUSTER)  # refuses a folder that is not a home: opening it would create one
    pipeline.use_settings({"home": where}, AGAINST, Path.cwd())


def _print(output: CommandOutput, pipeline: str, stages: list[dict[str, str]], costs: list[ViewCost]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", "what", "name", "detail", "declared at"):
        table.add_column(name, overflow="fold")
    for stage in stages:
        status = Text(stage["status"], style=STYLES[stage["status"]])
        where = Text(stage["where"], style="dim")
        what = "test" if stage["what"] == "circuit" else stage["what"]
        table.add_row(status, what, Text(stage["name"]), Text(stage["detail"]), where)
    output.people.print(table if stages else Text(f"{pipeline} declares nothing"))
    if not costs:
        return
    output.people.print()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", "view", "why", "reads again", "takes about"):
        table.add_column(name, overflow="fold")
    for cost in costs:
        style, what = ("yellow", "rebuild") if cost.rebuilds else ("green", "load")
        size = f"{counted(cost.rows, 'row')}, {cost.size / 2**20:,.1f} MiB in {counted(cost.lots, 'lot')}"
        table.add_row(
            Text(what, style=style), Text(cost.view), cost.why, size, f"{max(1, cost.seconds):,.0f} s"
        )
    output.people.print(table)
