"""A node's scope: the store, the objects, the clock and the identity that a node works with.

Classes that act for a node take a `Scope` instead of several separate arguments. Each package derives its key
layout from the cluster's name, for example `ArcKeys(scope.cluster)`.

Each time a node joins the node list, its entry gets a higher epoch. A scope belongs to one epoch: when the
node joins again, it gets a new scope and drops the objects that use the old one. The store refuses writes
under the old scope.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tidemill import crash
from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.cluster.nodes import Node
from tidemill.events import Emit, ignore
from tidemill.objects import Objects
from tidemill.store import Store, Tx

T = TypeVar("T")

_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # without i, l, o and u, which people misread
_TIME_LETTERS = 10
ATTEMPT_LETTERS = 26


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What one node works with during one epoch.

    Args:
        store: the opened store.
        cluster: the cluster's name, which every key in the store begins with.
        objects: the object storage for data and manifests.
        node: our entry in the node list; the store refuses our writes once the entry has a higher epoch.
        clock: the source of time.
        chance: the source of random numbers.
        emit: receives the events.
        timing: how long the leases of this node last; the runner's `--ttl` sets it.
    """

    store: Store
    cluster: str
    objects: Objects
    node: Node
    clock: Clock = SYSTEM
    chance: random.Random
    emit: Emit = ignore
    timing: LeaseTiming = DEFAULT_TIMING

    def step(self, name: str, fn: Callable[[Tx], T]) -> T:
        """Run one durable step of a protocol: a transaction between two crash points.

        The list of crash points is therefore the list of durable steps. A test can kill the process at each
        crash point and check that the next process recovers.

        Args:
            name: the package and the step, such as "arcs.begin"; the points are `{name}.before` and
                `{name}.after`.
            fn: the transaction; it may run more than once, so it must have no effect outside of `tx`.
        """
        crash.point(f"{name}.before")
        answer = self.store.run(fn)
        crash.point(f"{name}.after")
        return answer

    def new_attempt(self) -> str:
        """Return a new attempt id: milliseconds of the wall clock, then 80 random bits.

        Ids have 26 characters and sort by time. The paths of everything that an attempt writes contain
        `attempt={id}`. Because all ids have the same length, no id is the beginning of another.
        """
        return _spelled(int(self.clock.wall() * 1000), _TIME_LETTERS) + _spelled(
            self.chance.getrandbits(80), ATTEMPT_LETTERS - _TIME_LETTERS
        )


def _spelled(number: int, letters: int) -> str:
    return "".join(_LETTERS[number >> 5 * place & 31] for place in reversed(range(letters)))
