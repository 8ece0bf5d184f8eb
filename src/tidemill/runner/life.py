"""What a runner is under one epoch of its node: all that acts as that node, and ends with it."""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from tidemill.arcs.work import ArcWork
from tidemill.cluster.keeper import Keeper
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost, StoreError
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.intervals import IntervalCloser
from tidemill.runner.compacting import Compactor
from tidemill.runner.leftovers import Leftovers
from tidemill.scope import Scope
from tidemill.sources.source import Arrival, SourceRuntime
from tidemill.views.steps.collecting import Collector
from tidemill.views.steps.listing import listed
from tidemill.views.steps.stepper import GroupStep

if TYPE_CHECKING:
    from tidemill.runner.loop import Loop


class Life:
    """What acts as our node under one epoch of it."""

    def __init__(self, loop: "Loop", node: Node) -> None:
        self.node = node
        scope = Scope(
            store=loop.store,
            cluster=loop.keys.lots.cluster,
            objects=loop.objects,
            node=node,
            clock=loop.clock,
            chance=loop.chance,
            emit=loop.emit,
        )
        self.closer = IntervalCloser(scope)
        self.arcs = ArcWork(scope, loop.parts, projections=loop.projecting)
        self.groups = GroupStep(scope, loop.program.pipeline, loop.compute)
        self.compactor = None
        if loop.rewrite is not None:
            self.compactor = Compactor(scope, loop.rewrite, projections=loop.projections)
        self.cleaner = Cleaner(
            scope,
            drop=Leftovers(loop.store, loop.arc_keys, loop.parts, loop.projections),
            lists=partial(listed, loop.objects),
            grace_s=loop.grace_s,
        )
        self.collector = Collector(
            loop.store, loop.keys, loop.program.pipeline, loop.objects, loop.clock, emit=loop.emit
        )
        self._keeper = Keeper(loop.store, node.id, clock=loop.clock, chance=loop.chance)
        runtime = SourceRuntime(
            scope=scope,
            parts=loop.parts,
            keeper=self._keeper,
            watching=lambda: loop.watching,
            evaluate=loop.evaluate,
        )
        self.arrivals: Mapping[str, Arrival] = {
            name: source.open(runtime) for name, source in loop.program.sources.items()
        }
        if self.arrivals:
            self._keeper.start()

    def close(self) -> None:
        """Receive and fetch no more; other nodes may."""
        try:
            for arrival in self.arrivals.values():
                with contextlib.suppress(LeaseLost, StoreError):  # then its leases expire
                    arrival.close()
        finally:
            if self.arrivals:
                self._keeper.stop()
