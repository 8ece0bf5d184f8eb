"""Lanes: the pool of unclaimed futures, sorted so that a worker reads only what it can run.

A lane is (queue, class, priority). A class is a bucket of needs: the amounts rounded up to a step, so that
everything in a class fits a node that has the class's upper bound free, and needs no look at each row.
When a node has less than the upper bound but more than the lower, its rows are looked at one by one. This
replaces one index per resource and their intersection (FUT-26). In a lane the oldest is first.
"""

from math import ceil, log2

import msgspec

from tidemill.futures.protocol.rows import Needs

RAM_STEPS = 4  # buckets per doubling: an upper bound is at most 19 % above what was asked
CPU_ONE = 8  # the bucket of exactly one cpu; each bucket doubles
RUNNERS = "spark:"
"""What begins like this is the name of something that runners have, and no worker: they run nothing else."""


class Lane(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One lane of the pool. Sorted as they are served: by priority, then by name."""

    minus_priority: int
    queue: str
    label: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.queue, self.label, self.minus_priority


def _bucket(amount: float, one: int) -> int:
    return 0 if amount <= 0 else max(1, one + ceil(log2(amount) - 1e-9))


def _amount(bucket: int, one: int) -> float:
    return 0.0 if bucket <= 0 else 2.0 ** (bucket - one)


def label_of(needs: Needs) -> str:
    """The class of some needs, as a name that sorts and reads well: `cpu.ram.gpu+named`."""
    ram = 0 if needs.ram <= 0 else max(1, ceil(log2(needs.ram) * RAM_STEPS - 1e-9))
    named = "".join(f"+{name}" for name in sorted(needs.named))
    return f"{_bucket(needs.cpu, CPU_ONE)}.{ram}.{_bucket(needs.gpu, CPU_ONE)}{named}"


def bounds_of(label: str) -> tuple[Needs, Needs]:
    """The least and the most a member of the class may need."""
    amounts, *named = label.split("+")
    cpu, ram, gpu = (int(part) for part in amounts.split("."))
    names = tuple(named)
    return (
        Needs(
            _amount(cpu - 1, CPU_ONE) if cpu else 0.0,
            _ram(ram - 1),
            _amount(gpu - 1, CPU_ONE) if gpu else 0.0,
            names,
        ),
        Needs(_amount(cpu, CPU_ONE), _ram(ram), _amount(gpu, CPU_ONE), names),
    )


def for_runners(needs: Needs) -> bool:
    """Does it ask for something that only a runner has?"""
    return any(name.startswith(RUNNERS) for name in needs.named)


def _ram(bucket: int) -> int:
    return 0 if bucket <= 0 else ceil(2.0 ** (bucket / RAM_STEPS) * (1 + 1e-12))


def lane_of(queue: str, priority: int, needs: Needs) -> Lane:
    """The lane of a future that needs this much now."""
    return Lane(-priority, queue, label_of(needs))


def with_ram(needs: Needs, ram: int) -> Needs:
    """The needs after out-of-memory: at least this much ram (FUT-52)."""
    return needs if ram <= needs.ram else msgspec.structs.replace(needs, ram=ram)


def fits(needs: Needs, free: "Capacity") -> bool:
    """Does a node with this much free run it?"""
    return (
        needs.cpu <= free.cpu + 1e-9
        and needs.ram <= free.ram
        and needs.gpu <= free.gpu + 1e-9
        and all(name in free.named for name in needs.named)
    )


def how_many(needs: Needs, free: "Capacity") -> int:
    """How many futures with these needs fit together."""
    if not fits(needs, free):
        return 0
    most = 1_000_000
    for asked, there in ((needs.cpu, free.cpu), (needs.ram, free.ram), (needs.gpu, free.gpu)):
        if asked > 0:
            most = min(most, int((there + 1e-9) / asked))
    return most


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has, in all or free now."""

    cpu: float = 0.0
    ram: int = 0
    gpu: float = 0.0
    named: frozenset[str] = frozenset()

    def minus(self, needs: Needs) -> "Capacity":
        return msgspec.structs.replace(
            self, cpu=self.cpu - needs.cpu, ram=self.ram - needs.ram, gpu=self.gpu - needs.gpu
        )

    def plus(self, needs: Needs) -> "Capacity":
        return msgspec.structs.replace(
            self, cpu=self.cpu + needs.cpu, ram=self.ram + needs.ram, gpu=self.gpu + needs.gpu
        )

    def to_node(self) -> dict[str, float]:
        """As a node's entry carries it."""
        amounts = {"cpu": self.cpu, "ram": float(self.ram), "gpu": self.gpu}
        return {**amounts, **{f"+{name}": 1.0 for name in self.named}}

    @staticmethod
    def of_node(amounts: dict[str, float]) -> "Capacity":
        """From a node's entry."""
        return Capacity(
            cpu=amounts.get("cpu", 0.0),
            ram=int(amounts.get("ram", 0)),
            gpu=amounts.get("gpu", 0.0),
            named=frozenset(name[1:] for name in amounts if name.startswith("+")),
        )
