"""A scope for tests that need a store and a clock: objects in memory, and a node that is in no list."""

import random

from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.nodes import Node
from tidemill.objects import Objects
from tidemill.objects.memory import MemoryObjects
from tidemill.scope import Scope
from tidemill.store import Store


def scope_of(
    store: Store, cluster: str = "c", *, clock: Clock = SYSTEM, objects: Objects | None = None
) -> Scope:
    return Scope(
        store=store,
        cluster=cluster,
        objects=objects or MemoryObjects(clock),
        node=Node(id="unlisted", epoch=1),
        clock=clock,
        chance=random.Random(),
    )
