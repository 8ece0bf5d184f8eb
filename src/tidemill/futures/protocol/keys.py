"""The futures room's layout in the store: everything under the cluster's name (FUT-11).

    (C, "spec", id)                                what was submitted
    (C, "future", id)                              its state row
    (C, "lane", queue, class, -priority)           a lane that has been used: workers read this directory
    (C, "ready", queue, class, -priority, ready_at, id)   the resource index: unclaimed, in the pool
    (C, "assigned", node, 0 hard | 1 soft, -priority, ready_at, id)   the assignment index: for one node
    (C, "own", node, id)                           what a node has claimed; the other half of the claim
    (C, "dep", upstream, id)                       "w" while id waits for upstream, "s" once it is served
    (C, "cursor", id)                              an ended future whose dependents are not all told yet
    (C, "error", id)                               the latest failure, kept after a later success
    (C, "copy", id, node)                          a copy of the result on a node
    (C, "key", idempotency key)                    -> id
    (C, "code", digest)                            a small code blob; large ones are objects
    (C, "limit", queue), (C, "running", queue)     a queue's limits, and what runs now
    (C, "deadline", at, id)                        those with a deadline
    (C, "stranded", id)                            those no live node can run
    (C, "hold", client, id)                        results outside the row that a client's handle keeps
    (C, "pin", id, who)                            results kept on purpose
    (C, "inbox", node)                             commands for a node, in order
    (C, "garbage", object)                         results and arguments in object storage that nobody needs
    (C, "loose", id)                               released results that wait for their dependents to end
    (C, "task", group, partition)                  a partition's task -> id
    (C, "actor", id)                               an actor and where it lives
    (C, "hosted", node, actor)                     the actors of a node
    (C, "call", actor, ordinal)                    an actor's calls in their order -> id
    (C, "status", id)                              what a task last said of itself, for people
    (C, "swept")                                   how far the sweep of ended rows has come
    (C, "bell")                                    no row: hinted at when there is something to claim

Ids are 16 bytes that begin with the time of submission, so rows of one time lie together and old ones are
found by walking from the front.
"""

import random

from tidemill.store import Space


class FutureKeys:
    """The spaces of one cluster's futures."""

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
    """A future's id: 48 bits of time, then 80 bits of chance; it never changes (FUT-14)."""
    return wall_ms.to_bytes(6, "big") + chance.getrandbits(80).to_bytes(10, "big")


def args_object(future_id: bytes, digest: bytes) -> str:
    """The object with a future's arguments, when they are too large for its spec; deleted with it."""
    return f"futures/args/{future_id.hex()}/{digest.hex()}"
