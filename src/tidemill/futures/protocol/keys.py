"""The keys of futures in the store. Every key begins with the cluster's name (FUT-11).

    (C, "spec", id)                                the call as it was submitted
    (C, "future", id)                              the state row of a future
    (C, "lane", queue, class, -priority)           a lane that may contain futures: workers read this list
    (C, "ready", queue, class, -priority, ready_at, id)   the resource index: unclaimed, in the pool
    (C, "assigned", node, 0 hard | 1 soft, -priority, ready_at, id)   the assignment index: for one node
    (C, "own", node, id)                           the futures that a node has claimed
    (C, "dep", upstream, id)                       "w" while id waits for upstream, "s" after that
    (C, "cursor", id)                              an ended future with dependents that are not notified yet
    (C, "error", id)                               the latest failure, kept after a later success
    (C, "copy", id, node)                          a copy of the result on a node
    (C, "key", idempotency key)                    -> id
    (C, "code", digest)                            a small code blob; large ones are objects
    (C, "code-state", digest)                      where a code blob is, and since when it is not used
    (C, "draft", object)                           objects that are written before a row refers to them
    (C, "limit", queue), (C, "running", queue)     a queue's limits, and how many futures it runs now
    (C, "deadline", at, id)                        futures with a deadline
    (C, "stranded", id)                            futures that no live node can run
    (C, "hold", client, id)                        results outside their rows, kept by a client's handle
    (C, "pin", id, owner)                          pinned results
    (C, "inbox", node)                             commands for a node, in order
    (C, "garbage", object)                         unreferenced objects: results and arguments
    (C, "loose", id)                               released results that wait for their dependents to end
    (C, "task", group, partition)                  a partition's task -> id
    (C, "actor", id)                               an actor and its node
    (C, "hosted", node, actor)                     the actors of a node
    (C, "call", actor, ordinal)                    an actor's calls in their order -> id
    (C, "status", id)                              the last status text of a task, for people
    (C, "swept")                                   the position of the sweep of ended rows
    (C, "bell")                                    no row; watchers are notified of futures to claim

Ids are 16 bytes and begin with the time of submission. So futures are sorted by this time, oldest first.
"""

import random
from collections.abc import Iterable

from tidemill.store import Row, Space


class FutureKeys:
    """The key spaces of one cluster's futures."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.spec = Space(cluster, "spec")
        self.future = Space(cluster, "future")
        self.lane = Space(cluster, "lane")
        self.ready = Space(cluster, "ready")
        self.assigned = Space(cluster, "assigned")
        self.own = Space(cluster, "own")
        self.dep = Space(cluster, "dep")
        self.cursor = Space(cluster, "cursor")
        self.error = Space(cluster, "error")
        self.copy = Space(cluster, "copy")
        self.key = Space(cluster, "key")
        self.code = Space(cluster, "code")
        self.code_state = Space(cluster, "code-state")
        self.draft = Space(cluster, "draft")
        self.limit = Space(cluster, "limit")
        self.running = Space(cluster, "running")
        self.deadline = Space(cluster, "deadline")
        self.stranded = Space(cluster, "stranded")
        self.hold = Space(cluster, "hold")
        self.pin = Space(cluster, "pin")
        self.inbox = Space(cluster, "inbox")
        self.garbage = Space(cluster, "garbage")
        self.loose = Space(cluster, "loose")
        self.actor = Space(cluster, "actor")
        self.task = Space(cluster, "task")
        self.hosted = Space(cluster, "hosted")
        self.call = Space(cluster, "call")
        self.status = Space(cluster, "status")
        self.swept = Space(cluster)["swept"]
        self.bell = Space(cluster)["bell"]


def new_id(wall_ms: int, chance: random.Random) -> bytes:
    """Return a new future id: 48 bits of time, then 80 random bits. An id never changes (FUT-14)."""
    return wall_ms.to_bytes(6, "big") + chance.getrandbits(80).to_bytes(10, "big")


def ids_in(space: Space, index_rows: Iterable[Row], part: int = 0) -> list[bytes]:
    """Return the future ids that the keys of these rows have at position `part`."""
    return [value for row in index_rows if isinstance(value := space.unpack(row.key)[part], bytes)]


def args_object(future_id: bytes, digest: bytes) -> str:
    """Return the name of the object that holds a future's arguments if they are too large for its spec."""
    return f"futures/args/{future_id.hex()}/{digest.hex()}"


def result_object(future_id: bytes, version: int) -> str:
    """Return the name of the object that holds one result of a future."""
    return f"futures/results/{future_id.hex()}/{version}"
