"""The faults of the soak. Each waits until its target holds a claim or a lease, hurts it, and heals it again.

A fault is one of eight kinds. A kind that this machine cannot inject is skipped with the reason.

What the target holds is read before the fault and again as soon as the fault is in effect. The report lists
what is in both: the target held it at the moment of the fault. Rows of an earlier process of the node do not
count, because a killed process holds nothing that a fault could hurt.
"""

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
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

SERVERS = {"postgres": "PostgreSQL", "s3": "S3"}
CUTS = ("store", "objects", "both")
Held = dict[str, set[str]]
"""What nodes hold, by the id of the node."""


def works(names: Iterable[str]) -> bool:
    """Return whether these are more than leases: a claim, a lot or a run."""
    return any(not name.startswith("lease") for name in names)


@dataclass
class Fault:
    """One fault: when it began and ended, what its target held, and when the pipeline had recovered.

    - holds: what the target held before the fault and still when the fault was in effect.

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
        turn = self._turns[kind]
        self._turns[kind] += 1
        target, before = self._target(kind, turn)
        name = SERVERS[kind] if target is None else target.name
        fault = Fault(kind, name, "", [], self._now(), node=target)
        if target is None:
            hurt = self._restart(kind, fault)
        else:
            hurts: Callable[[SoakNode, int, Fault], AbstractContextManager[float]] = getattr(self, f"_{kind}")
            hurt = hurts(target, turn, fault)
        with hurt as seconds:
            fault.holds = self._still_held(before)
            SYSTEM.sleep(seconds)
        fault.end_s = self._now()
        self.faults.append(fault)
        return fault

    def _still_held(self, before: Held) -> list[str]:
        """Return what is held now, of what the target held before the fault; wait for the store."""
        while not (now := self._holdings()).known:
            SYSTEM.sleep(0.1)
        return sorted(name for node, names in before.items() for name in names & {*now.held.get(node, [])})

    def _target(self, kind: str, turn: int) -> tuple[SoakNode | None, Held]:
        """Return a node that the fault can hit and what it holds; no node if the fault hits a server."""
        nodes = [node for node in self._targets if kind != "clock" or node.clock is not None]
        end = SYSTEM.monotonic() + CLAIM_S
        while True:
            holdings = self._holdings()
            if kind in SERVERS:
                held = {node: {*names} for node, names in holdings.held.items()}
                if any(map(works, held.values())):
                    return None, held
            else:
                late = SYSTEM.monotonic() > end
                usable = [
                    (node, {entry.id: names})
                    for node in nodes
                    if node.running and (kind != "cut" or self._connected(node, turn))
                    if (entry := holdings.entry(node.threads, node.started_at_us)) is not None
                    if (names := {*holdings.held.get(entry.id, [])}) and (late or works(names))
                ]
                if usable:
                    return self._chance.choice(usable)
            SYSTEM.sleep(0.2)

    # --- kinds: each hurts its target, yields for how many seconds, and heals it

    @contextmanager
    def _restart(self, kind: str, fault: Fault) -> Iterator[float]:
        server = self._postgres if kind == "postgres" else self._s3
        server.kill()
        server.start()
        fault.detail = "restarted"
        yield 0.0

    @contextmanager
    def _kill(self, node: SoakNode, turn: int, fault: Fault) -> Iterator[float]:
        part = PARTS[turn % len(PARTS)]
        victims = node.part(part) or node.part("node")
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        fault.detail = (
            f"SIGKILL to its {part}" if part != "node" else f"SIGKILL to its {len(victims)} processes"
        )
        yield 0.0
        if part in ("node", "supervisor"):
            node.end()  # what the kernel has not ended yet
            node.start()

    @contextmanager
    def _pause(self, node: SoakNode, turn: int, fault: Fault) -> Iterator[float]:
        part = PARTS[turn % 3]
        pause_s = (20.0, 2.0, 6.0)[turn % 4 % 3]  # a lease lasts 15 s
        victims = node.part(part) or node.part("node")
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        fault.detail = f"{part} stopped for {pause_s:g} s"
        yield pause_s
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)

    @contextmanager
    def _disk(self, node: SoakNode, turn: int, fault: Fault) -> Iterator[float]:
        assert node.disk is not None
        size = node.disk.fill()
        fault.detail = f"disk full for 8 s ({size >> 20} MB written)"
        yield 8.0
        node.disk.free()

    @contextmanager
    def _clock(self, node: SoakNode, turn: int, fault: Fault) -> Iterator[float]:
        shift_s = SHIFTS_S[turn % len(SHIFTS_S)]
        fault.detail = f"clock shifted by {shift_s:+,} s for 8 s"
        node.set_clock(shift_s)
        yield 8.0
        node.set_clock(0)

    @contextmanager
    def _cut(self, node: SoakNode, turn: int, fault: Fault) -> Iterator[float]:
        which, refuse_s = CUTS[turn % 3], (0.0, 4.0, 20.0)[turn // 3 % 3]
        with self._proxies(node, which) as proxies:
            count = 0
            for proxy in proxies:
                proxy.refusing = bool(refuse_s)
                count += proxy.cut()
            fault.detail = f"{count} connections cut ({which}), refused for {refuse_s:g} s"
            yield refuse_s

    def _connected(self, node: SoakNode, turn: int) -> bool:
        """Return whether there is a connection to cut."""
        with self._proxies(node, CUTS[turn % 3]) as proxies:
            return all(proxy.open_connections for proxy in proxies)

    @contextmanager
    def _delay(self, node: SoakNode, turn: int, fault: Fault) -> Iterator[float]:
        which = ("both", "store", "objects")[turn % 3]
        delay_s = (0.2, 1.0)[turn % 2]
        with self._proxies(node, which) as proxies:
            for proxy in proxies:
                proxy.delay_s = delay_s
            fault.detail = f"connections ({which}) delayed by {delay_s:g} s for 8 s"
            yield 8.0

    @contextmanager
    def _proxies(self, node: SoakNode, which: str) -> Iterator[list[TcpProxy]]:
        pairs = (("store", node.store), ("objects", node.objects))
        proxies = [proxy for name, proxy in pairs if proxy is not None and which in (name, "both")]
        try:
            yield proxies
        finally:
            for proxy in proxies:
                proxy.refusing, proxy.delay_s = False, 0.0
