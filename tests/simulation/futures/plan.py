"""The work of clients in a simulated cluster: graphs of calls whose results can be checked.

The value of a call depends only on its name and on the values of its inputs. So a result can be checked, no
matter how often, where and after which faults it was computed.
"""

import random
from zlib import crc32

import msgspec

from tests.simulation.weather import Fault, Swarm


class PlannedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One future: what it needs, how long it takes, and what goes wrong with it by itself."""

    name: str
    inputs: tuple[str, ...] = ()
    takes_s: float = 0.1
    raises: int = 0  # the first so many attempts raise
    max_retries: int = 0
    crashes: int = 0  # so many end their child process
    kills: int = 0  # so many take their whole node with them
    big: bool = False  # the result is a segment on its node, and lost with it
    near: bool = False  # softly assigned to the node that has its first input
    priority: int = 0
    keyed: bool = False  # submitted again and again under one idempotency key
    cancel_after_s: float = -1.0
    deadline_s: float = 0.0


class PlannedSubmit(msgspec.Struct, frozen=True):
    """A graph that is submitted in one transaction; inputs come before those that need them."""

    name: str
    after_s: float
    calls: tuple[PlannedCall, ...]


class FuturesPlan(msgspec.Struct, frozen=True):
    """The whole of the work."""

    orders: tuple[PlannedSubmit, ...]
    slots: int = 2

    @property
    def calls(self) -> dict[str, PlannedCall]:
        return {call.name: call for order in self.orders for call in order.calls}

    def values(self) -> dict[str, int]:
        """What each call's result is, if it has one."""
        found: dict[str, int] = {}
        for name, call in self.calls.items():
            found[name] = value_of(name, [found[one] for one in call.inputs])
        return found

    def takes_s(self, swarm: Swarm) -> float:
        """How long it takes at most when nothing goes wrong any more: one after the other, several times."""
        each = (
            call.takes_s * (3 + call.raises + call.crashes) + call.kills * 3 * swarm.ttl_s
            for call in self.calls.values()
        )
        return sum(each) + max(order.after_s for order in self.orders)


def value_of(name: str, inputs: list[int]) -> int:
    """The value of a call."""
    return crc32(repr((name, inputs)).encode())


SHAPES = {
    "single": ((),),
    "chain": ((), (0,), (1,), (2,)),
    "diamond": ((), (0,), (0,), (1, 2)),
    "fan": ((), (0,), (0,), (0,), (0,), (1, 2, 3, 4)),
    "join": ((), (), (0, 1)),
}


def draw_plan(chance: random.Random, swarm: Swarm) -> FuturesPlan:
    """The work of one seed: enough to last through the misfortunes, not more."""
    wild = chance.choice((0.0, 0.2, 0.5))  # the share of calls with special properties
    orders = []
    for number in range(chance.choice((1, 2, 3))):
        shape = SHAPES[chance.choice(list(SHAPES))]
        names = [f"o{number}.{place}" for place in range(len(shape))]
        calls = tuple(
            _draw_call(chance, swarm, names[place], tuple(names[one] for one in inputs), wild)
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
