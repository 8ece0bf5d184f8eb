"""Choose the world of one seed: how large and how fast it is, and which faults it has.

Each seed has its own subset of the kinds of fault and its own rates. A world with every fault at once hides
problems that only show when, for example, only long pauses happen. Over many seeds every subset has its turn.
"""

import random
from enum import StrEnum

import msgspec

from tidemill.cluster.leases import LeaseTiming


class Fault(StrEnum):
    """The kinds of misfortune."""

    CRASH = "crash"  # a process ends in the middle of anything; the machine boots again later
    PAUSE = "pause"  # a process stops for less or more than the ttl, and continues as if nothing happened
    SLOW = "slow store"  # an answer takes its time; the other threads of the process go on
    CONFLICT = "conflict"  # the store refuses a commit for no reason that the node could see
    UNKNOWN = "unknown commit"  # the answer is lost: committed, not committed, or committed later
    LOST_WAKEUP = "lost wake-up"  # a watch does not fire
    RESTART = "store restart"  # the store is unreachable for a while; open transactions are lost or unknown
    DRIFT = "drift"  # monotonic clocks run at different rates
    JUMP = "clock jump"  # wall clocks are off by hours, and leap
    DRAIN = "drain"  # a node is asked to leave, and its machine comes back later
    BLACKOUT = "blackout"  # every node is killed at once


IN_CALLS = (Fault.CRASH, Fault.PAUSE, Fault.SLOW, Fault.CONFLICT, Fault.UNKNOWN)
TIMED = (Fault.CRASH, Fault.PAUSE, Fault.RESTART, Fault.JUMP, Fault.DRAIN, Fault.BLACKOUT)
MOST_DRIFT = 0.12  # a lease's margin of a fifth must cover the difference to the store's clock


class Swarm(msgspec.Struct, frozen=True):
    """One seed's conditions."""

    machines: int
    ttl_s: float
    every_s: float
    patience_s: float
    chaos_s: float  # how long misfortunes go on; after that everything must come to rest
    faults: tuple[Fault, ...]
    call_rate: float  # chance of a misfortune at each of the three moments of a store call
    timed_mean_s: float  # between two misfortunes that come from outside

    @property
    def timing(self) -> LeaseTiming:
        """Of the leases of all nodes."""
        return LeaseTiming(self.ttl_s, self.every_s)

    def has(self, fault: Fault) -> bool:
        return fault in self.faults


def draw(chance: random.Random, *, most_machines: int = 6) -> Swarm:
    """The conditions of one seed."""
    many = chance.choice((0.2, 0.5, 0.8))
    faults = tuple(fault for fault in Fault if chance.random() < many)
    ttl_s = chance.choice((1.0, 3.0, 15.0))
    return Swarm(
        machines=min(chance.choice((1, 2, 2, 3, 3, 3, 4, 5, 6)), most_machines),
        ttl_s=ttl_s,
        every_s=ttl_s / chance.choice((3, 4, 5)),
        patience_s=ttl_s * chance.choice((0.1, 0.5, 2.0)),
        chaos_s=ttl_s * chance.uniform(2.0, 4.5),
        faults=faults,
        call_rate=chance.choice((0.01, 0.03, 0.1, 0.25)),
        timed_mean_s=ttl_s * chance.choice((0.3, 0.7, 1.5)),
    )
