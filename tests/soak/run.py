"""One soak: start servers and nodes, send rows, inject faults, and judge what is there at the end."""

import contextlib
import os
import platform
import random
import statistics
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import tidemill as tm
from tests import shop
from tests.servers.kafka import KafkaServer
from tests.servers.postgres import PostgresServer
from tests.servers.process import wait_until
from tests.servers.s3 import SeaweedS3
from tests.soak import holdings, inputs, oracle
from tests.soak.connections import TcpProxy
from tests.soak.faults import Injector, works
from tests.soak.inputs import Inputs, Senders
from tests.soak.leftovers import clean_up, leftovers
from tests.soak.monitor import Monitor
from tests.soak.nodes import SoakNode
from tests.soak.pipeline import GROUPS, VIEWS, Site
from tests.soak.report import ReportedFault, Sample, Soak, Verdict
from tidemill.clock import SYSTEM
from tidemill.errors import GroupUnknown, ObjectError, StoreError

EVERY_S = {"orders": 9.0, "clicks": 9.0, "payments": 9.0, "customers": 13.0}
MOST_BACKLOG = 25
HEAPS = 4
"""How often the objects in Java's memory are measured, apart from the end."""

STALLED_S = 300.0
"""If rows are missing and the pipeline has published nothing for this long, it is stuck."""


class Limits(msgspec.Struct, frozen=True):
    """How much must have happened, and by how much memory may grow.

    `Limits()` holds for 20 minutes. In a shorter soak, the steady runner is still warming up.
    """

    faults: int = 60
    kinds: int = 7
    lots: int = 150
    steps: int = 100
    memory_growth: float = 0.10


SHORT = Limits(faults=1, kinds=1, lots=1, steps=1, memory_growth=1.0)


def run(folder: Path, minutes: float, every_s: float, seed: int, limits: Limits) -> Soak:
    """Run a soak in this folder, from the main thread; return what the report shows."""
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer())
        s3 = stack.enter_context(SeaweedS3())
        kafka = stack.enter_context(KafkaServer())
        topic = kafka.new_topic(inputs.PARTITIONS)
        servers = Servers(postgres, s3, kafka, topic)
        return _Course(stack, folder, servers, seed).run(minutes, every_s, limits)


class Servers(msgspec.Struct):
    """The servers that a pipeline needs."""

    postgres: PostgresServer
    s3: SeaweedS3
    kafka: KafkaServer
    topic: str

    def site(self, folder: Path, max_files: int = 2) -> Site:
        """Return a new pipeline with an empty store and an empty bucket."""
        s3 = self.s3
        objects = (
            f"s3://{s3.access_key}:{s3.secret_key}@{s3.new_bucket()}/lake?endpoint={s3.endpoint}&region={s3.region}"
            "&timeout_s=20"
        )
        return Site(
            folder,
            store=self.postgres.new_database(),
            objects=objects,
            brokers=self.kafka.brokers,
            topic=self.topic,
            max_files=max_files,
        )


