"""The work of a simulated cluster, kept in the store so that any node can start with nothing (CLU-17)."""

import random

import msgspec

from tidemill.testing.simulation.swarm import Swarm


class PlannedPiece(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a partition: a number of steps, each a fenced write after some time."""

    round: int
    steps: int
    step_s: float
    gate: int = -1  # the number of the semaphore that its steps need; -1: none
    stubborn: bool = False  # does not let go when it is asked to


class Gate(msgspec.Struct, frozen=True, array_like=True):
    """A semaphore that tasks share."""

    name: str
    permits: int


class ClusterPlan(msgspec.Struct, frozen=True, array_like=True):
    """The whole of the work."""

    groups: dict[str, list[str]]  # group -> ids of its partitions
    rounds: int  # how often each partition is made, worked on and removed
    gates: list[Gate]
    pieces: dict[str, PlannedPiece]  # "group/id" -> what its payload is like
    queued: int  # rows that go through the queue

    def takes_s(self, swarm: Swarm) -> float:
        """How long it takes at most when nothing goes wrong: one after the other, and slowly."""
        steps_s = sum(1.5 * piece.steps * piece.step_s for piece in self.pieces.values())
        between_s = len(self.pieces) * (swarm.every_s + swarm.ttl_s / 5)  # made, taken, removed
        return self.rounds * (steps_s + between_s) + 0.3 * swarm.ttl_s * self.queued

    def piece(self, group: str, part_id: str, round_number: int) -> PlannedPiece:
        return msgspec.structs.replace(self.pieces[f"{group}/{part_id}"], round=round_number)


def draw(chance: random.Random, swarm: Swarm) -> ClusterPlan:
    """The work of one seed: enough to last through the misfortunes, not more."""
    groups = {
        f"g{number}": [f"p{part}" for part in range(chance.choice((1, 2, 3, 4)))]
        for number in range(chance.choice((1, 1, 2)))
    }
    gates = [Gate(f"s{number}", chance.choice((1, 1, 2))) for number in range(chance.choice((0, 1, 2)))]
    pieces = {
        f"{group}/{part_id}": PlannedPiece(
            round=0,
            steps=chance.choice((1, 2, 4, 8)),
            step_s=swarm.ttl_s * chance.choice((0.03, 0.1, 0.3)),
            gate=chance.randrange(len(gates)) if gates and chance.random() < 0.7 else -1,
            stubborn=chance.random() < 0.15,
        )
        for group, ids in groups.items()
        for part_id in ids
    }
    return ClusterPlan(
        groups=groups,
        rounds=chance.choice((1, 2, 4)),
        gates=gates,
        pieces=pieces,
        queued=chance.choice((0, 6, 20)),
    )
