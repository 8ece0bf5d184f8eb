"""Define `tidemill backfill`, `tidemill replay` and `tidemill retry`: request lots."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from tidemill.arcs.lot_requests import RequestKind
from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.obs.lines import counted
from tidemill.pipeline import lot_requests, view_retries
from tidemill.pipeline.lot_requests import LotAction, LotRequestPlan, PlannedLot
from tidemill.pipeline.pipeline_file import find
from tidemill.views.steps.failed_views import PassedLot

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

F = TypeVar("F", bound=Callable[..., Any])
MAX_SHOWN = 50
POLL_S = 0.5
STYLES = {
    LotAction.MAKE: "green",
    LotAction.REMAKE: "cyan",
    LotAction.FOLLOW: "dim",
    LotAction.SKIP: "dim",
    LotAction.BLOCKED: "red",
}


def request_options(command: F) -> F:
    """Add the arguments and options that backfill and replay share."""
    for option in (
        click.option(
            "--wait",
            is_flag=True,
            help="Wait until runners have produced all lots, including lots that were requested before.",
        ),
        click.option("--dry-run", is_flag=True, help="Show the plan without changing anything."),
        click.option(
            "--parallel",
            type=click.IntRange(1),
            metavar="N",
            help="Maximum number of lots to produce in parallel. Default: the limit of the arc.",
        ),
        click.option("--to", "last", metavar="LOT", help="The last lot: a lot id, a day or a time."),
        click.option("--from", "first", metavar="LOT", help="The first lot: a lot id, a day or a time."),
        pipeline_option,
        click.argument("lots", metavar="[LOT]...", nargs=-1),
        click.argument("table"),
    ):
        command = option(command)
    return command


@click.command("backfill")
@request_options
@json_option
def backfill_command(output: CommandOutput, /, **options: Any) -> int:
    """Produce lots that are missing from a table.

    TABLE is the name of a table or an arc. Pass the LOTs, or a range with --from and --to. Runners produce
    these lots, but keep capacity free for new data. The exit code is 1 if some lots cannot be produced. With
    --wait, the exit code is also 1 if runners failed to produce some lots.
    """
    return _request(output, RequestKind.BACKFILL, **options)


@click.command("replay")
@request_options
@click.option("--all", "everything", is_flag=True, help="Produce all lots of the table again.")
@json_option
def replay_command(output: CommandOutput, /, everything: bool, **options: Any) -> int:
    """Produce lots of a table again, as new generations.

    TABLE is the name of a table or an arc. Pass the LOTs, a range with --from and --to, or --all. Readers see
    the old rows until the new generation of a lot is published. Downstream tables and views are updated
    afterwards.
    """
    selected = bool(options["lots"] or options["first"] or options["last"])
    if selected == everything:
        raise click.UsageError("pass either lots, or a range (--from LOT --to LOT), or --all")
    return _request(output, RequestKind.REPLAY, **options)


def _request(
    output: CommandOutput,
    kind: RequestKind,
    *,
    table: str,
    lots: tuple[str, ...],
    file: str | None,
    first: str | None,
    last: str | None,
    parallel: int | None,
    dry_run: bool,
    wait: bool,
) -> int:
    with find(file) as pipeline:
        plan = lot_requests.plan(
            pipeline, kind, table, lots or None, first=first, last=last, parallel=parallel
        )
        failed: list[PlannedLot] | None = None
        if not dry_run:
            with _progress(output, "requesting lots") as report:
                plan = lot_requests.submit(pipeline, plan, report)
            if wait:
                failed = _wait(output, pipeline, plan)
    output.result(
        {
            "kind": plan.kind,
            "arc": plan.arc,
            "dry_run": dry_run,
            "parallel": plan.parallel,
            "batch": plan.batch,
            "counts": plan.counts,
            "downstream": plan.downstream,
            "lots": plan.lots,
            **({} if failed is None else {"remaining": 0, "failed": failed}),
        }
    )
    if not output.json:
        _show(output, plan, dry_run=dry_run)
        for lot in failed or ():
            output.people.print(Text(f"{lot.arc}: lot {lot.lot} was not produced", style="red"))
        if failed:
            output.people.print(Text("see the reasons with: tidemill gaps", style="dim"))
    return 1 if plan.with_action(LotAction.BLOCKED) or failed else 0


def _wait(output: CommandOutput, pipeline: "Pipeline", plan: LotRequestPlan) -> list[PlannedLot]:
    """Wait until runners in other processes have produced the lots. Return the lots that failed."""
    progress = lot_requests.LotProgress(pipeline, plan)
    with _progress(output, "lots produced") as report:
        progress.update()
        while progress.remaining:
            report(progress.total - len(progress.remaining), progress.total)
            pipeline.context.clock.sleep(POLL_S)
            progress.update()
        report(progress.total, progress.total)
    return progress.failed


@contextmanager
def _progress(output: CommandOutput, label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=output.stderr, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda completed, total: bar.update(task, completed=completed, total=total)


def _show(output: CommandOutput, plan: LotRequestPlan, *, dry_run: bool) -> None:
    shown = [lot for lot in plan.lots if dry_run or lot.action is not LotAction.SKIP]
    if shown:
        output.people.print(_table(shown[:MAX_SHOWN]))
    if len(shown) > MAX_SHOWN:
        output.people.print(Text(f"and {len(shown) - MAX_SHOWN:,} more", style="dim"))
    requested = len(plan.requested)
    if not requested:
        output.people.print(Text("there is nothing to produce"))
        return
    lots = counted(requested, "lot")
    sentence = f"runners would produce {lots}" if dry_run else f"runners will produce {lots}"
    output.people.print(Text(f"{sentence}, {plan.parallel} in parallel"))
    if plan.downstream:
        output.people.print(Text(f"downstream: {', '.join(plan.downstream)}", style="dim"))


def _table(lots: Sequence[PlannedLot]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("arc", "lot", "action", "why"):
        table.add_column(heading, overflow="fold")
    for lot in lots:
        table.add_row(
            Text(lot.arc), Text(lot.lot), Text(lot.action.value, style=STYLES[lot.action]), Text(lot.why)
        )
    return table


@click.command("retry")
@click.argument("name", required=False)
@click.argument("lots", metavar="[LOT]...", nargs=-1)
@click.option(
    "--skip",
    is_flag=True,
    help="Compute the view NAME without the lots on which it fails, or without these LOTs.",
)
@click.option(
    "--replace",
    "generations",
    multiple=True,
    metavar="LOT=GEN",
    help="Compute the view NAME with generation GEN of LOT instead of the current one. Can be repeated.",
)
@pipeline_option
@json_option
def retry_command(
    output: CommandOutput,
    name: str | None,
    lots: tuple[str, ...],
    skip: bool,
    generations: tuple[str, ...],
    file: str | None,
) -> int:
    """Retry the failed lots of one arc, or of all arcs, and views that are set aside.

    NAME is an arc, a table that an arc writes, a view, or a group of views. The next run repeats only the
    parts that failed. If the code of the arc has changed, it runs all parts of these lots again. With LOTs,
    only these lots of the arc are retried. A view is retried as a whole.

    A view is set aside if it fails on its input. With --skip and --replace, it passes over that input, until
    the lots get new generations or the view is edited. Other views still read these lots.
    """
    with find(file) as pipeline:
        if skip or generations:
            if name is None or (lots and not skip):
                raise click.UsageError("--skip and --replace need a view; only --skip takes lots")
            passed = view_retries.pass_over(pipeline, name, lots, _generations(generations))
            return _show_passed(output, name, passed)
        requested = lot_requests.retry(pipeline, name, lots)
        views = view_retries.retry(pipeline, name)
    output.result(
        {"requested": [{"arc": arc, "lot": lot} for arc, lot in requested], "views": views, "passed": []}
    )
    for view in views:
        output.people.print(Text(f"view {view}: the next step computes it again"))
    for name, lot in requested[:MAX_SHOWN]:
        output.people.print(Text(f"{name}: the next run retries lot {lot}"))
    if len(requested) > MAX_SHOWN:
        output.people.print(Text(f"and {len(requested) - MAX_SHOWN:,} more", style="dim"))
    if not requested and not views:
        output.people.print(Text("no lot has failed, and no view is set aside"))
    return 0


def _generations(values: Sequence[str]) -> dict[str, int]:
    generations = {}
    for value in values:
        lot, _, generation = value.rpartition("=")
        if not lot or not generation.isdigit():
            raise click.UsageError(f"--replace {value}: write LOT=GEN, such as 2026-11-18=0")
        generations[lot] = int(generation)
    return generations


def _show_passed(output: CommandOutput, view: str, passed: Sequence[PassedLot]) -> int:
    output.result(
        {
            "requested": [],
            "views": [view],
            "passed": [
                {
                    "dataset": lot.dataset.name,
                    "lot": lot.lot,
                    "generation": lot.generation,
                    "used": lot.used if lot.used >= 0 else None,
                }
                for lot in passed
            ],
        }
    )
    for lot in passed:
        output.people.print(Text(f"view {view} passes over {lot}"))
    return 0