class _Course:
    """The course of one soak."""

    def __init__(self, stack: ExitStack, folder: Path, servers: Servers, seed: int) -> None:
        self._stack = stack
        self._folder = folder
        self._servers = servers
        self._seed = seed
        self._site = servers.site(folder / "disturbed")
        self._pipeline = stack.enter_context(self._site.declare())
        self._nodes = [
            SoakNode(self._site, "runner-1", "run", 2, steady=True),
            SoakNode(self._site, "runner-2", "run", 3),
            SoakNode(self._site, "runner-3", "run", 4, clock=True),
            SoakNode(self._site, "worker-1", "worker", 1),
            SoakNode(self._site, "worker-2", "worker", 5, clock=True),
        ]
        for node in self._nodes:
            stack.callback(node.close)
            if not node.steady:
                store = stack.enter_context(TcpProxy(servers.postgres.port))
                node.connect(store, stack.enter_context(TcpProxy(servers.s3.port)))
        self._inputs = Inputs(self._pipeline, self._site.landing, servers.kafka, servers.topic)
        self._began = SYSTEM.monotonic()
        self._heaps: list[int] = []

    def run(self, minutes: float, every_s: float, limits: Limits) -> Soak:
        self._start_nodes()
        steady = self._nodes[0]
        senders = Senders(self._inputs, EVERY_S, self._hold_back)
        _wait("the first rows are in a view", lambda: self._progress().steps > 1)
        self._began = SYSTEM.monotonic()
        began = datetime.fromtimestamp(SYSTEM.wall(), UTC).strftime("%Y-%m-%d %H:%M UTC")
        monitor = Monitor(self._pipeline, steady, self._now)
        injector = Injector(
            self._nodes,
            self._servers.postgres,
            self._servers.s3,
            random.Random(self._seed),
            monitor.holdings,
            self._now,
        )
        while self._now() < minutes * 60:
            if len(self._heaps) < HEAPS * self._now() / (minutes * 60):
                self._heaps.append(steady.live_heap())
            next_at = self._now() + every_s
            fault = injector.inject(injector.next_kind())
            _tell(
                f"{fault.at_s:6.0f} s  {fault.kind:8} {fault.target}: {fault.detail}; {len(fault.holds)} held"
            )
            monitor.watch(fault)
            self._revive()
            SYSTEM.sleep(max(0.0, next_at - self._now()))
        end_s = self._now()
        self._heaps.append(steady.live_heap())
        _tell("no more faults; waiting until everything is processed")
        senders.stop()
        self._inputs.send_last()
        wanted = oracle.expected(self._inputs.sent)
        caught_up = self._catch_up(wanted)
        monitor.stop()
        verdicts = self._judge(wanted, caught_up, monitor, injector, limits, end_s)
        return Soak(
            minutes=minutes,
            seed=self._seed,
            began=began,
            machine=f"{os.cpu_count()} cores, load average {min(monitor.loads):.0f} to"
            f" {max(monitor.loads):.0f}, Python {platform.python_version()}",
            nodes=[f"{node.name} ({node.describe()})" for node in self._nodes],
            faults=[
                ReportedFault(
                    kind=fault.kind,
                    target=fault.target,
                    detail=fault.detail,
                    holds=fault.holds,
                    at_s=round(fault.at_s, 1),
                    end_s=round(fault.end_s, 1),
                    recovered_s=None if fault.recovered_s is None else round(fault.recovered_s, 1),
                )
                for fault in injector.faults
            ],
            skipped=injector.skipped,
            samples=monitor.samples,
            rows={name: sum(rows.values()) for name, rows in wanted.items() if name in SENT},
            retries=self._inputs.retries,
            restarts=sum(node.starts - 1 for node in self._nodes),
            verdicts=verdicts,
        )

    # --- the nodes

    def _start_nodes(self) -> None:
        """Start a runner, which applies the plan, and then the others; the steady runner last.

        The first runner receives the pushed rows and leads the cluster, and faults shall hit these roles.
        """
        steady, first, *others = self._nodes
        first.start()
        _wait(
            "the first runner has applied the plan",
            lambda: self._groups() == {*GROUPS},
        )
        for node in (*others, steady):
            node.start()
        _wait("all nodes have joined", lambda: len(self._alive()) == len(self._nodes))

    def _revive(self) -> None:
        """Start the nodes that have ended, as a service manager does."""
        for node in self._nodes:
            if not node.running:
                _tell(f"{self._now():6.0f} s  {node.name} has ended and starts again")
                node.end()
                node.start()

    def _groups(self) -> set[str]:
        keys, store = self._pipeline.context.keys, self._pipeline.context.store
        rows = store.run(lambda tx: tx.range(*keys.group.all()))
        return {str(keys.group.unpack(row.key)[1]) for row in rows}

    def _alive(self) -> set[int]:
        context = self._pipeline.context
        with contextlib.suppress(StoreError):
            return {*context.store.run(lambda tx: holdings.read(tx, context.place.cluster)).alive}
        return set()

    # --- the rows

    def _now(self) -> float:
        return SYSTEM.monotonic() - self._began

    def _progress(self) -> holdings.Progress:
        context = self._pipeline.context
        return context.store.run(lambda tx: holdings.progress(tx, context))

    def _hold_back(self, stop: threading.Event) -> None:
        """Wait while the arcs have much to do, so that a slow machine gets no endless backlog."""
        context = self._pipeline.context
        while not stop.is_set():
            with contextlib.suppress(StoreError):
                if context.store.run(lambda tx: holdings.backlog(tx, context)) <= MOST_BACKLOG:
                    return
            SYSTEM.wait(stop, 1.0)

    def _catch_up(self, wanted: oracle.Tables) -> bool:
        """Wait until the views hold every row; return False if the pipeline does not advance any more."""
        progress, changed_at = None, SYSTEM.monotonic()
        while SYSTEM.monotonic() < changed_at + STALLED_S:
            self._revive()
            if views_equal(self._pipeline, wanted):
                return True
            with contextlib.suppress(StoreError):
                if (now := self._progress()) != progress:
                    progress, changed_at = now, SYSTEM.monotonic()
            SYSTEM.sleep(1.0)
        return False

    # --- the verdicts

    def _judge(
        self,
        wanted: oracle.Tables,
        caught_up: bool,
        monitor: Monitor,
        injector: Injector,
        limits: Limits,
        end_s: float,
    ) -> list[Verdict]:
        expected = {node.threads for node in self._nodes}
        joined = wait_until(lambda: self._alive() == expected and not self._dead(), timeout_s=STALLED_S)
        codes = [node.drain(120.0) for node in self._nodes]
        clean_up(self._pipeline)
        # Read after the last process has ended and all garbage is deleted: nothing can change any more.
        stored = oracle.read(self._pipeline)
        wrong = oracle.differences(wanted, stored)
        for difference in wrong[:20]:
            _tell(str(difference))
        rows = sum(sum(counts.values()) for counts in wanted.values())
        left = leftovers(self._pipeline)
        left += [f"process {process}" for node in self._nodes for process in node.strays()]
        left += [f"temporary file {name} of the steady runner" for name in self._nodes[0].temporary_files()]
        for leftover in left[:20]:
            _tell(f"left behind: {leftover}")
        gaps = self._pipeline.gaps().gaps
        disturbed = oracle.digests(self._pipeline, stored)
        _tell("running the same inputs without faults")
        calm = self._undisturbed(wanted)
        unequal = sorted(
            name for name in disturbed.keys() | calm.keys() if disturbed.get(name) != calm.get(name)
        )
        growth, memory = memory_growth(monitor.samples, end_s)
        last = monitor.samples[-1]
        kinds = {fault.kind for fault in injector.faults if fault.holds}
        unrecovered = [fault for fault in injector.faults if fault.recovered_s is None]
        hits = [fault for fault in injector.faults if fault.holds]
        claims = sum(works(fault.holds) for fault in hits)
        return [
            Verdict(
                "every row counts once in every table and view",
                caught_up and not wrong,
                f"{rows:,} rows compared in {len(wanted)} tables, views and feeds of changes,"
                f" {len(wrong)} differ",
            ),
            Verdict(
                "digests equal those of an undisturbed run",
                not unequal,
                f"{len(disturbed)} digests compared, {len(unequal)} differ {', '.join(unequal)}".strip(),
            ),
            Verdict("no file, lease, heap item or future is left behind", not left, f"{len(left)} left"),
            Verdict("no lot is missing", not gaps, f"{len(gaps)} gaps"),
            Verdict(
                "the pipeline recovered from every fault",
                not unrecovered,
                f"{len(injector.faults) - len(unrecovered)} of {len(injector.faults)}",
            ),
            Verdict(
                "dead nodes leave the node list, and all nodes drain",
                joined and set(codes) == {0},
                f"exit codes {codes}",
            ),
            Verdict(
                f"the memory of the steady runner grows by less than {limits.memory_growth:.0%}",
                growth < limits.memory_growth and len(monitor.processes) == self._nodes[0].starts == 1,
                f"{memory}; objects in Java {', '.join(f'{size / 2**20:.0f}' for size in self._heaps)} MB"
                + ("" if len(monitor.processes) == 1 else "; a process was replaced"),
            ),
            Verdict(
                f"at least {limits.faults} faults of {limits.kinds} kinds, while the target held something",
                len(hits) >= limits.faults and len(kinds) >= limits.kinds,
                f"{len(hits)} faults of {len(kinds)} kinds: {claims} during a claim, a lot or a run,"
                f" {len(hits) - claims} during a lease alone. Not counted:"
                f" {len(injector.faults) - len(hits)}, whose target held nothing any more",
            ),
            Verdict(
                f"at least {limits.lots} lots and {limits.steps} view steps",
                last.lots >= limits.lots and last.steps >= limits.steps,
                f"{last.lots} lots, {last.steps} view steps",
            ),
        ]

    def _dead(self) -> list[str]:
        """Return the dead nodes that have left traces in the store."""
        context = self._pipeline.context
        with contextlib.suppress(StoreError):
            return context.store.run(lambda tx: holdings.dead(tx, context.place.cluster))
        return ["unknown"]

    def _undisturbed(self, wanted: oracle.Tables) -> dict[str, str]:
        """Send the same rows to an empty pipeline with one runner and no faults; return its digests."""
        site = self._servers.site(self._folder / "undisturbed", max_files=500)
        node = SoakNode(site, "runner", "run", 4, steady=True)
        self._stack.callback(node.close)
        with site.declare() as pipeline:
            node.start()
            again = Inputs(pipeline, site.landing, self._servers.kafka, self._servers.topic)
            again.send_all(self._inputs.sent)
            _wait("the undisturbed run has caught up", lambda: views_equal(pipeline, wanted), timeout_s=900.0)
            digests = oracle.digests(pipeline, oracle.read(pipeline))
            node.drain(120.0)
        return digests


