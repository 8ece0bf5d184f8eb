"""One simulated process of a cluster: it reads the plan from the store, joins the cluster, and works."""

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.cluster.history import History, Mark
from tests.simulation.cluster.queue import QueueWorker
from tests.simulation.cluster.tasks import ClusterPlan, Holders, SimHost
from tests.simulation.scheduler import Next, SimNode, SimulatedThread
from tidemill.cluster import config, nodes, partitions
from tidemill.cluster.events import LeaderLost, NodeLost, PartitionLost
from tidemill.cluster.keeper import Keeper
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leader import Tenure
from tidemill.cluster.locks import Semaphore
from tidemill.cluster.member import random_id
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import PartitionMap
from tidemill.cluster.states import MemberState
from tidemill.errors import CommitUnknown, LeaseLost, NotLeader, StoreError
from tidemill.events import Event
from tidemill.store import Space, Tx
from tidemill.testing.holdings import Holdings, PartitionMember

if TYPE_CHECKING:
    from tests.simulation.world import World

REMOVE_PAGE = 3
QUIET_TTLS = 3  # after this time without faults no lease may be lost


class Process:
    """A member with its host, the keeper of its locks, and its worker on the queue."""

    member: PartitionMember
    thread: SimulatedThread

    def __init__(self, world: "World", node: SimNode, keys: ClusterKeys, history: History, holders: Holders):
        self.world = world
        self.node = node
        self.keys = keys
        self.history = history
        self.holders = holders
        self.ttl_s = world.swarm.ttl_s
        self.started = False
        self.host = SimHost(self)
        self.rounds = Space(keys.cluster, "rounds")
        node.spawn("main", self._start)

    @property
    def holdings(self) -> Holdings:
        return self.member.holdings

    # --- its threads

    def _start(self) -> Next:
        """Read the plan: a node learns its work only from the store (CLU-17)."""
        try:
            raw = self.world.store.run(lambda tx: config.get(tx, self.keys, "plan"))
        except StoreError:
            return self.ttl_s / 10
        assert isinstance(raw, bytes)
        self.plan = msgspec.msgpack.decode(raw, type=ClusterPlan)
        self.part_keys = {
            (group, part_id): self.keys.part[group, part_id]
            for group, ids in self.plan.groups.items()
            for part_id in ids
        }
        node_id, token = random_id(self.node.chance), random_id(self.node.chance)
        self.node.tokens |= {node_id, token}
        clock, chance, swarm = self.node.clock, self.node.chance, self.world.swarm
        self.queue = QueueWorker(self, node_id)
        context = ClusterContext(
            store=self.world.store,
            cluster=self.keys.cluster,
            clock=clock,
            chance=chance,
            emit=self._emit,
            timing=swarm.timing,
        )
        self.member = PartitionMember(
            context,
            Node(id=node_id, epoch=0, slots=1 + self.node.machine % 3, address=self.node.name),
            list(self.plan.groups),
            self.host,
            duties={"plan": self._plan, "reap": self.queue.reap},
            pause_s=swarm.ttl_s / 50,
        )
        keeper = Keeper(
            self.world.store,
            token,
            clock=clock,
            chance=chance,
            timing=swarm.timing,
        )
        self.gates = [
            (gate, Semaphore(keeper, self.keys, gate.name, gate.permits)) for gate in self.plan.gates
        ]
        self.thread = self.node.spawn("member", self._tick)
        self.node.spawn("guard", self._guard)
        if self.gates:
            self.node.spawn("keeper", keeper.tick)
        if self.plan.queued:
            self.node.spawn("queue", self.queue.step, swarm.ttl_s * chance.random())
        self.started = True
        return None

    def _tick(self) -> Next:
        wait_s = self.member.tick()
        if self.member.state is MemberState.GONE:
            self.world.leave(self.node)
            return None
        return wait_s

    def _guard(self) -> Next:
        return min(self.holdings.guard(), self.ttl_s / 5)

    def drain(self, grace_s: float) -> None:
        if self.started:
            self.member.drain(grace_s)
            self.node.wake(self.thread)

    def _emit(self, event: Event) -> None:
        fields = {name: value for name, value in msgspec.structs.asdict(event).items() if name != "node"}
        self.world.record(self.node.name, type(event).__name__, *fields.values())
        if self.world.quiet_for_s() > QUIET_TTLS * self.ttl_s and self._is_loss(event):
            raise self.world.violated(f"{self.node.name} lost a lease although there are no faults: {event}")

    def _is_loss(self, event: Event) -> bool:
        if isinstance(event, PartitionLost):  # a stubborn one ends like this
            return not self.plan.pieces[f"{event.group}/{event.partition}"].stubborn
        return isinstance(event, (NodeLost, LeaderLost))

    # --- as leader

    def _plan(self, tenure: Tenure) -> float:
        """Remove partitions that are done and create the next ones, under the leader's epoch."""
        for group in self.plan.groups:
            tenure.check()
            self.world.act(self.keys.leader, tenure.epoch)
            call = self.history.call()
            try:
                wrote = tenure.run(partial(self._plan_group, tenure, group, call))
            except CommitUnknown:
                raise
            except (StoreError, NotLeader, LeaseLost):
                self.history.refused(call)
                raise
            if wrote:
                self.history.kept(call)
        return self.world.swarm.every_s

    def _plan_group(self, tenure: Tenure, group: str, call: int, tx: Tx) -> bool:
        removed = partitions.remove_done(tx, self.keys, group, REMOVE_PAGE)
        for part_id in removed:
            tx.add(self.rounds[group, part_id], 1)
        due: dict[str, bytes] = {}
        for part_id in self.plan.groups[group]:
            if partitions.read(tx, self.keys, group, part_id) is None:
                number = tx.counter(self.rounds[group, part_id])
                if number < self.plan.rounds:
                    due[part_id] = msgspec.msgpack.encode(self.plan.piece(group, part_id, number))
        if not removed and not due:
            return False
        made_from = PartitionMap(nodes.version(tx, self.keys), tenure.epoch, len(self.plan.groups[group]))
        partitions.create(tx, self.keys, group, due, made_from)
        self.history.append(tx, Mark(self.keys.leader, tenure.epoch, self.node.name, call))
        return True
