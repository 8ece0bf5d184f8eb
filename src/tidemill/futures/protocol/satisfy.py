"""Can anybody run it? What is asked for beside what the live workers have (FUT-27)."""

from collections.abc import Mapping

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import UnsatisfiableError
from tidemill.futures.protocol.lanes import Capacity, fits
from tidemill.futures.protocol.rows import Needs
from tidemill.store import Tx


def check(tx: Tx, cluster: ClusterKeys, asked: Mapping[Needs, str]) -> None:
    """`UnsatisfiableError` when no live worker could ever run one of these; only live ones count.

    Where no worker is alive there is nothing to compare with: a future waits for the first one. `asked`
    names a function for each of the needs.
    """
    asked = {needs: name for needs, name in asked.items() if needs != Needs()}
    if not asked:
        return
    live = [node for node in nodes.alive(nodes.read_all(tx, cluster), tx.now()) if node.kind == "worker"]
    totals = [Capacity.of_node(node.total) for node in live]
    for needs, name in asked.items():
        if totals and not any(fits(needs, total) for total in totals):
            raise UnsatisfiableError(f"{name} asks for {said(needs)}; {_most(totals)}")


def said(needs: Needs) -> str:
    """Needs in words."""
    parts = [f"cpu {needs.cpu:g}"] if needs.cpu else []
    parts += [f"ram {in_units(needs.ram)}"] if needs.ram else []
    parts += [f"gpu {needs.gpu:g}"] if needs.gpu else []
    return ", ".join([*parts, *needs.named]) or "nothing"


def in_units(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def _most(totals: list[Capacity]) -> str:
    names = {name for total in totals for name in total.named if not name.startswith("node:")}
    most = Needs(
        max(total.cpu for total in totals),
        max(total.ram for total in totals),
        max(total.gpu for total in totals),
        tuple(sorted(names)),
    )
    count = "the one live worker has" if len(totals) == 1 else f"{len(totals)} live workers have at most"
    return f"{count} {said(most)}"
