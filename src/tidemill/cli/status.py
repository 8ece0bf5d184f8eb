"""Define `tidemill status` and `tidemill ls`: show the state of a pipeline, and list its tables."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import click
import msgspec
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from tidemill.cli.options import pipeline_option, select_options
from tidemill.cli.output import CommandOutput, json_option
from tidemill.obs.lines import counted
from tidemill.pipeline import graph
from tidemill.pipeline.clock_status import clock_of
from tidemill.pipeline.pipeline import Pipeline
from tidemill.pipeline.pipeline_file import find
from tidemill.pipeline.selection import Selection
from tidemill.pipeline.selection import select as selected
from tidemill.pipeline.status import PipelineStatus, RunInfo, TableInfo, status_of, tables_of

STATES = {"waiting": "green", "scheduled": "yellow", "running": "cyan", "new": "dim"}
WORDS = {"waiting": "caught up", "scheduled": "has work", "running": "running", "new": "never run"}


@click.command("status")
@pipeline_option
@select_options
@json_option
def status_command(
    output: CommandOutput, file: str | None, select: tuple[str, ...], exclude: tuple[str, ...]
) -> int:
    """Show the state of every source, arc and view group.

    The exit code is 1 if something has failed and needs attention.
    """
    with find(file) as pipeline:
        status, clock = status_of(pipeline), clock_of(pipeline)
        if select or exclude:
            status = _selected(pipeline, status, selected(pipeline, select, exclude))
    output.result(
        {
            "pipeline": status.pipeline,
            "ok": status.ok,
            "runs": status.runs,
            "tables": status.tables,
            "clock": clock.jump,
        }
    )
    if not output.json:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("", "state", "behind", "node", "problems"):
            table.add_column(name, overflow="fold")
        for run in status.runs:
            table.add_row(
                Text.assemble((f"{run.kind} ", "dim"), (run.name, "bold")),
                Text("paused", style="magenta") if run.paused else Text(WORDS[run.state], STATES[run.state]),
                Text(_behind(run)),
                Text(run.node),
                Text(_problems(run), style="red"),
            )
        output.people.print(
            table if status.runs else Text(f"{status.pipeline} has no sources, arcs or views")
        )
        for run in status.runs:
            if run.address:
                output.people.print(Text.assemble((f"{run.name}: ", "bold"), f"POST {run.address}"))
            for note in run.notes:
                output.people.print(Text.assemble((f"{run.name}: ", "bold"), (note, "red")))
            for note in run.waiting:
                output.people.print(Text.assemble((f"{run.name}: ", "bold"), (note, "yellow")))
        if any(run.partial or run.missing or run.dead for run in status.runs):
            output.people.print(Text("hint: fix the cause, then run `tidemill retry`", style="dim"))
        if clock.jump:
            output.people.print(Text.assemble((clock.jump, "yellow"), "; see `tidemill clock`"))
    return 1 if any(run.needs_attention for run in status.runs) else 0


def _selected(pipeline: Pipeline, status: PipelineStatus, selection: Selection) -> PipelineStatus:
    """Keep the selected sources and arcs, the groups of the selected views, and the tables of all these."""
    groups = {pipeline.views[view].group for view in selection.views}
    tables = _tables(pipeline, selection)
    runs = [
        run
        for run in status.runs
        if selection.has(run.kind, run.name) or (run.kind == "views" and run.name in groups)
    ]
    kept = [table for table in status.tables if table.name in tables]
    return msgspec.structs.replace(status, runs=tuple(runs), tables=tuple(kept))


def _tables(pipeline: Pipeline, selection: Selection) -> set[str]:
    """Return the selected datasets and views, and the tables that selected arcs write."""
    arcs = pipeline.all_arcs()
    tables = {node.name for node in selection.nodes if node.kind in ("dataset", "view")}
    return tables | {
        sink.name for node in selection.nodes if node.kind == "arc" for sink in arcs[node.name].sinks
    }


def _tree(
    pipeline: str,
    tables: Sequence[TableInfo],
    edges: Mapping[str, Sequence[str]],
    sources: Mapping[str, str],
) -> Tree:
    """Draw each table below the first table that it is computed from; later ones refer to it."""
    root = Tree(Text(pipeline, style="bold"))
    drawn: set[str] = set()
    infos = {table.name: table for table in tables}

    def draw(parent: Tree, name: str) -> None:
        table = infos[name]
        others = [read for read in edges[name] if read in infos]
        text = Text.assemble((name, "bold"), f"  {table.kind}", (f"  at {table.position}", "dim"))
        if sources.get(name):
            text.append(f"  with a source ({sources[name]})", style="dim")
        if len(others) > 1:
            text.append(f"  reads {', '.join(others)}", style="dim")
        if name in drawn:
            parent.add(Text.assemble((name, "bold"), ("  see above", "dim")))
            return
        drawn.add(name)
        branch = parent.add(text)
        for reader in infos:
            if name in edges[reader]:
                draw(branch, reader)

    for table in tables:
        if not any(read in infos for read in edges[table.name]):
            draw(root, table.name)
    return root


def _behind(run: RunInfo) -> str:
    parts = [str(run.behind)] if run.behind else []
    parts += [f"{run.requested} requested"] if run.requested else []
    return ", ".join(parts)


def _problems(run: RunInfo) -> str:
    failed = run.partial + run.missing
    problems = [f"{counted(failed, 'lot')} failed"] if failed else []
    problems += [f"failed {run.failures} times"] if run.failures else []
    problems += ["stopped: runs again after a retry"] if run.dead else []
    return ", ".join(problems)


@click.command("ls")
@click.option("--tree", "as_tree", is_flag=True, help="Show which table is computed from which.")
@pipeline_option
@select_options
@json_option
def ls_command(
    output: CommandOutput,
    as_tree: bool,
    file: str | None,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
) -> None:
    """List the tables of the pipeline."""
    with find(file) as pipeline:
        tables = tables_of(pipeline)
        if select or exclude:
            names = _tables(pipeline, selected(pipeline, select, exclude))
            tables = [table for table in tables if table.name in names]
        edges = {table.name: graph.inputs_of(pipeline, table.name) for table in tables}
        sources = {
            name: ", ".join(str(source.line) for source in pipeline.sources_of(name))
            for name in pipeline.datasets
        }
    reads = {"reads": edges} if as_tree else {}
    output.result({"pipeline": pipeline.name, "tables": tables, **reads})
    if output.json:
        return
    if as_tree:
        output.people.print(_tree(pipeline.name, tables, edges, sources))
        return
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("table", "kind", "position", "last lot", "columns"):
        shown.add_column(name, overflow="fold")
    for table in tables:
        at = datetime.fromtimestamp(table.at, UTC).strftime("%Y-%m-%d %H:%M:%S") if table.at else ""
        shown.add_row(Text(table.name, style="bold"), table.kind, str(table.position), at, Text(table.schema))
    output.people.print(shown if tables else Text(f"{pipeline.name} has no tables"))
