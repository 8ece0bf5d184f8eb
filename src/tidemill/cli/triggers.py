"""Define `tidemill triggers`: list, retry, pause and resume subscriptions, and rebuild the heap."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import click
from rich.table import Table
from rich.text import Text

from tidemill.arcs import lot_requests
from tidemill.arcs.keys import ArcKeys
from tidemill.cli.options import ClusterLocation, cluster_location, location_options, pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.errors import TidemillError
from tidemill.lots.keys import LotKeys
from tidemill.store import Tx
from tidemill.triggers import heap_sync, listing, subscriptions
from tidemill.triggers.keys import TriggerKeys
from tidemill.triggers.listing import Overview, TriggerInfo, TriggerState
from tidemill.triggers.subscriptions import AnyRow
from tidemill.triggers.terms import CatchUp

STYLES = {
    TriggerState.DUE: "yellow",
    TriggerState.RUNNING: "cyan",
    TriggerState.DEAD: "bold red",
    TriggerState.PAUSED: "magenta",
    TriggerState.UNREADY: "red",
    TriggerState.WAITING: "dim",
}
MOST_DEAD = 10_000


@click.group("triggers", invoke_without_command=True)
@pipeline_option
@location_options
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in TriggerState]),
    help="Only triggers in this state.",
)
@click.option(
    "--name", default="", metavar="TEXT", help="Only triggers whose name contains TEXT (* is a wildcard)."
)
@click.option(
    "--limit",
    default=50,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Maximum number of triggers to list.",
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
    """List triggers, with their state and the reason for it.

    A trigger is due, scheduled (due later), running, waiting (for new data), paused, dead (failed too often,
    so it no longer runs) or unready (not completely set up).

    Select the cluster with --home or --store, or use the pipeline's cluster (-f or tidemill.toml).
    """
    ctx.meta["tidemill.where"] = (file, home, store, cluster)
    if ctx.invoked_subcommand is not None:
        return
    where = _where(home, store, cluster)
    keys, lots = TriggerKeys(where.cluster), LotKeys(where.cluster)
    with where.open() as opened:
        requested = partial(_requested, ArcKeys(where.cluster))
        triggers = listing.listed(
            opened, keys, lots, states=states, name=name, limit=limit, requested=requested
        )
        overview = listing.overview(opened, keys)
    output.result({"triggers": triggers, "overview": overview})
    if not output.json:
        output.people.print(_table(triggers) if triggers else Text("there are no triggers"))
        output.people.print(Text(_summary(overview), style="dim"))


@triggers_command.command("retry")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--dead", is_flag=True, help="Retry all dead triggers.")
@location_options
@json_option
def retry_command(
    output: CommandOutput,
    names: tuple[str, ...],
    dead: bool,
    home: str | None,
    store: str | None,
    cluster: str,
) -> int:
    """Retry triggers that failed, and reset their failure counts.

    A dead trigger runs again. A trigger that is waiting to retry runs immediately.
    """
    if bool(names) == dead:
        raise click.UsageError("pass at least one trigger name, or --dead")
    where = _where(home, store, cluster)
    keys = TriggerKeys(where.cluster)
    if dead:
        with where.open() as opened:
            only = [TriggerState.DEAD.value]
            dead_triggers = listing.listed(opened, keys, LotKeys(where.cluster), states=only, limit=MOST_DEAD)
        names = tuple(trigger.name for trigger in dead_triggers)
    return _each(output, where, names, "retried", lambda tx, name: subscriptions.retry(tx, keys, name))


@triggers_command.command("pause")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@location_options
@json_option
def pause_command(
    output: CommandOutput, names: tuple[str, ...], home: str | None, store: str | None, cluster: str
) -> int:
    """Pause triggers. Runs that have already started still run to the end.

    Some lots may be published during the pause. With `resume --catch-up` you choose which of them an arc
    processes.
    """
    where = _where(home, store, cluster)
    keys = TriggerKeys(where.cluster)
    return _each(output, where, names, "paused", lambda tx, name: subscriptions.pause(tx, keys, name))


@triggers_command.command("resume")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--catch-up",
    type=click.Choice([policy.value for policy in CatchUp]),
    help="Which of the lots published during the pause to process. Default: as declared.",
)
@location_options
@json_option
def resume_command(
    output: CommandOutput,
    names: tuple[str, ...],
    catch_up: str | None,
    home: str | None,
    store: str | None,
    cluster: str,
) -> int:
    """Resume paused triggers."""
    where = _where(home, store, cluster)
    keys, lots = TriggerKeys(where.cluster), LotKeys(where.cluster)
    policy = None if catch_up is None else CatchUp(catch_up)
    return _each(
        output, where, names, "resumed", lambda tx, name: subscriptions.resume(tx, keys, lots, name, policy)
    )


@triggers_command.command("rebuild")
@location_options
@json_option
def rebuild_command(output: CommandOutput, home: str | None, store: str | None, cluster: str) -> None:
    """Rebuild the heap after it was lost or moved.

    The heap is the index of scheduled work. This command only requests the rebuild; the cluster's runners do
    the work. Runners also find and restore lost items without this command, but it takes them longer.
    """
    where = _where(home, store, cluster)
    with where.open() as opened:
        opened.run(lambda tx: heap_sync.begin_rebuild(tx, TriggerKeys(where.cluster)))
    output.result({"rebuilding": True})
    if not output.json:
        output.people.print(Text("requested: the cluster's runners will rebuild the heap"))


def _requested(keys: ArcKeys, tx: Tx, names: Sequence[str]) -> Mapping[str, int]:
    return lot_requests.count_unfinished(tx, keys, names)


def _where(home: str | None, store: str | None, cluster: str) -> ClusterLocation:
    """Return the cluster's location, from the options of either command or from the pipeline."""
    file, *options = click.get_current_context().meta["tidemill.where"]
    if home is None and store is None:
        home, store, cluster = options
    return cluster_location(home, store, cluster, file)


