"""Measure how long a cluster has no leader after the leader's process is killed.

Three nodes (`python -m tidemill.testing.node`) on one SQLite store. The leader is killed with SIGKILL at a
random moment of its renewal interval; the time is until another node reports that it leads. A new node
replaces the dead one before the next repetition. A killed leader cannot return its lease, so most of the time
is the rest of that lease: at most the ttl.
"""

import random
import statistics
from contextlib import ExitStack
from pathlib import Path

from bench.comparison import rounded
from bench.report import Report, at_most
from tidemill.clock import SYSTEM, poll
from tidemill.cluster.leases import TTL_S
from tidemill.testing.node_process import NodeProcess

NODES = 3
QUICK_TTL_S = 1.0
ALLOWANCE_S = 2.0  # beyond the ttl


def measure(report: Report, folder: Path) -> None:
    ttl_s = QUICK_TTL_S if report.quick else TTL_S
    report.say(f"fail-over: {NODES} nodes, ttl {ttl_s:g} s, the leader killed with -9")
    chance = random.Random(1)
    took: list[float] = []
    with ExitStack() as stack:
        nodes = [_start(stack, folder, number, ttl_s) for number in range(NODES)]
        for repetition in range(report.repetitions):
            leader = _leader(nodes, ttl_s)
            SYSTEM.sleep(chance.random() * ttl_s / 5)  # renewals are that far apart
            killed_at = SYSTEM.monotonic()
            leader.kill()
            nodes.remove(leader)
            took.append(_elected_at(_leader(nodes, ttl_s)) - killed_at)
            report.say(f"another leads after {took[-1]:.2f} s")
            nodes.append(_start(stack, folder, NODES + repetition, ttl_s))
    raw = {
        "ttl_s": ttl_s,
        "nodes": NODES,
        "median": rounded(statistics.median(took)),
        "max": rounded(max(took)),
    }
    report.figure(
        "failover_s",
        statistics.median(took),
        {**raw, "all": [rounded(seconds) for seconds in took]},
        target=at_most(ttl_s + ALLOWANCE_S),
    )
    report.figure("failover_s_max", max(took), target=at_most(ttl_s + ALLOWANCE_S))
    report.figure("failover_ttl_s", ttl_s)


def _start(stack: ExitStack, folder: Path, number: int, ttl_s: float) -> NodeProcess:
    """Start a node and wait until it has joined, so that its start is not measured."""
    url = f"sqlite://{folder / 'failover.db'}"
    node = NodeProcess(url, "bench", f"node-{number}", ttl_s=ttl_s, stderr=folder / f"node-{number}.err")
    stack.enter_context(node)
    node.wait_for("NodeJoined", timeout_s=60)
    return node


def _leader(nodes: list[NodeProcess], ttl_s: float) -> NodeProcess:
    """Wait until one of the nodes leads."""

    def leading() -> list[NodeProcess]:
        return [node for node in nodes if len(node.events("LeaderElected")) > len(node.events("LeaderLost"))]

    if not poll(lambda: bool(leading()), SYSTEM, every_s=0.01, timeout_s=3 * ttl_s + 30):
        raise AssertionError("nobody leads:\n" + "\n".join(map(str, nodes)))
    return leading()[0]


def _elected_at(leader: NodeProcess) -> float:
    """Return when it reported this; all processes of a machine share this clock."""
    return float(leader.events("LeaderElected")[-1]["t"])
