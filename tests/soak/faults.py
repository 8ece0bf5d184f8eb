"""The faults of the soak. Each waits until its target holds a claim or a lease, hurts it, and heals it again.

A fault is one of eight kinds. A kind that this machine cannot inject is skipped with the reason.
"""

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server
from tests.soak.connections import TcpProxy
from tests.soak.holdings import Holdings
from tests.soak.nodes import FAKETIME, SoakNode
from tidemill.clock import SYSTEM

KINDS = ("kill", "pause", "postgres", "s3", "disk", "clock", "cut", "delay")
TITLES = {
    "kill": "SIGKILL",
    "pause": "SIGSTOP, SIGCONT",
    "postgres": "PostgreSQL restarts (immediate)",
    "s3": "the S3 server restarts",
    "disk": "a full disk",
    "clock": "a shifted clock",
    "cut": "cut connections",
    "delay": "delayed connections",
}
PARTS = ("node", "supervisor", "child", "java")
"""What a signal hits: every process of a node, its supervisor, its Spark child, or its Java."""

SHIFTS_S = (3600, -3600, 7 * 86_400, -90, 600)
CLAIM_S = 20.0
"""How long to wait for a target that holds a claim or a run; then one that holds a lease will do."""

SERVERS = ("postgres", "s3")


@dataclass
class Fault:
    """One fault: when it began and ended, what its target held, and when the pipeline had recovered.

    Times are seconds since the beginning of the soak.
    """

    kind: str
    target: str
    detail: str
    holds: list[str]
    at_s: float
    end_s: float = 0.0
    recovered_s: float | None = None
    node: SoakNode | None = field(default=None, repr=False)


class Injector:
    """Injects faults, one at a time, from the main thread.

    - holdings: reads which node holds what.
    - now: the seconds since the beginning of the soak.
    """

    def __init__(
        self,
        nodes: list[SoakNode],
        postgres: PostgresServer,
        s3: S3Server,
        chance: random.Random,
        holdings: Callable[[], Holdings],
        now: Callable[[], float],
    ) -> None:
        self._targets = [node for node in nodes if not node.steady]
        self._postgres = postgres
        self._s3 = s3
        self._chance = chance
        self._holdings = holdings
        self._now = now
        self._rounds: list[str] = []
        self._turns = dict.fromkeys(KINDS, 0)
        self.faults: list[Fault] = []
        self.skipped: dict[str, str] = {}
        if not FAKETIME:
            self.skipped["clock"] = "libfaketime is not installed (apt-get install faketime)"
        if not all(node.disk is not None and node.disk.mounted for node in self._targets):
            self.skipped["disk"] = "this user cannot mount a file system"

    def next_kind(self) -> str:
        """Return the kind of the next fault: every kind once in each round, in random order."""
        if not self._rounds:
            self._rounds = [kind for kind in KINDS if kind not in self.skipped]
            self._chance.shuffle(self._rounds)
        return self._rounds.pop()

    def inject(self, kind: str) -> Fault:
        """Inject a fault of this kind, and heal it."""
        target, holds = self._target(kind)
        turn = self._turns[kind]
        self._turns[kind] += 1
        name = kind if target is None else target.name
        fault = Fault(kind, name, "", holds, self._now(), node=target)
        if target is None:
            server = self._postgres if kind == "postgres" else self._s3
            fault.target, fault.detail = ("PostgreSQL" if kind == "postgres" else "S3"), "restarted"
            server.kill()
            server.start()
        else:
            hurt: Callable[[SoakNode, int, Fault], None] = getattr(self, f"_{kind}")
            hurt(target, turn, fault)
        fault.end_s = self._now()
        self.faults.append(fault)
        return fault

    def _target(self, kind: str) -> tuple[SoakNode | None, list[str]]:
        """Return a node that the fault can hit and what it holds; no node if the fault hits a server."""
        nodes = [node for node in self._targets if kind != "clock" or node.clock is not None]
        end = SYSTEM.monotonic() + CLAIM_S
        while True:
            holdings = self._holdings()
            if kind in SERVERS:
                holds = sorted(name for held in holdings.held.values() for name in held)
                if any(not name.startswith("lease") for name in holds):
                    return None, holds
            else:
                by_node = [(node, holdings.of(node.threads)) for node in nodes if node.running]
                late = SYSTEM.monotonic() > end
                usable = [
                    (node, holds)
                    for node, holds in by_node
                    if any(late or not name.startswith("lease") for name in holds)
                    or (SYSTEM.monotonic() > end + CLAIM_S and node.threads in holdings.alive)
                ]
                if usable:
                    node, holds = self._chance.choice(usable)
                    return node, holds or ["lease node list"]
            SYSTEM.sleep(0.2)

    # --- kinds

    def _kill(self, node: SoakNode, turn: int, fault: Fault) -> None:
        part = PARTS[turn % len(PARTS)]
        victims = node.part(part) or node.part("node")
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        fault.detail = (
            f"SIGKILL to its {part}" if part != "node" else f"SIGKILL to its {len(victims)} processes"
        )
        if part in ("node", "supervisor"):
            node.end()  # what the kernel has not ended yet
            node.start()

    def _pause(self, node: SoakNode, turn: int, fault: Fault) -> None:
        part = PARTS[turn % 3]
        pause_s = (20.0, 2.0, 6.0)[turn % 4 % 3]  # a lease lasts 15 s
        victims = node.part(part)
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        fault.detail = f"{part} stopped for {pause_s:g} s"
        SYSTEM.sleep(pause_s)
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)

    def _disk(self, node: SoakNode, turn: int, fault: Fault) -> None:
        assert node.disk is not None
        size = node.disk.fill()
        fault.detail = f"disk full for 8 s ({size >> 20} MB written)"
        SYSTEM.sleep(8.0)
        node.disk.free()

    def _clock(self, node: SoakNode, turn: int, fault: Fault) -> None:
        shift_s = SHIFTS_S[turn % len(SHIFTS_S)]
        fault.detail = f"clock shifted by {shift_s:+,} s for 8 s"
        node.set_clock(shift_s)
        SYSTEM.sleep(8.0)
        node.set_clock(0)

    def _cut(self, node: SoakNode, turn: int, fault: Fault) -> None:
        which = ("store", "objects", "both")[turn % 3]
        refuse_s = (0.0, 4.0, 20.0)[turn // 3 % 3]
        with self._proxies(node, which) as proxies:
            count = 0
            for proxy in proxies:
                proxy.refusing = bool(refuse_s)
                count += proxy.cut()
            fault.detail = f"{count} connections cut ({which}), refused for {refuse_s:g} s"
            SYSTEM.sleep(refuse_s)

    def _delay(self, node: SoakNode, turn: int, fault: Fault) -> None:
        which = ("both", "store", "objects")[turn % 3]
        delay_s = (0.2, 1.0)[turn % 2]
        with self._proxies(node, which) as proxies:
            for proxy in proxies:
                proxy.delay_s = delay_s
            fault.detail = f"connections ({which}) delayed by {delay_s:g} s for 8 s"
            SYSTEM.sleep(8.0)

    @contextmanager
    def _proxies(self, node: SoakNode, which: str) -> Iterator[list[TcpProxy]]:
        pairs = (("store", node.store), ("objects", node.objects))
        proxies = [proxy for name, proxy in pairs if proxy is not None and which in (name, "both")]
        try:
            yield proxies
        finally:
            for proxy in proxies:
                proxy.refusing, proxy.delay_s = False, 0.0
