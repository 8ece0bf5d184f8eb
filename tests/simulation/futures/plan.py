"""The work of clients in a simulated cluster: graphs of calls whose results can be checked.

The value of a call depends only on its name and on the values of its inputs. So a result can be checked, no
matter how often, where and after which faults it was computed.
"""

import random
from zlib import crc32

import msgspec

from tests.simulation.faults import Fault, Swarm


class PlannedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One future: its inputs, its duration, and its planned failures."""

    name: str
    inputs: tuple[str, ...] = ()
    takes_s: float = 0.1
    raises: int = 0  # the number of attempts that raise first
    max_retries: int = 0
    crashes: int = 0  # the number of attempts that end their child process
    kills: int = 0  # the number of attempts that kill their node
    big: bool = False  # its result is a segment on its node, and is lost with the node
    near: bool = False  # softly assigned to the node that has its first input
    priority: int = 0
    keyed: bool = False  # submitted several times under one idempotency key
    cancel_after_s: float = -1.0
    deadline_s: float = 0.0


class PlannedSubmit(msgspec.Struct, frozen=True):
    """A graph that is submitted in one transaction; inputs come before the calls that need them."""

    name: str
    after_s: float
    calls: tuple[PlannedCall, ...]


class FuturesPlan(msgspec.Struct, frozen=True):
    """All the work."""

    orders: tuple[PlannedSubmit, ...]
    slots: int = 2

    @property
    def calls(self) -> dict[str, PlannedCall]:
        return {call.name: call for order in self.orders for call in order.calls}

    def values(self) -> dict[str, int]:
        """Return the expected result of each call."""
        results: dict[str, int] = {}
        for name, call in self.calls.items():
            results[name] = value_of(name, [results[upstream] for upstream in call.inputs])
        return results

    def takes_s(self, swarm: Swarm) -> float:
        """Return the longest time it takes without faults: one after the other, several times."""
        each = (
            call.takes_s * (3 + call.raises + call.crashes) + call.kills * 3 * swarm.ttl_s
            for call in self.calls.values()
        )
        return sum(each) + max(order.after_s for order in self.orders)


def value_of(name: str, inputs: list[int]) -> int:
    """Return the value of a call."""
    return crc32(repr((name, inputs)).encode())


SHAPES = {
    "single": ((),),
    "chain": ((), (0,), (1,), (2,)),
    "diamond": ((), (0,), (0,), (1, 2)),
    "fan": ((), (0,), (0,), (0,), (0,), (1, 2, 3, 4)),
    "join": ((), (), (0, 1)),
}


def draw_plan(chance: random.Random, swarm: Swarm) -> FuturesPlan:
    """Draw the work of one seed: just enough to last through the faults."""
    wild = chance.choice((0.0, 0.2, 0.5))  # the share of calls with special properties
    orders = []
    for number in range(chance.choice((1, 2, 3))):
        shape = SHAPES[chance.choice(list(SHAPES))]
        names = [f"o{number}.{place}" for place in range(len(shape))]
        calls = tuple(
            _draw_call(chance, swarm, names[place], tuple(names[index] for index in inputs), wild)
            for place, inputs in enumerate(shape)
        )
        orders.append(PlannedSubmit(f"o{number}", swarm.chaos_s * chance.choice((0.0, 0.2, 0.6)), calls))
    return FuturesPlan(tuple(orders), slots=chance.choice((1, 2, 3)))


def _draw_call(
    chance: random.Random, swarm: Swarm, name: str, inputs: tuple[str, ...], wild: float
) -> PlannedCall:
    call = PlannedCall(
        name=name,
        inputs=inputs,
        takes_s=swarm.ttl_s * chance.choice((0.005, 0.05, 0.2, 0.6)),
        big=chance.random() < 0.5,
        near=bool(inputs) and chance.random() < 0.3,
        priority=chance.choice((0, 0, 1)),
        keyed=not inputs and chance.random() < 0.3,
        max_retries=chance.choice((0, 2)),
    )
    if chance.random() >= wild:
        return call
    match chance.choice(("raise", "raise", "crash", "poison", "kill", "cancel", "cancel", "deadline")):
        case "raise":
            return msgspec.structs.replace(call, raises=chance.choice((1, 2, 9)))
        case "crash":
            return msgspec.structs.replace(call, crashes=1)
        case "poison":
            return msgspec.structs.replace(call, crashes=9)
        case "kill":
            return msgspec.structs.replace(call, kills=chance.choice((1, 2)) * swarm.has(Fault.CRASH))
        case "cancel":
            return msgspec.structs.replace(call, cancel_after_s=swarm.ttl_s * chance.random())
        case _:
            return msgspec.structs.replace(call, deadline_s=swarm.ttl_s * chance.uniform(0.1, 2.0))
