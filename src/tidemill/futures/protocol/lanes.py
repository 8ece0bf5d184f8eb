"""Lanes: the pool of unclaimed futures, sorted so that a worker reads only futures that it can run.

A lane is (queue, class, priority). A class groups futures with similar needs: each amount that a future needs
is rounded up to the next of a few fixed sizes. If a node's free capacity reaches the upper bound of a class,
the node can run any future of the class without checking the future's row. If the free capacity reaches only
the lower bound, the node checks the rows one by one. So there is no need for one index per resource, or for
the intersection of such indices (FUT-26). The oldest future of a lane comes first.
"""

from math import ceil, log2

import msgspec

from tidemill.futures.protocol.rows import Needs

RAM_STEPS = 4  # buckets per doubling: an upper bound is at most 19 % above the need
CPU_ONE = 8  # the bucket of exactly one cpu; each bucket is twice the previous one
RUNNERS = "spark:"
"""The prefix of resources that only runners have. Runners run only futures that need one of them."""


class Lane(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One lane of the pool. Workers serve lanes in their sort order: by priority, then by name."""

    minus_priority: int
    queue: str
    label: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.queue, self.label, self.minus_priority


def _bucket(amount: float, unit_bucket: int) -> int:
    return 0 if amount <= 0 else max(1, unit_bucket + ceil(log2(amount) - 1e-9))


def _amount(bucket: int, unit_bucket: int) -> float:
    return 0.0 if bucket <= 0 else 2.0 ** (bucket - unit_bucket)


def label_of(needs: Needs) -> str:
    """Return the class of needs as text: `cpu.ram.gpu+named`."""
    ram = 0 if needs.ram <= 0 else max(1, ceil(log2(needs.ram) * RAM_STEPS - 1e-9))
    names = "".join(f"+{name}" for name in sorted(needs.named))
    return f"{_bucket(needs.cpu, CPU_ONE)}.{ram}.{_bucket(needs.gpu, CPU_ONE)}{names}"


def bounds_of(label: str) -> tuple[Needs, Needs]:
    """Return the lower and upper bounds of a class."""
    amounts, *name_list = label.split("+")
    cpu, ram, gpu = (int(part) for part in amounts.split("."))
    names = tuple(name_list)
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
    """Return whether the needs include a resource that only runners have."""
    return any(name.startswith(RUNNERS) for name in needs.named)


def _ram(bucket: int) -> int:
    return 0 if bucket <= 0 else ceil(2.0 ** (bucket / RAM_STEPS) * (1 + 1e-12))


def lane_of(queue: str, priority: int, needs: Needs) -> Lane:
    """Return the lane of a future with these needs."""
    return Lane(-priority, queue, label_of(needs))


def with_ram(needs: Needs, ram: int) -> Needs:
    """Return the needs with at least this much ram, after an out-of-memory error (FUT-52)."""
    return needs if ram <= needs.ram else msgspec.structs.replace(needs, ram=ram)


def fits(needs: Needs, free: "Capacity") -> bool:
    """Return whether the needs fit into the free capacity."""
    return (
        needs.cpu <= free.cpu + 1e-9
        and needs.ram <= free.ram
        and needs.gpu <= free.gpu + 1e-9
        and all(name in free.named for name in needs.named)
    )


def how_many(needs: Needs, free: "Capacity") -> int:
    """Return how many futures with these needs fit together."""
    if not fits(needs, free):
        return 0
    most = 1_000_000
    for need, available in ((needs.cpu, free.cpu), (needs.ram, free.ram), (needs.gpu, free.gpu)):
        if need > 0:
            most = min(most, int((available + 1e-9) / need))
    return most


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity of a node, total or free."""

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
        """Return the capacity in the format of the node list."""
        amounts = {"cpu": self.cpu, "ram": float(self.ram), "gpu": self.gpu}
        return {**amounts, **{f"+{name}": 1.0 for name in self.named}}

    @staticmethod
    def of_node(amounts: dict[str, float]) -> "Capacity":
        """Parse the capacity from a node's entry in the node list."""
        return Capacity(
            cpu=amounts.get("cpu", 0.0),
            ram=int(amounts.get("ram", 0)),
            gpu=amounts.get("gpu", 0.0),
            named=frozenset(name[1:] for name in amounts if name.startswith("+")),
        )
