"""The base classes of rules, which check every commit and action, and of workloads, which must finish."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidemill.testing.simulation.store import RecordedCommit

if TYPE_CHECKING:
    from tidemill.testing.simulation.node import SimNode


class Violation(AssertionError):
    """A rule was broken; the message says by whom and how to see it again."""


class Act(NamedTuple):
    """Something a node did in the world because it believed that it held a lease; no store refuses it."""

    node: "SimNode"
    key: bytes  # of the lease
    epoch: int
    now_us: int  # the store's time at this moment


class Rule(Protocol):
    """An invariant. It raises `Violation` and has no other effect."""

    prefixes: tuple[bytes, ...]
    """Commits that change nothing below these are not shown to it."""

    def commit(self, commit: RecordedCommit) -> None:
        """A transaction was committed."""

    def act(self, act: Act) -> None:
        """A node acted."""

    def end(self, rows: dict[bytes, bytes]) -> None:
        """The run is over and at rest."""


class Workload(Protocol):
    """What the nodes are there for."""

    def prepare(self) -> None:
        """Before the first node: write what the store must know."""

    def boot(self, node: "SimNode") -> None:
        """A node starts: give it its threads."""

    def drain(self, node: "SimNode", grace_s: float) -> None:
        """A node is asked to leave."""

    def turn(self, node: "SimNode") -> None:
        """Check what a node believes when it continues, at the start of a step or after a block in it."""

    def open(self) -> list[str]:
        """What is not at rest yet, in words; empty when everything is done."""
        ...
