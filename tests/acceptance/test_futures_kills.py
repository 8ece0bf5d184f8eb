"""Workers and their children killed at random while thousands of futures run: nothing lost, nothing wrong.

The futures are diamonds: one makes a value, two change it, one joins them; of some the values are so large
that they lie in a worker's shared memory and die with it. Every execution writes its future and its epoch to
a file. In the end every result is right, no epoch of any future was executed twice, and no segment is left.

The name of the test has the seed of its decisions; `TIDEMILL_SEED=n` repeats them, though not their timing.
"""

import collections
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import worker_tasks as tasks
from tests.kill_samples import SEED, tenth_and_all
from tests.servers.process import wait_until
from tests.workers import Look, WorkerProcess, wait
from tidemill.errors import TaskCrashed, UpstreamDependencyFailed
from tidemill.futures.client.client import Client, connect
from tidemill.futures.client.future import Future
from tidemill.futures.values.segments import default_root
from tidemill.store import Row
from tidemill.testing.threads import STUCK_S

WORKERS = 2
DIAMONDS = 60  # in one wave
LARGE = 40_000  # bytes: more than a row takes
PAUSE_S = 5.0  # how long no task may begin before paused workers resume
EVERY = 25  # so many tasks begin between two kills, on average
LINE = 35  # bytes that an execution writes: 32 for the id, and mostly one digit for the epoch


class Waves:
    """Submits diamonds, wave after wave, until told to stop, and checks what they came to."""

    def __init__(self, client: Client, log: Path) -> None:
        self.client = client
        self.log = str(log)
        self.futures = 0
        self.wrong: list[str] = []
        self.unlucky: list[int] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            number = 0
            while not self._stop.is_set():
                self._wave(range(number, number + DIAMONDS))
                number += DIAMONDS
        except BaseException as error:  # noqa: BLE001 - it is the test's to raise
            self.error = error

    def _wave(self, numbers: range) -> None:
        client, log = self.client, self.log
        tops = [client.submit(tasks.top, log, n, LARGE if n % 4 == 0 else 1) for n in numbers]
        left = client.map(tasks.side, [log] * len(tops), tops, [2] * len(tops))
        right = client.map(tasks.side, [log] * len(tops), tops, [3] * len(tops))
        joins: list[Future[int]] = client.map(tasks.join, [log] * len(tops), left, right)
        self.futures += 4 * len(tops)
        came = client.gather(joins, timeout=STUCK_S, return_exceptions=True)
        for n, outcome in zip(numbers, came, strict=True):
            expected = tasks.expected(n, LARGE if n % 4 == 0 else 1)
            if isinstance(outcome, TaskCrashed | UpstreamDependencyFailed) and "SIGKILL" in str(outcome):
                self.unlucky.append(n)  # we killed one task three times: it is set aside, as it should be
            elif outcome != expected:
                self.wrong.append(f"diamond {n} is {outcome}, not {expected}")

    def finish(self) -> None:
        """No more waves; wait for the last."""
        self._stop.set()
        self._thread.join(STUCK_S)
        if self.error is not None:
            raise self.error
        assert not self._thread.is_alive()


