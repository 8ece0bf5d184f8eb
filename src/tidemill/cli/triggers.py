"""`tidemill triggers`: what is due, waiting, paused and dead, and why; retry, pause, resume, rebuild."""

from collections.abc import Callable, Sequence

import click
from rich.table import Table
from rich.text import Text

from tidemill.cli.output import CommandOutput, json_option
from tidemill.cli.pipeline import locate, pipeline_option
from tidemill.cli.where import ClusterLocation, where_options
from tidemill.errors import TidemillError
from tidemill.lots.keys import LotKeys
from tidemill.pipeline.child_process import read_info
from tidemill.store import Tx
from tidemill.triggers import heap_sync, listing, subscriptions
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.listing import Listed, Overview, Shown
from tidemill.triggers.subscriptions import AnyRow
from tidemill.triggers.terms import CatchUp

STYLES = {
    Shown.DUE: "yellow",
    Shown.RUNNING: "cyan",
    Shown.DEAD: "bold red",
    Shown.PAUSED: "magenta",
    Shown.UNREADY: "red",
    Shown.WAITING: "dim",
}
MOST_DEAD = 10_000


@click.group("triggers", invoke_without_command=True)
@pipeline_option
@where_options
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in Shown]),
    help="Only those in this state.",
)
@click.option("--name", default="", metavar="TEXT", help="Only those whose name has this; * may be used.")
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 1_000_000), help="At most so many."
)
@json_option
@click.pass_context
def triggers_command(
    ctx: click.Context,
    output: CommandOutput,
    file: str | None,
    home: str | None,
    store: str | None,
    cluster: str,
    states: tuple[str, ...],
    name: str,
    limit: int,
) -> None:
    """List subscriptions: which are due, waiting, paused or dead, and why.

    Of the cluster in --home or --store; else of the one that the pipeline of -f, or of tidemill.toml, is in.
    """
    ctx.meta["tidemill.where"] = (file, home, store, cluster)
    if ctx.invoked_subcommand is not None:
        return
    where = _where(home, store, cluster)
    keys, lots = TriggerKeys(where.cluster), LotKeys(where.cluster)
    with where.open() as opened:
        found = listing.listed(opened, keys, lots, states=states, name=name, limit=limit)
        seen = listing.overview(opened, keys)
    output.result({"triggers": found, "overview": seen})
    if not output.json:
        output.people.print(_table(found) if found else Text("no triggers"))
        output.people.print(Text(_words(seen), style="dim"))


@triggers_command.command("retry")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--dead", is_flag=True, help="All that are dead.")
@where_options
@json_option
def retry_command(
    output: CommandOutput,
    names: tuple[str, ...],
    dead: bool,
    home: str | None,
    store: str | None,
    cluster: str,
) -> int:
    """Arm dead triggers again, with their failures forgotten; those that back off are tried at once."""
    if bool(names) == dead:
        raise click.UsageError("give names, or --dead")
    where = _where(home, store, cluster)
    keys = TriggerKeys(where.cluster)
    if dead:
        with where.open() as opened:
            only = [Shown.DEAD.value]
            found = listing.listed(opened, keys, LotKeys(where.cluster), states=only, limit=MOST_DEAD)
        names = tuple(one.name for one in found)
    return _each(output, where, names, "armed again", lambda tx, one: subscriptions.retry(tx, keys, one))


@triggers_command.command("pause")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@where_options
@json_option
def pause_command(
    output: CommandOutput, names: tuple[str, ...], home: str | None, store: str | None, cluster: str
) -> int:
    """Run triggers no more; what is published meanwhile is kept for them, and a run under way goes on."""
    where = _where(home, store, cluster)
    keys = TriggerKeys(where.cluster)
    return _each(output, where, names, "paused", lambda tx, one: subscriptions.pause(tx, keys, one))


