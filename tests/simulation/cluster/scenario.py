"""The cluster scenario: build a world from a seed."""

import random
from functools import partial

import msgspec

from tests.simulation.cluster import queue
from tests.simulation.cluster.history import Beliefs, History
from tests.simulation.cluster.process import Process
from tests.simulation.cluster.rules import LeaseRules, NodeRules, PartitionRules
from tests.simulation.cluster.tasks import ClusterPlan, Holders, draw_plan
from tests.simulation.faults import Swarm, draw_swarm
from tests.simulation.scheduler import SECOND_US, SimNode
from tests.simulation.world import Workload, World
from tidemill.cluster import config, leases, nodes, partitions
from tidemill.cluster.keys import ClusterKeys
from tidemill.store import Space
from tidemill.store.port import read_counter

CLUSTER = "sim"


class ClusterWork(Workload):
    """Members that share partitions, locks and a queue until all work is done."""

    def __init__(self, world: World, plan: ClusterPlan) -> None:
        self.world = world
        self.plan = plan
        self.keys = ClusterKeys(CLUSTER)
        self.history = History(self.keys)
        self.partitions = PartitionRules(self.keys)
        self.nodes = NodeRules(self.keys, int(2 * world.swarm.ttl_s * SECOND_US))
        self.queue = queue.QueueRules(queue.QueueKeys(self.keys), plan.queued)
        self.holders = Holders(world)
        self.beliefs = Beliefs(self.history)
        self._rounds = Space(CLUSTER, "rounds")
        for rule in (LeaseRules(self.keys), self.partitions, self.nodes, self.queue, self.history):
            world.add_rule(rule)

    def prepare(self) -> None:
        raw = msgspec.msgpack.encode(self.plan)
        self.world.store.run(lambda tx: config.put(tx, self.keys, "plan", raw))
        self.world.store.run(lambda tx: queue.fill(tx, self.queue.keys, self.plan.queued))

    def boot(self, node: SimNode) -> None:
        node.parts[CLUSTER] = Process(self.world, node, self.keys, self.history, self.holders)

    def drain(self, node: SimNode, grace_s: float) -> None:
        self.process(node).drain(grace_s)

    def check_node(self, node: SimNode) -> None:
        self.beliefs.judge(self.process(node))

    def process(self, node: SimNode) -> Process:
        process = node.parts[CLUSTER]
        assert isinstance(process, Process)
        return process

    # --- unfinished work

    def unfinished(self) -> list[str]:
        still = []
        if self.partitions.alive:
            still.append(f"{self.partitions.alive} partitions")
        rows, rounds = self.world.store.rows, self.plan.rounds
        for group, ids in self.plan.groups.items():
            for part_id in ids:
                completed = read_counter(rows.get(self._rounds[group, part_id]))
                if completed != rounds:
                    still.append(f"{group}/{part_id}: {completed} of {rounds} rounds")
        if self.queue.done < self.plan.queued:
            still.append(f"{self.plan.queued - self.queue.done} rows of the queue")
        return still + self._unfinished_nodes()

    def _unfinished_nodes(self) -> list[str]:
        processes = [self.process(node) for node in self.world.running()]
        members = [process.member for process in processes if process.started]
        still = []
        if {member.id for member in members} != set(self.nodes.listed) or len(members) < len(processes):
            still.append(f"{len(self.nodes.listed)} nodes are listed, {len(members)} are members")
        raw = self.world.store.rows.get(self.keys.leader)
        leader = leases.decode(raw) if raw is not None else None
        leading = [member.id for member in members if member.tenure is not None and member.tenure.alive()]
        if leader is None or leader.expires_at <= self.world.now_us or leading != [leader.holder]:
            still.append("there is no leader")
        tasks = [
            task.subject for process in processes for task in process.host.tasks.values() if not task.ended
        ]
        if tasks:
            still.append(f"tasks {', '.join(tasks)}")
        return still


def describe(keys: ClusterKeys, key: bytes, value: bytes | None) -> str | None:
    """Return a readable form of a row of the cluster."""
    if key.startswith((keys.part_expiry.prefix, keys.node_expiry.prefix)):
        return ""
    if value is None or not key.startswith((keys.part.prefix, keys.lease.prefix, keys.node.prefix)):
        return None
    if key.startswith(keys.part.prefix):
        part = partitions.decode(value)
        until = f" until {part.expires_at % 10**10 / SECOND_US:.3f}" if part.holder else ""
        request = f" wanted by {part.wanted_by[:6]}" if part.wanted_by else ""
        return f"{part.group}/{part.id} {part.state} e{part.epoch} {part.holder[:6]}{until}{request}"
    if key.startswith(keys.node.prefix):
        node = nodes.decode(value)
        return f"node {node.id[:6]} e{node.epoch} until {node.expires_at % 10**10 / SECOND_US:.3f}"
    lease = leases.decode(value)
    name = "/".join(str(part) for part in keys.lease.unpack(key))
    return f"lease {name} e{lease.epoch} {lease.holder[:6]} until {lease.expires_at % 10**10 / SECOND_US:.3f}"


def cluster_world(seed: int, swarm: Swarm | None = None, plan: ClusterPlan | None = None) -> World:
    """Build the cluster of a seed; conditions and work can be passed in instead."""
    chance = random.Random(f"{seed}/cluster")
    swarm = swarm if swarm is not None else draw_swarm(chance)
    world = World(seed, swarm, scenario="cluster")
    work = ClusterWork(world, plan if plan is not None else draw_plan(chance, swarm))
    world.patience_s += work.plan.takes_s(swarm)
    world.workloads.append(work)
    world.timeline.describers.append(partial(describe, work.keys))
    return world