class Fleet:
    """Some workers of one home. Those that were killed are started again."""

    def __init__(self, home: Path, log: Path, stack: ExitStack, chance: random.Random) -> None:
        self.home = home
        self.log = log
        self.look = stack.enter_context(Look(home))
        self.chance = chance
        self.kills: collections.Counter[str] = collections.Counter()
        self.seen: set[str] = set()
        self._stack = stack
        self.workers = [self._start() for _ in range(WORKERS)]
        self.paused: dict[WorkerProcess, int] = {}  # until so many tasks have been begun

    def _start(self) -> WorkerProcess:
        return self._stack.enter_context(WorkerProcess(self.home, slots=2, with_parent=False))

    def harm(self) -> None:
        """One misfortune, by chance."""
        kind = self.chance.choices(["child", "zygote", "supervisor", "pause", "drain"], [78, 4, 11, 3, 4])[0]
        worker = self.chance.choice(self.workers)
        self.seen |= {str(event["node"]) for event in worker.events("WorkerStarted")}
        if kind in ("child", "zygote"):
            children = worker.children(f"tidemill-{kind}") if worker not in self.paused else []
            if not children:
                return
            try:
                os.kill(self.chance.choice(children), signal.SIGKILL)
            except ProcessLookupError:
                return
        elif kind == "pause":
            if self.paused:
                return
            worker.ready()  # a worker that is paused before it has started never says who it is
            self.look.stop(worker)
            if self.chance.random() < 0.5:
                self.look.end_lease(worker, missing_ok=True)  # it paused for too long, and does not know
            self.paused[worker] = begun(self.log) + self.chance.randrange(5, 100)
        else:
            if kind == "drain" and worker not in self.paused:
                worker.signal(signal.SIGTERM)
                worker.signal(signal.SIGTERM)  # without the grace
                wait_until(lambda: worker.process.poll() is not None, timeout_s=STUCK_S)
            worker.kill()
            self.paused.pop(worker, None)
            self.workers.remove(worker)
            self.look.end_leases_except(self.workers)  # else its claims would wait for a long lease
            self.workers.append(self._start())
        self.kills[kind] += 1

    def wake(self) -> None:
        """Let those go on whose pause is over."""
        for worker, until in list(self.paused.items()):
            if begun(self.log) >= until:
                worker.signal(signal.SIGCONT)
                del self.paused[worker]

    def wake_all(self) -> None:
        """Resume every paused worker."""
        for worker in self.paused:
            worker.signal(signal.SIGCONT)
        self.paused.clear()

    def end(self) -> None:
        """All of them leave."""
        for worker in list(self.paused):
            worker.signal(signal.SIGCONT)
        for worker in self.workers:
            self.seen |= {str(event["node"]) for event in worker.events("WorkerStarted")}
            worker.ready()  # one that was started a moment ago cannot be asked to leave yet
            assert worker.drain() == 0, str(worker)


def run(home: Path, log: Path, *, kills: int) -> None:
    """Harm whenever about so many tasks have been begun; then let all come to its end, and judge.

    The work sets the pace and not the clock: on a slow machine a task is not killed more often.
    """
    chance = random.Random(SEED)
    log.mkdir()
    with ExitStack() as stack:
        client = stack.enter_context(connect(home=home))
        fleet = Fleet(home, log, stack, chance)
        for worker in fleet.workers:
            worker.ready()
        waves = Waves(client, log)
        next_at = 0
        while sum(fleet.kills.values()) < kills and waves.error is None:
            next_at = max(next_at, begun(log)) + int(chance.uniform(0.5, 1.5) * EVERY)
            while not wait_until(
                lambda at=next_at: begun(log) >= at or waves.error is not None, timeout_s=PAUSE_S
            ):
                fleet.wake_all()  # all tasks may wait for one of a paused worker, whose lease is long
            fleet.wake()
            fleet.harm()
        fleet.wake_all()
        waves.finish()
        made = begun(log)
        print(f"{waves.futures:,} futures, {made:,} executions, {dict(fleet.kills)}")  # noqa: T201
        assert not waves.wrong
        assert len(waves.unlucky) <= waves.futures // 200
        assert sum(fleet.kills.values()) >= kills
        twice = [execution for execution, count in collections.Counter(executions(log)).items() if count > 1]
        assert not twice, f"executed twice under one epoch: {twice[:5]}"
        wait(lambda: not claims(fleet.look), "the claims of dead workers were released")
        fleet.end()
        assert not claims(fleet.look), "claims of workers that have ended"
        wait(lambda: not left_after_start(home, fleet.seen), "the segments of dead workers were removed")


def claims(look: Look) -> list[Row]:
    """The claims of all workers."""
    return look.store.run(lambda tx: tx.range(*look.keys.own.all()))


def left_after_start(home: Path, nodes: set[str]) -> set[str]:
    """Start a worker, which removes what dead ones left on this host; return what is left of these nodes.

    A worker of another test may be removing the same folder at this moment. Then this one leaves it alone.
    """
    with WorkerProcess(home) as worker:
        worker.ready()
        assert worker.drain() == 0, str(worker)
    return nodes & {path.name for path in default_root().iterdir()}


def executions(log: Path) -> Iterator[str]:
    """Future and epoch of every execution that was begun."""
    for path in log.iterdir():
        yield from path.read_text().splitlines()


def begun(log: Path) -> int:
    """How many executions were begun."""
    return sum(path.stat().st_size for path in log.iterdir()) // LINE


@pytest.mark.rule("FUT-13", "FUT-49", "FUT-51", "FUT-29")
@pytest.mark.parametrize("kills", tenth_and_all(400))
def test_random_kills_lose_nothing_and_repeat_nothing(kills: int, tmp_path: Path) -> None:
    run(tmp_path / "home", tmp_path / "log", kills=kills)
