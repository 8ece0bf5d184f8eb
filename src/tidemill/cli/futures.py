"""Define `tidemill futures`: list, show, requeue and cancel futures."""

from collections.abc import Sequence

import click
import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tidemill.cli.options import ClusterLocation, cluster_location, location_options, pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.errors import TidemillError
from tidemill.futures.client import queries
from tidemill.futures.client.lineage import STYLES, Lineage, trace
from tidemill.futures.client.queries import FutureDetails, FutureSummary
from tidemill.futures.protocol import cancel, requeue
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.states import ENDED, FutureState
from tidemill.futures.protocol.unsatisfiable import describe, format_bytes

STATES = [state.value for state in FutureState]
QUARANTINED_PAGE = 10_000
ID_DIGITS = 20  # lists show 20 of 32 digits: enough to tell ids apart, and `show` accepts them


@click.group("futures", invoke_without_command=True)
@pipeline_option
@location_options
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only futures in this state."
)
@click.option(
    "--name",
    default="",
    metavar="TEXT",
    help="Only futures whose function name contains TEXT (* is a wildcard).",
)
@click.option(
    "--limit",
    default=50,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Maximum number of futures to list.",
)
@json_option
@click.pass_context
def futures_command(
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
    """List futures, newest first. Use a subcommand to show, requeue or cancel a future.

    Select the cluster with --home or --store, or use the pipeline's cluster (-f or tidemill.toml).
    """
    ctx.meta["tidemill.where"] = (file, home, store, cluster)
    if ctx.invoked_subcommand is not None:
        return
    where = _where(home, store, cluster)
    keys = FutureKeys(where.cluster)
    with where.open() as opened:
        futures = queries.list_futures(opened, keys, states=states, name=name, limit=limit)
    output.result({"futures": futures})
    if not output.json:
        output.people.print(_table(futures) if futures else Text("there are no futures"))


@futures_command.command("show")
@click.argument("future_id", metavar="ID")
@location_options
@json_option
def show_command(
    output: CommandOutput, future_id: str, home: str | None, store: str | None, cluster: str
) -> None:
    """Show one future, its last error and its inputs."""
    where = _where(home, store, cluster)
    keys = FutureKeys(where.cluster)
    with where.open() as opened:
        id_ = queries.find_id(opened, keys, future_id)
        details = queries.show_future(opened, keys, id_)
        tree = trace(opened, keys, id_)
    output.result(_result(details, tree))
    if not output.json:
        output.people.print(_page(details, tree))


@futures_command.command("requeue")
@click.argument("future_ids", metavar="[ID]...", nargs=-1)
@click.option("--quarantined", is_flag=True, help="Requeue all quarantined futures.")
@location_options
@json_option
def requeue_command(
    output: CommandOutput,
    future_ids: tuple[str, ...],
    quarantined: bool,
    home: str | None,
    store: str | None,
    cluster: str,
) -> int:
    """Run failed or quarantined futures again.

    The retry and crash counts of these futures are reset.
    """
    if bool(future_ids) == quarantined:
        raise click.UsageError("pass at least one future id, or --quarantined")
    where = _where(home, store, cluster)
    keys = FutureKeys(where.cluster)
    with where.open() as opened:
        if quarantined:
            states = [FutureState.QUARANTINED.value]
            futures = queries.list_futures(opened, keys, states=states, limit=QUARANTINED_PAGE)
            ids = [bytes.fromhex(future.id) for future in futures]
        else:
            ids = [queries.find_id(opened, keys, text) for text in future_ids]
        requeued, refused = [], {}
        for id_ in ids:
            try:
                opened.run(lambda tx, id_=id_: requeue.requeue(tx, keys, id_))  # type: ignore[misc]
                requeued.append(id_.hex())
            except TidemillError as error:
                if len(ids) == 1:
                    raise
                refused[id_.hex()] = error.message
    output.result({"requeued": requeued, "refused": refused})
    for name in requeued:
        output.people.print(Text(f"{name} is requeued"))
    for name, why in refused.items():
        output.stderr.print(Text(f"{name}: {why}", style="red"))
    return 1 if refused else 0


@futures_command.command("cancel")
@click.argument("future_id", metavar="ID")
@location_options
@json_option
def cancel_command(
    output: CommandOutput, future_id: str, home: str | None, store: str | None, cluster: str
) -> None:
    """Cancel a future. A running task gets a grace period to stop, then it is killed."""
    where = _where(home, store, cluster)
    keys = FutureKeys(where.cluster)
    with where.open() as opened:
        id_ = queries.find_id(opened, keys, future_id)
        row = opened.run(lambda tx: cancel.cancel(tx, keys, id_))
    ending = row.state not in ENDED
    output.result({"id": id_.hex(), "state": row.state.value, "ending": ending})
    state = "is stopping" if ending else f"is {row.state.value}"
    if not output.json:
        output.people.print(Text(f"{id_.hex()} {state}"))


def _where(home: str | None, store: str | None, cluster: str) -> ClusterLocation:
    """Return the cluster's location, from the options of either command or from the pipeline."""
    file, *options = click.get_current_context().meta["tidemill.where"]
    if home is None and store is None:
        home, store, cluster = options
    return cluster_location(home, store, cluster, file)


# --- text output


def _table(futures: Sequence[FutureSummary]) -> Table:
    lines = [
        {
            "id": Text(future.id[:ID_DIGITS]),
            "name": Text(future.name),
            "state": Text(future.state, style=STYLES.get(future.state, "dim")),
            "age": Text(_age(future.age_s)),
            "tries": Text(str(future.tries or "")),
            "node": Text(future.node[:12]),
            "queue": Text(future.queue),
            "detail": Text(future.detail),
        }
        for future in futures
    ]
    table = Table(box=None, header_style="bold", pad_edge=False)
    shown = [name for name in lines[0] if any(line[name] for line in lines)]
    for name in shown:
        table.add_column(name, overflow="fold", no_wrap=name not in ("name", "detail"))
    for line in lines:
        table.add_row(*(line[name] for name in shown))
    return table


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _page(details: FutureDetails, tree: Lineage) -> Group:
    spec, row, tally = details.spec, details.row, details.row.tally
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts(details).items():
        if value not in ("", 0, None, False):
            facts.add_row(
                name, Text(str(value), style=STYLES.get(row.state.value, "") if name == "state" else "")
            )
    parts: list[object] = [facts, Text()]
    counts = {name: count for name, count in msgspec.structs.asdict(tally).items() if count}
    parts.append(
        Text("counts: " + (", ".join(f"{name} {count}" for name, count in counts.items()) or "none"))
    )
    if details.failure is not None:
        latest = f"latest failure ({details.failure.kind}"
        parts += [Text(), Text(f"{latest}, on {details.failure.node or '?'})", style="bold red")]
        parts.append(Text(details.failure.traceback.rstrip() or details.failure.message))
        parts += [Text(f"caused by {name}") for name in details.failure.upstream]
    if spec.inputs:
        parts += [Text(), Text("computed from", style="bold"), tree]
    return Group(*parts)  # type: ignore[arg-type] # all are renderables of rich


def _facts(details: FutureDetails) -> dict[str, object]:
    spec, row = details.spec, details.row
    result = getattr(row, "result", None)
    return {
        "id": spec.id.hex(),
        "function": spec.name,
        "state": row.state.value,
        "status": details.status,
        "submitted": f"{_age(details.age_s)} ago by {spec.owner or '?'}",
        "node": getattr(row, "holder", "") or getattr(row, "assigned", ""),
        "result": f"{result.location.kind}, {format_bytes(result.size)}, copies {details.copies}"
        if result
        else "",
        "needs": describe(spec.needs),
        "retries": spec.max_retries,
        "queue": spec.queue,
        "priority": spec.priority,
        "key": spec.key,
        "parent": spec.parent.hex(),
        "actor": spec.actor.hex(),
        "code": spec.code.hex()[:16],
        "arguments": format_bytes(spec.args.size or len(spec.args.inline or b"")),
        "python": spec.python,
    }


def _result(details: FutureDetails, tree: Lineage) -> dict[str, object]:
    """Return the future as JSON, without code, arguments or pickled data."""
    failure = details.failure
    return {
        **_facts(details),
        "age_s": details.age_s,
        "counts": msgspec.structs.asdict(details.row.tally),
        "failure": None
        if failure is None
        else {
            name: value
            for name, value in msgspec.structs.asdict(failure).items()
            if name not in ("pickled", "signature")
        },
        "inputs": [id_.hex() for id_ in details.spec.inputs],
        "lineage": tree.to_json(),
    }
