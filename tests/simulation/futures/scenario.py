"""The futures scenario: build a world of workers and clients from a seed."""

import random
from collections import Counter
from functools import partial

from tests.simulation.faults import DRAWN, Swarm
from tests.simulation.futures.client import SimulatedClient
from tests.simulation.futures.plan import FuturesPlan, draw_plan
from tests.simulation.futures.rules import FutureRules
from tests.simulation.futures.worker import SimulatedWorker
from tests.simulation.scheduler import SECOND_US, SimNode
from tests.simulation.world import Workload, World
from tidemill.cluster.keys import ClusterKeys
from tidemill.futures.protocol import rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import Claimed, Failed, Realized, Result
from tidemill.store import Space

CLUSTER = "sim"


class FutureWork(Workload):
    """Workers and clients until every future has ended."""

    def __init__(self, world: World, plan: FuturesPlan) -> None:
        self.world = world
        self.store = world.store
        self.plan = plan
        self.calls = plan.calls
        self.cancels = sum(call.cancel_after_s >= 0 for call in self.calls.values())
        self.keys = FutureKeys(CLUSTER)
        self.cluster = ClusterKeys(CLUSTER)
        self.orders = Space(CLUSTER, "order")
        self.kills: Counter[str] = Counter()  # how often each call killed its node
        self.rules = FutureRules(self)
        self._segments: dict[str, SimNode] = {}
        self._kept = 0
        world.add_rule(self.rules)

    def now_s(self) -> float:
        return self.world.scheduler.now_us / SECOND_US

    # --- results outside the store

    def keep_segment(self, node: SimNode) -> str:
        """Store a result in the memory of a node."""
        self._kept += 1
        name = f"seg{self._kept}"
        self._segments[name] = node
        return name

    def drop_segment(self, name: str) -> None:
        """Delete a segment on its node, because the store does not refer to it."""
        for future_id, row in self.rules.mirror.futures.items():
            if isinstance(row, Realized) and row.result.location.name == name:
                spec = self.rules.mirror.specs[future_id]
                raise self.world.violated(f"the segment of {spec.name} is deleted while it is its result")
        self._segments.pop(name, None)

    def is_lost(self, result: Result) -> bool:
        """Return whether a result was lost with its node."""
        if result.location.kind != "segment":
            return False
        node = self._segments.get(result.location.name)
        return node is None or not node.running

    # --- the workload

    def prepare(self) -> None:
        """Do nothing: clients submit the work."""

    def boot(self, node: SimNode) -> None:
        node.parts["worker"] = SimulatedWorker(self, node)
        node.parts["client"] = SimulatedClient(self, node)

    def drain(self, node: SimNode, grace_s: float) -> None:
        self.worker(node).drain(grace_s)

    def check_node(self, node: SimNode) -> None:
        """Do nothing: only the rows of the store are checked."""

    def worker(self, node: SimNode) -> SimulatedWorker:
        worker = node.parts["worker"]
        assert isinstance(worker, SimulatedWorker)
        return worker

    def unfinished(self) -> list[str]:
        mirror, rules = self.rules.mirror, self.rules
        still = [f"{name} not submitted" for name in self.calls if name not in rules.ids]
        still += [
            f"{name} {mirror.futures[future_id].state.value}"
            for name, future_id in rules.ids.items()
            if name not in rules.ended
        ]
        still += [f"a cursor at {mirror.specs[future_id].name}" for future_id in mirror.cursors]
        still += [
            f"{mirror.specs[future_id].name} owned" for future_id, owners in mirror.own.items() if owners
        ]
        if not still:
            jobs = [job.spec.name for node in self.world.running() for job in self.worker(node).jobs.values()]
            still += [f"a worker still has {name}" for name in jobs]
        return still


def describe(work: FutureWork, key: bytes, value: bytes | None) -> str | None:
    """Return a readable form of a future's row."""
    keys = work.keys
    if not key.startswith(keys.future.prefix) or value is None:
        return None
    (future_id,) = keys.future.unpack(key)
    assert isinstance(future_id, bytes)
    spec, row = work.rules.mirror.specs.get(future_id), rows.decode_row(value)
    more = f" by {row.holder[:6]}" if isinstance(row, Claimed) else ""
    more += f" {row.kind}" if isinstance(row, Failed) else ""
    return f"{spec.name if spec else future_id.hex()} {row.state.value} e{row.tally.epoch}{more}"


def conditions(chance: random.Random) -> Swarm:
    """Draw the conditions of one seed. The ttl is longer: a node claims only with 2.5 s of its lease left."""
    share = chance.choice((0.2, 0.5, 0.8))
    ttl_s = chance.choice((6.0, 15.0))
    return Swarm(
        machines=chance.choice((1, 2, 2, 3, 3)),
        ttl_s=ttl_s,
        every_s=ttl_s / chance.choice((3, 4)),
        patience_s=ttl_s * chance.choice((0.1, 0.5)),
        chaos_s=ttl_s * chance.uniform(1.5, 3.0),
        faults=tuple(fault for fault in DRAWN if chance.random() < share),
        call_rate=chance.choice((0.01, 0.03, 0.1)),
        timed_mean_s=ttl_s * chance.choice((0.3, 0.7, 1.5)),
    )


def futures_world(seed: int, swarm: Swarm | None = None, plan: FuturesPlan | None = None) -> World:
    """Build the world of a seed with futures; conditions and work can be passed in instead."""
    chance = random.Random(f"{seed}/futures")
    swarm = swarm if swarm is not None else conditions(chance)
    world = World(seed, swarm, scenario="futures")
    work = FutureWork(world, plan if plan is not None else draw_plan(chance, swarm))
    world.patience_s += work.plan.takes_s(swarm)
    world.workloads.append(work)
    world.timeline.describers.append(partial(describe, work))
    return world
