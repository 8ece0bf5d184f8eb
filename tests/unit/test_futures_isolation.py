"""A future whose nodes died again and again runs alone, so that the others finish."""

import random
from collections.abc import Sequence

import pytest

from tests.unit.futures_stage import Stage
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.futures.protocol import cancel
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.retries import MOST_REAPS
from tidemill.futures.protocol.rows import (
    Cancelled,
    Claimed,
    Location,
    Quarantined,
    Realized,
    Result,
    Unclaimed,
)
from tidemill.futures.worker.claim_loop import ClaimLoop, Executor, all_pages
from tidemill.futures.worker.jobs import ClaimRequest, FutureJob
from tidemill.futures.worker.ledger import Ledger
from tidemill.futures.worker.store_session import DEFAULT_PAUSES, StoreSession

ADDRESS = "here"


class ValidLease:
    """The lease of a node that lives as long as the test needs it."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def alive(self) -> bool:
        return True

    def accepts(self) -> bool:
        return True

    def left_s(self) -> float:
        return 60.0


class StartedJobs(Executor):
    """Starts every job at once, and keeps it until the test ends it."""

    def __init__(self, ledger: Ledger, limit: int) -> None:
        self.ledger = ledger
        self.limit = limit  # of one round
        self.running: list[FutureJob] = []

    def request(self) -> ClaimRequest | None:
        return ClaimRequest(self.limit, Capacity(cpu=64.0))

    def start(self, jobs: Sequence[FutureJob]) -> None:
        self.running += jobs

    def interrupt(self, job: FutureJob) -> None:
        self.running.remove(job)
        self.ledger.cancelled(job)

    def drain(self, by: float) -> None:
        pass

    def drop(self) -> None:
        self.running.clear()

    def recover(self, node: Node) -> int:
        return all_pages(lambda: self.ledger.reclaim(node))

    def finish(self, job: FutureJob) -> None:
        self.running.remove(job)
        self.room_changed = True
        result = Result(version=0, at=0, size=1, location=Location(kind="inline"), head=b"value")
        self.ledger.finished(job, result)


class Boot:
    """One start of a worker; all starts have the same address."""

    def __init__(self, stage: Stage, number: int, *, limit: int = 100) -> None:
        node = stage.worker(f"boot-{number}", address=ADDRESS)
        ledger = Ledger(stage.store, "c", node.id, random.Random(number))
        self.tasks = StartedJobs(ledger, limit)
        self.loop = ClaimLoop(ledger, ValidLease(node), self.tasks, stage.clock)

    def claim(self, *, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.loop.on_work()
            self.loop.run_once()

    @property
    def running(self) -> list[bytes]:
        return [job.id for job in self.tasks.running]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def reap_often(stage: Stage, times: int) -> None:
    """Claim everything, and die with it."""
    for number in range(times):
        stage.claim(stage.worker(f"dies-{number}"))
        stage.kill()
        stage.round("reap futures")


@pytest.mark.rule("FUT-53", "FUT-49", "FUT-48")
def test_a_task_that_kills_its_worker_is_quarantined_and_the_tasks_beside_it_finish(stage: Stage) -> None:
    stage.scan = False
    ids = [stage.submit() for _ in range(6)]
    poison = ids[2]
    deaths = 0
    for number in range(30):
        boot = Boot(stage, number)
        while any(isinstance(stage.row(future_id), Unclaimed | Claimed) for future_id in ids):
            boot.loop.run_once()
            if poison in boot.running:
                deaths += 1
                break  # the whole worker dies, and starts again at once
            for job in list(boot.tasks.running):
                boot.tasks.finish(job)
            stage.clock.advance(1.0)
        else:
            break
    stage.check()
    assert deaths == MOST_REAPS
    assert isinstance(stage.row(poison), Quarantined)
    failure = stage.failure(poison)
    assert failure is not None
    assert failure.message == "10 nodes died while they held the claim"
    others = [stage.row(future_id) for future_id in ids if future_id != poison]
    assert all(isinstance(row, Realized) for row in others)


@pytest.mark.rule("FUT-53")
def test_nothing_is_claimed_while_a_suspect_runs(stage: Stage) -> None:
    suspect = stage.submit()
    reap_often(stage, MOST_REAPS // 2)
    boot = Boot(stage, 1)
    boot.claim()
    assert boot.running == [suspect]
    later = stage.submit()
    boot.claim()
    assert boot.running == [suspect]
    assert isinstance(stage.row(later), Unclaimed)
    boot.tasks.finish(boot.tasks.running[0])
    boot.claim(rounds=2)
    assert boot.running == [later]


class TestHeldSuspect:
    """A suspect that waits for another job of its node."""

    @pytest.fixture
    def suspect(self, stage: Stage) -> bytes:
        suspect = stage.submit()
        reap_often(stage, MOST_REAPS // 2)
        return suspect

    @pytest.fixture
    def fresh(self, stage: Stage, suspect: bytes) -> bytes:
        return stage.submit(priority=5)

    @pytest.fixture
    def boot(self, stage: Stage, fresh: bytes, suspect: bytes) -> Boot:
        boot = Boot(stage, 1, limit=1)
        boot.claim(rounds=2)
        assert boot.running == [fresh]
        assert isinstance(stage.row(suspect), Claimed)
        return boot

    @pytest.mark.rule("FUT-53")
    def test_it_starts_when_the_other_job_has_ended(self, boot: Boot, suspect: bytes) -> None:
        boot.tasks.finish(boot.tasks.running[0])
        boot.claim()
        assert boot.running == [suspect]

    @pytest.mark.rule("FUT-41")
    def test_it_starts_when_the_other_job_waits_perhaps_for_it(
        self, boot: Boot, fresh: bytes, suspect: bytes
    ) -> None:
        boot.tasks.running[0].waiting = True
        boot.claim()
        assert boot.running == [fresh, suspect]

    @pytest.mark.rule("FUT-56")
    def test_it_can_be_cancelled(self, stage: Stage, boot: Boot, fresh: bytes, suspect: bytes) -> None:
        stage.here(cancel.cancel, suspect)
        stage.clock.advance(1.0)
        boot.loop.on_mail()
        boot.claim(rounds=2)
        assert isinstance(stage.row(suspect), Cancelled)
        assert boot.running == [fresh]

    @pytest.mark.rule("CLU-25")
    def test_a_node_that_drains_releases_it(self, stage: Stage, boot: Boot, suspect: bytes) -> None:
        boot.loop.drain(stage.clock.monotonic())
        boot.claim()
        row = stage.row(suspect)
        assert isinstance(row, Unclaimed)
        assert row.tally.reaps == MOST_REAPS // 2


def test_a_session_waits_longer_after_each_refusal(stage: Stage) -> None:
    node = stage.worker("w")
    session = StoreSession(Ledger(stage.store, "c", node.id, random.Random(1)), stage.clock)

    def refuse() -> None:
        raise LeaseLost("over")

    pauses = []
    for _ in range(12):
        session.run(node, refuse, lambda listed: None)
        pauses.append(session.retry_at - stage.clock.monotonic())
        stage.clock.advance(pauses[-1])
    assert pauses[0] <= DEFAULT_PAUSES.retry_s
    assert pauses[-1] >= DEFAULT_PAUSES.most_retry_s / 2