def _each(
    output: CommandOutput,
    where: ClusterLocation,
    names: Sequence[str],
    participle: str,
    change: Callable[[Tx, str], AnyRow],
) -> int:
    """Change each trigger in a separate transaction. With several names, return 1 if a change is refused."""
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
    output.result({participle: changed, "refused": refused})
    if not output.json:
        for name in changed:
            output.people.print(Text(f"{name} is {participle}"))
    for name, why in refused.items():
        output.stderr.print(Text(f"{name}: {why}", style="red"))
    return 1 if refused else 0


# --- text output


def _table(triggers: Sequence[TriggerInfo]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("trigger", "state", "when", "behind", "why"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("state", "when"))
    for trigger in triggers:
        behind = ", ".join(f"{source} {number}" for source, number in trigger.behind.items() if number)
        table.add_row(
            Text(trigger.name),
            Text(trigger.state.value, style=STYLES.get(trigger.state, "")),
            Text("" if trigger.in_s is None else _when(trigger.in_s)),
            Text(behind),
            Text(trigger.why),
        )
    return table


def _when(seconds: float) -> str:
    size = abs(seconds)
    duration = (
        f"{size / 3600:.1f} h" if size >= 3600 else f"{size / 60:.1f} min" if size >= 60 else f"{size:.1f} s"
    )
    return f"in {duration}" if seconds > 0 else f"since {duration}"


def _summary(overview: Overview) -> str:
    parts = [
        f"heap: {overview.heap or 'none yet'}",
        f"the oldest trigger has been due for {overview.lag_s:.1f} s",
    ]
    if overview.rebuilding:
        parts.append("the heap is being rebuilt")
    parts += [f"template {row.name}: {row.reads} -> {row.writes or '-'}" for row in overview.templates]
    parts += [
        f"{row.schedule.name}: {row.schedule.expression} {row.schedule.zone}" for row in overview.schedules
    ]
    return "; ".join(parts)
