"""`tidemill backfill`, `tidemill replay` and `tidemill retry`: lots that somebody wants to be made."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from tidemill.arcs.asks import AskKind
from tidemill.cli.output import Output, json_option
from tidemill.cli.pipeline import find, pipeline_option
from tidemill.pipeline import lot_requests as orders
from tidemill.pipeline.lot_requests import Does, LotRequestPlan, PlannedLot

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

F = TypeVar("F", bound=Callable[..., Any])
MOST_SHOWN = 50
LOOK_S = 0.5
STYLES = {Does.MAKE: "green", Does.AGAIN: "cyan", Does.FOLLOW: "dim", Does.LEAVE: "dim", Does.BLOCKED: "red"}


def order_options(command: F) -> F:
    """What backfill and replay have in common."""
    for option in (
        click.option("--wait", is_flag=True, help="Stay until runners have made them all."),
        click.option("--dry-run", is_flag=True, help="Only show what would be done."),
        click.option(
            "--at-once", type=click.IntRange(1), metavar="N", help="Lots at a time; else as many as it may."
        ),
        click.option("--to", "last", metavar="LOT", help="The last one: a lot, a day or a time."),
        click.option("--from", "first", metavar="LOT", help="The first one: a lot, a day or a time."),
        pipeline_option,
        click.argument("lots", metavar="[LOT]...", nargs=-1),
        click.argument("table"),
    ):
        command = option(command)
    return command


@click.command("backfill")
@order_options
@json_option
def backfill_command(output: Output, /, **options: Any) -> int:
    """Have lots made that are not there, of a TABLE or of the arc that makes it: LOTs, or a range of them.

    Runners make them, so many at once, after what arrives. Exit code 1 when some cannot be made.
    """
    return _order(output, AskKind.BACKFILL, **options)


@click.command("replay")
@order_options
@json_option
def replay_command(output: Output, /, **options: Any) -> int:
    """Have lots made once more, of a TABLE or of the arc that makes it: LOTs, or a range of them.

    Readers have what is there until the new generation of a lot is published; what depends on it follows.
    """
    return _order(output, AskKind.REPLAY, **options)


def _order(
    output: Output,
    kind: AskKind,
    *,
    table: str,
    lots: tuple[str, ...],
    file: str | None,
    first: str | None,
    last: str | None,
    at_once: int | None,
    dry_run: bool,
    wait: bool,
) -> int:
    if not lots and first is None and last is None and kind is AskKind.REPLAY:
        raise click.UsageError("name lots, or a range: --from LOT --to LOT")
    with find(file) as pipeline:
        plan = orders.plan(pipeline, kind, table, lots or None, first=first, last=last, at_once=at_once)
        left = None
        if not dry_run:
            with _progress(output, "asking for lots") as tell:
                plan = orders.ask(pipeline, plan, tell)
            if wait:
                left = _watch(output, pipeline, plan)
    output.result(
        {
            "kind": plan.kind,
            "arc": plan.arc,
            "dry_run": dry_run,
            "at_once": plan.at_once,
            "batch": plan.batch,
            "counts": plan.counts,
            "follows": plan.follows,
            "lots": plan.lots,
            **({} if left is None else {"left": left}),
        }
    )
    if not output.json:
        _show(output, plan, dry_run=dry_run)
    return 1 if plan.those(Does.BLOCKED) else 0


def _watch(output: Output, pipeline: "Pipeline", plan: LotRequestPlan) -> int:
    """Until nothing of an order is left; runners are other processes."""
    total = len(plan.asked)
    with _progress(output, "made") as tell:
        while left := orders.left(pipeline, plan):
            tell(total - left, total)
            pipeline.site.clock.sleep(LOOK_S)
        tell(total, total)
    return 0


@contextmanager
def _progress(output: Output, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where somebody looks at it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=output.stderr, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _show(output: Output, plan: LotRequestPlan, *, dry_run: bool) -> None:
    shown = [one for one in plan.lots if one.does is not Does.LEAVE] if not dry_run else list(plan.lots)
    if shown:
        output.people.print(_table(shown[:MOST_SHOWN]))
    if len(shown) > MOST_SHOWN:
        output.people.print(Text(f"and {len(shown) - MOST_SHOWN:,} others", style="dim"))
    asked = len(plan.asked)
    if not asked:
        output.people.print(Text("there is nothing to be made"))
        return
    lots = f"{asked:,} lot{'s' if asked > 1 else ''}"
    words = f"{lots} would be made" if dry_run else f"{lots} will be made by runners"
    output.people.print(Text(f"{words}, {plan.at_once} at once"))
    if plan.follows:
        output.people.print(Text(f"what follows: {', '.join(plan.follows)}", style="dim"))


def _table(shown: Sequence[PlannedLot]) -> Table:
    made = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("arc", "lot", "", "why"):
        made.add_column(heading, overflow="fold")
    for one in shown:
        made.add_row(
            Text(one.arc), Text(one.lot), Text(one.does.value, style=STYLES[one.does]), Text(one.why)
        )
    return made


@click.command("retry")
@click.argument("arc", required=False)
@click.argument("lots", nargs=-1)
@pipeline_option
@json_option
def retry_command(output: Output, arc: str | None, lots: tuple[str, ...], file: str | None) -> int:
    """Ask for another try at lots that are partial or missing: of one ARC, or of all.

    The next run does it, with only the parts that failed, unless the arc's code has changed.
    """
    with find(file) as pipeline:
        asked = pipeline.retry(arc, lots)
    output.result({"asked": [{"arc": name, "lot": lot} for name, lot in asked]})
    for name, lot in asked[:MOST_SHOWN]:
        output.people.print(Text(f"{name}: lot {lot} is tried again by the next run"))
    if len(asked) > MOST_SHOWN:
        output.people.print(Text(f"and {len(asked) - MOST_SHOWN:,} others", style="dim"))
    if not asked:
        output.people.print(Text("nothing is partial or missing"))
    return 0