SENT = ("orders", "raw_clicks", "raw_payments", "tiers")


def views_equal(pipeline: tm.Pipeline, wanted: oracle.Tables) -> bool:
    """Return whether every view holds its rows. The tables follow, because the views read them all."""
    try:
        return all(shop.view(pipeline, name) == dict(wanted[name]) for name in reversed(VIEWS))
    except (GroupUnknown, KeyError, ObjectError, StoreError):
        return False


def memory_growth(samples: list[Sample], end_s: float) -> tuple[float, str]:
    """Return by how much the memory of the steady runner grew over the second half, and a text with it.

    The growth is the larger of two: that of all its processes, and that of its Python processes alone. Java
    uses most of the memory, so growth in Python would hardly show in the sum. When the steady runner takes
    over the topic or the endpoint of a killed one, its Python processes grow once, at once. So their largest
    jump does not count. A leak adds little in the time of a jump.
    """
    half = [sample for sample in samples if end_s / 2 <= sample.at_s <= end_s and sample.memory]
    fifth = len(half) // 5
    if not fifth:
        return float("inf"), "too few samples"
    every = [sample.memory for sample in half]
    python = [sample.memory - sample.java for sample in half]
    jump = _largest_jump(python, max(1, fifth // 4))
    text = f"{_growth_text(every, fifth)} over the second half; without Java {_growth_text(python, fifth)}"
    text += f", {jump / 2**20:,.0f} MB of it at once"
    return max(_growth(every, fifth), _growth(python, fifth, jump)), text


def _growth(sizes: list[int], count: int, jump: float = 0.0) -> float:
    """Compare the medians of the first and of the last `count` sizes, less a jump between them."""
    before, after = statistics.median(sizes[:count]), statistics.median(sizes[-count:])
    return (after - jump) / before - 1


def _growth_text(sizes: list[int], count: int) -> str:
    before, after = statistics.median(sizes[:count]), statistics.median(sizes[-count:])
    return f"{_growth(sizes, count):+.1%} ({before / 2**20:,.0f} to {after / 2**20:,.0f} MB)"


def _largest_jump(sizes: list[int], count: int) -> float:
    """Return by how much the median of `count` sizes exceeds that of as many sizes before them, at most."""
    jumps = (
        statistics.median(sizes[at : at + count]) - statistics.median(sizes[at - count : at])
        for at in range(count, len(sizes) - count + 1)
    )
    return max(0.0, *jumps)


def _wait(what: str, ready: Callable[[], bool], timeout_s: float = 600.0) -> None:
    if not wait_until(ready, timeout_s=timeout_s, every_s=0.5):
        raise AssertionError(f"not reached within {timeout_s:g} s: {what}")


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
