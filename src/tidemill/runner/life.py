"""What a runner is under one epoch of its node: all that acts as that node, and ends with it."""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from tidemill.arcs.work import ArcWork
from tidemill.cluster.keeper import Keeper
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, StoreError
from tidemill.publish import ids
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.door import Door
from tidemill.publish.manifests import Manifests
from tidemill.runner.arrivals import Arrival, Ground, arrival
from tidemill.runner.compacting import Compactor
from tidemill.runner.leftovers import Leftovers
from tidemill.scope import Scope
from tidemill.views.steps.collecting import Collector
from tidemill.views.steps.listing import listed
from tidemill.views.steps.stepper import GroupStep

if TYPE_CHECKING:
    from tidemill.runner.loop import Loop


class Life:
    """What acts as our node under one epoch of it."""

    def __init__(self, loop: "Loop", node: Node) -> None:
        self.node = node
        self.door = Door(loop.store, loop.keys, node)
        self.arcs = ArcWork(
            loop.store,
            loop.arc_keys,
            loop.objects,
            node,
            loop.parts,
            loop.clock,
            loop.chance,
            emit=loop.emit,
            projections=loop.projecting,
        )
        scope = Scope(
            store=loop.store,
            cluster=loop.keys.lots.cluster,
            objects=loop.objects,
            node=node,
            clock=loop.clock,
            chance=loop.chance,
            emit=loop.emit,
        )
        self.groups = GroupStep(scope, loop.program.pipeline, loop.compute)
        self.compactor = None
        if loop.rewrite is not None:
            self.compactor = Compactor(
                loop.store,
                loop.keys,
                Manifests(loop.objects, loop.clock),
                self.door,
                lambda: ids.new_attempt(loop.clock, loop.chance),
                loop.rewrite,
                projections=loop.projections,
                emit=loop.emit,
            )
        self.cleaner = Cleaner(
            loop.store,
            loop.keys,
            loop.objects,
            self.door,
            loop.clock,
            drop=Leftovers(loop.store, loop.arc_keys, loop.parts, loop.projections),
            lists=partial(listed, loop.objects),
            emit=loop.emit,
            grace_s=loop.grace_s,
        )
        self.collector = Collector(
            loop.store, loop.keys, loop.program.pipeline, loop.objects, loop.clock, emit=loop.emit
        )
        self._keeper = Keeper(loop.store, node.id, clock=loop.clock, chance=loop.chance)
        ground = Ground(
            store=loop.store,
            keys=loop.source_keys,
            objects=loop.objects,
            node=node,
            parts=loop.parts,
            keeper=self._keeper,
            clock=loop.clock,
            chance=loop.chance,
            emit=loop.emit,
            watching=lambda: loop.watching,
            evaluate=loop.evaluate,
        )
        self.arrivals: Mapping[str, Arrival] = {
            name: arrival(ground, source) for name, source in loop.program.sources.items()
        }
        if self.arrivals:
            self._keeper.start()

    def close(self) -> None:
        """Receive and fetch no more; other nodes may."""
        try:
            for one in self.arrivals.values():
                with contextlib.suppress(LeaseLost, StoreError):  # then it runs out by itself
                    one.close()
        finally:
            if self.arrivals:
                self._keeper.stop()
