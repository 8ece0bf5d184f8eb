"""Define `tidemill nodes`: list the nodes of a cluster."""

from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from tidemill.cli.options import cluster_location, location_options, pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.cluster import node_list
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.node_list import NodeLine
from tidemill.futures.protocol.unsatisfiable import format_bytes


@click.command("nodes")
@pipeline_option
@location_options
@json_option
def nodes_command(
    output: CommandOutput, file: str | None, home: str | None, store: str | None, cluster: str
) -> None:
    """List the nodes of a cluster and show which one is the leader.

    Select the cluster with --home or --store, or use the pipeline's cluster (-f or tidemill.toml).
    """
    where = cluster_location(home, store, cluster, file)
    with where.open() as opened:
        lines = opened.run(lambda tx: node_list.read(tx, ClusterKeys(where.cluster)))
    output.result({"nodes": lines})
    if output.json:
        return
    if not lines:
        output.people.print(Text(f"the cluster {where.cluster!r} has no nodes"))
        return
    output.people.print(table(lines))


STATES = {"live": "green", "draining": "yellow", "gone": "red"}


def table(lines: Sequence[NodeLine]) -> Table:
    """Return the list as a table."""
    rendered = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("node", "kind", "state", "lease", "slots", "cpu", "ram", "gpu", "resources", "address"):
        rendered.add_column(name, overflow="fold")
    for line in lines:
        resources = sorted(
            key[1:] for key in line.total if key.startswith("+") and not key.startswith("+node:")
        )
        rendered.add_row(
            Text.assemble(line.id[:12], (" leader", "bold cyan") if line.leader else ""),
            line.kind,
            Text(line.state, style=STATES[line.state]),
            f"{line.lease_s:.0f} s" if line.lease_s > 0 else f"ended {-line.lease_s:.0f} s ago",
            str(line.slots) if line.kind in ("worker", "runner") else "",
            _share(line, "cpu"),
            _share(line, "ram"),
            _share(line, "gpu"),
            " ".join(resources),
            line.address,
        )
    return rendered


def _share(line: NodeLine, name: str) -> str:
    if not line.total.get(name):
        return ""
    show = format_bytes if name == "ram" else "{:g}".format
    return f"{show(line.free.get(name, 0.0))} of {show(line.total[name])}"