@triggers_command.command("resume")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--catch-up",
    type=click.Choice([policy.value for policy in CatchUp]),
    help="What is processed of that which was published meanwhile; as declared if left out.",
)
@where_options
@json_option
def resume_command(
    output: CommandOutput,
    names: tuple[str, ...],
    catch_up: str | None,
    home: str | None,
    store: str | None,
    cluster: str,
) -> int:
    """Run paused triggers again."""
    where = _where(home, store, cluster)
    keys, lots = TriggerKeys(where.cluster), LotKeys(where.cluster)
    policy = None if catch_up is None else CatchUp(catch_up)
    return _each(
        output, where, names, "resumed", lambda tx, one: subscriptions.resume(tx, keys, lots, one, policy)
    )


@triggers_command.command("rebuild")
@where_options
@json_option
def rebuild_command(output: CommandOutput, home: str | None, store: str | None, cluster: str) -> None:
    """Have the heap pushed again from the store, after it was lost or is to be somewhere else.

    The runners of the cluster do it. A lost heap is also noticed without this, after a while.
    """
    where = _where(home, store, cluster)
    with where.open() as opened:
        opened.run(lambda tx: heap_sync.begin_rebuild(tx, TriggerKeys(where.cluster)))
    output.result({"rebuilding": True})
    if not output.json:
        output.people.print(Text("the heap is rebuilt by the runners of the cluster"))


def _where(home: str | None, store: str | None, cluster: str) -> ClusterLocation:
    """Return the location: from the command's options, those of `triggers` before it, or the pipeline."""
    file, *given = click.get_current_context().meta["tidemill.where"]
    if home is None and store is None:
        home, store, cluster = given
    if home is None and store is None:
        info = read_info(*locate(file))
        return ClusterLocation(info.home or None, None if info.home else info.store, info.cluster)
    return ClusterLocation(home, store, cluster)


def _each(
    output: CommandOutput,
    where: ClusterLocation,
    names: Sequence[str],
    done: str,
    change: Callable[[Tx, str], AnyRow],
) -> int:
    """Change each of them in a transaction of its own; 1 when one of several was refused."""
    changed: list[str] = []
    refused: dict[str, str] = {}
    with where.open() as opened:
        for name in names:
            try:
                opened.run(lambda tx, name=name: change(tx, name))  # type: ignore[misc]
                changed.append(name)
            except TidemillError as error:
                if len(names) == 1:
                    raise
                refused[name] = error.message
    output.result({done: changed, "refused": refused})
    if not output.json:
        for name in changed:
            output.people.print(Text(f"{name} is {done}"))
    for name, why in refused.items():
        output.stderr.print(Text(f"{name}: {why}", style="red"))
    return 1 if refused else 0


# --- for people


def _table(found: Sequence[Listed]) -> Table:
    made = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("trigger", "state", "when", "behind", "why"):
        made.add_column(heading, overflow="fold", no_wrap=heading in ("state", "when"))
    for one in found:
        behind = ", ".join(f"{source} {number}" for source, number in one.behind.items() if number)
        made.add_row(
            Text(one.name),
            Text(one.state.value, style=STYLES.get(one.state, "")),
            Text("" if one.in_s is None else _when(one.in_s)),
            Text(behind),
            Text(one.why),
        )
    return made


def _when(seconds: float) -> str:
    size = abs(seconds)
    words = (
        f"{size / 3600:.1f} h" if size >= 3600 else f"{size / 60:.1f} min" if size >= 60 else f"{size:.1f} s"
    )
    return f"in {words}" if seconds > 0 else f"since {words}"


def _words(seen: Overview) -> str:
    parts = [f"heap: {seen.heap or 'none yet'}", f"the oldest has been due for {seen.lag_s:.1f} s"]
    if seen.rebuilding:
        parts.append("it is being rebuilt")
    parts += [f"template {one.name}: {one.reads} -> {one.writes or '-'}" for one in seen.templates]
    parts += [f"{one.schedule.name}: {one.schedule.expression} {one.schedule.zone}" for one in seen.schedules]
    return "; ".join(parts)
