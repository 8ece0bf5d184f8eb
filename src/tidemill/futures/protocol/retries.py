"""Decide what follows a failed attempt, for each kind of failure. This module writes nothing.

- exception: `exceptions + 1`. Fail if `exceptions >= max_retries + 1` (FUT-8), otherwise retry after a delay
  that doubles each time (FUT-50).
- crash, hang: `crashes + 1`. Quarantine the third time, with the traceback of the crash (FUT-53).
- oom: `ooms + 1`. Retry with twice the ram, on another node that has enough. Fail the third time (FUT-52).
- deserialize: `strange + 1`. Retry once on another node, then fail (FUT-22).
- actor: fail at once.

A future that is bound to its node is retried there (FUT-4).
"""

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import edges, lanes, submit
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import (
    AttemptCounts,
    Claimed,
    Failed,
    Failure,
    Needs,
    Quarantined,
    Spec,
    Unclaimed,
)
from tidemill.futures.protocol.states import FutureEdge
from tidemill.store import Tx

MOST_CRASHES = 3
MOST_OOMS = 3
MOST_STRANGE = 2
MOST_REAPS = 10
FIRST_PAUSE_US = 500_000
MOST_PAUSE_US = 60_000_000
LEAST_RAM = 64 * 1024 * 1024  # the ram to double if the task declares no `ram` and its use is unknown


class RetryDecision(msgspec.Struct, frozen=True):
    """The consequence of a failed attempt: an edge and the new row."""

    edge: FutureEdge
    row: Unclaimed | Failed | Quarantined


def decide(
    tx: Tx,
    keys: FutureKeys,
    cluster: ClusterKeys,
    node: Node,
    spec: Spec,
    row: Claimed,
    failure: Failure,
    *,
    jitter: float,
    ram_used: int,
) -> RetryDecision:
    """Decide what follows a failed attempt. The epoch grows in any case (FUT-13)."""
    tally = row.tally
    match failure.kind:
        case "exception":
            tally = edges.bump(tally, exceptions=tally.exceptions + 1)
            if tally.exceptions >= spec.max_retries + 1:
                return _failed(tx, tally, failure)
            ready_at = tx.now() + pause_us(tally.exceptions, jitter)
            return _retry(submit.unclaimed(tx, keys, spec, tally, ready_at=ready_at))
        case "crash" | "hang":
            tally = edges.bump(tally, crashes=tally.crashes + 1)
            if tally.crashes >= MOST_CRASHES:
                return RetryDecision(FutureEdge.QUARANTINE, Quarantined(tally=tally, at=tx.now()))
            ready_at = tx.now() + pause_us(tally.crashes, jitter)
            return _retry(submit.unclaimed(tx, keys, spec, tally, ready_at=ready_at))
        case "oom":
            return _out_of_memory(tx, keys, cluster, node, spec, tally, failure, ram_used)
        case "deserialize":
            tally = edges.bump(tally, strange=tally.strange + 1)
            if tally.strange >= MOST_STRANGE:
                return _failed(tx, tally, failure)
            other = another_worker(tx, cluster, node.id, edges.needs_of(spec, tally))
            return _retry(submit.unclaimed(tx, keys, spec, tally, node=other))
        case _:
            return _failed(tx, edges.bump(tally), failure)


def _out_of_memory(
    tx: Tx,
    keys: FutureKeys,
    cluster: ClusterKeys,
    node: Node,
    spec: Spec,
    tally: AttemptCounts,
    failure: Failure,
    ram_used: int,
) -> RetryDecision:
    tally = edges.bump(tally, ooms=tally.ooms + 1)
    if tally.ooms >= MOST_OOMS:
        return _failed(tx, tally, failure)
    current = edges.needs_of(spec, tally).ram
    doubled = 2 * (current or ram_used or LEAST_RAM)
    largest = max((total.ram for total in totals(tx, cluster)), default=doubled)
    tally = msgspec.structs.replace(tally, ram=max(current, min(doubled, largest)))
    other = another_worker(tx, cluster, node.id, edges.needs_of(spec, tally))
    return _retry(submit.unclaimed(tx, keys, spec, tally, node=other))


def pause_us(count: int, jitter: float) -> int:
    """Return the delay before the next attempt. It doubles each time, and half of it is random."""
    longest = min(MOST_PAUSE_US, FIRST_PAUSE_US * 2 ** min(count - 1, 30))
    return int(longest * (0.5 + 0.5 * jitter))


def workers(tx: Tx, cluster: ClusterKeys) -> list[Node]:
    """Return the live workers. Only live workers count as able to run a future (FUT-27)."""
    return [node for node in nodes.alive(nodes.read_all(tx, cluster), tx.now()) if node.kind == "worker"]


def totals(tx: Tx, cluster: ClusterKeys) -> list[Capacity]:
    """Return the total capacity of each live worker."""
    return [Capacity.of_node(node.total) for node in workers(tx, cluster)]


def another_worker(tx: Tx, cluster: ClusterKeys, than: str, needs: Needs) -> str:
    """Return another live worker with enough capacity and the most free ram; "" if there is none."""
    fit = [
        node
        for node in workers(tx, cluster)
        if node.id != than and not node.draining and lanes.fits(needs, Capacity.of_node(node.total))
    ]
    return max(fit, key=lambda node: (Capacity.of_node(node.free).ram, node.id)).id if fit else ""


def _retry(row: Unclaimed) -> RetryDecision:
    return RetryDecision(FutureEdge.RETRY, row)


def _failed(tx: Tx, tally: AttemptCounts, failure: Failure) -> RetryDecision:
    return RetryDecision(FutureEdge.FAIL, Failed(tally=tally, at=tx.now(), kind=failure.kind))
