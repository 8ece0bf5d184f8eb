"""What follows a failed attempt: each kind of failure has its own count and its own end."""

import pytest

from tests.unit.futures_stage import Stage
from tidemill.errors import FutureUnknown, UsageError
from tidemill.futures.protocol import edges, requeue, retries, rows
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Failed, Failure, Needs, Quarantined, Realized, Unclaimed
from tidemill.store import LIMITS

GIB = 2**30


@pytest.fixture
def stage() -> Stage:
    return Stage()


def until_ripe(stage: Stage, *workers: object) -> None:
    stage.clock.advance(2)


@pytest.mark.rule("FUT-4", "FUT-50")
def test_with_retries_left_it_goes_back_to_the_pool_after_a_pause(stage: Stage) -> None:
    worker, other = stage.worker("w"), stage.worker("other")
    future = stage.submit(max_retries=1)
    row = stage.fail(worker, stage.claim_one(worker))
    assert isinstance(row, Unclaimed)
    assert row.tally.exceptions == 1
    assert stage.ready_ids() == [future]
    assert stage.claim(other) == []
    stage.clock.advance(1)
    assert [claimed.id for claimed in stage.claim(other)] == [future]  # another worker may take it


@pytest.mark.rule("FUT-50")
def test_the_pause_doubles_up_to_a_minute_and_half_of_it_is_chance() -> None:
    longest = [retries.pause_us(count, 1.0) for count in range(1, 12)]
    shortest = [retries.pause_us(count, 0.0) for count in range(1, 12)]
    assert longest[:4] == [500_000, 1_000_000, 2_000_000, 4_000_000]
    assert longest[-1] == 60_000_000
    assert [2 * pause for pause in shortest] == longest


@pytest.mark.rule("FUT-5", "FUT-8")
@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_it_fails_with_exactly_one_attempt_more_than_retries(stage: Stage, max_retries: int) -> None:
    worker = stage.worker("w")
    future = stage.submit(max_retries=max_retries)
    for attempt in range(1, max_retries + 2):
        row = stage.fail(worker, stage.claim_one(worker))
        assert (
            isinstance(row, Failed)
            == (row.tally.exceptions >= max_retries + 1)
            == (attempt == max_retries + 1)
        )
        stage.clock.advance(10)
        worker = stage.beat(worker)
    assert isinstance(stage.row(future), Failed)
    assert stage.claim(worker) == []


@pytest.mark.rule("FUT-4", "FUT-42")
def test_what_is_bound_to_its_node_goes_back_there(stage: Stage) -> None:
    worker, other = stage.worker("w"), stage.worker("other")
    data = stage.submit()
    stage.make(worker, data, kind="segment")
    stage.submit(data, near=data, hard=True, max_retries=2)
    row = stage.fail(worker, stage.claim_one(worker))
    assert isinstance(row, Unclaimed)
    assert (row.assigned, row.hard) == ("w", True)
    row = stage.fail(worker, _next(stage, worker), "oom", ram_used=GIB)
    assert isinstance(row, Unclaimed)
    assert row.assigned == "w"
    assert other.id != "w"


def _next(stage: Stage, worker: object) -> object:
    stage.clock.advance(1)
    return stage.claim_one(worker)  # type: ignore[arg-type]


@pytest.mark.rule("FUT-19")
def test_the_latest_exception_is_kept_after_a_later_success(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit(max_retries=2)
    stage.fail(worker, stage.claim_one(worker), message="first")
    stage.clock.advance(1)
    stage.fail(worker, stage.claim_one(worker), message="second")
    stage.clock.advance(2)
    stage.make(worker, future)
    assert isinstance(stage.row(future), Realized)
    failure = stage.failure(future)
    assert failure is not None
    assert (failure.message, failure.type, failure.node) == ("second", "ValueError", "w")


@pytest.mark.rule("FUT-20")
def test_exceptions_crashes_and_out_of_memory_are_counted_apart(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit(max_retries=5)
    for kind in ("exception", "crash", "oom", "hang", "exception"):
        stage.clock.advance(4)
        worker = stage.beat(worker)
        stage.fail(worker, stage.claim_one(worker), kind)
    tally = stage.row(future).tally
    assert (tally.exceptions, tally.crashes, tally.ooms, tally.strange) == (2, 2, 1, 0)


@pytest.mark.rule("FUT-53")
def test_the_third_crash_is_quarantine_with_the_evidence_and_a_command_sends_it_back(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit(max_retries=100)
    for crash in range(1, 4):
        stage.clock.advance(4)
        worker = stage.beat(worker)
        row = stage.fail(worker, stage.claim_one(worker), "crash", message=f"signal 11, time {crash}")
        assert isinstance(row, Quarantined) == (crash == 3)
    assert stage.claim(worker) == []
    failure = stage.failure(future)
    assert failure is not None
    assert failure.message == "signal 11, time 3"
    row = stage.here(requeue.requeue, future)
    assert isinstance(row, Unclaimed)
    assert row.tally.crashes == 0
    stage.make(worker, future)


@pytest.mark.rule("FUT-53")
def test_only_failed_and_quarantined_futures_can_be_requeued(stage: Stage) -> None:
    future = stage.submit()
    with pytest.raises(UsageError):
        stage.here(requeue.requeue, future)
    with pytest.raises(FutureUnknown):
        stage.here(requeue.requeue, b"\x01" * 16)


class TestOutOfMemory:
    """FUT-52."""

    @pytest.mark.rule("FUT-52")
    def test_it_is_tried_again_on_another_node_with_double_the_ram(self, stage: Stage) -> None:
        small = stage.worker("small", Capacity(cpu=4.0, ram=4 * GIB))
        stage.worker("large", Capacity(cpu=4.0, ram=16 * GIB))
        stage.submit(needs=Needs(ram=3 * GIB))
        row = stage.fail(small, stage.claim_one(small), "oom")
        assert isinstance(row, Unclaimed)
        assert (row.tally.ram, row.assigned, row.hard) == (6 * GIB, "large", False)
        assert row.tally.exceptions == 0

    @pytest.mark.rule("FUT-52")
    def test_the_ram_it_asks_for_is_never_more_than_the_largest_live_node_has(self, stage: Stage) -> None:
        worker = stage.worker("one", Capacity(cpu=4.0, ram=8 * GIB))
        stage.worker("two", Capacity(cpu=4.0, ram=10 * GIB))
        future = stage.submit(needs=Needs(ram=6 * GIB))
        row = stage.fail(worker, stage.claim_one(worker), "oom")
        assert row.tally.ram == 10 * GIB
        assert stage.spec_of(future).needs.ram == 6 * GIB

    @pytest.mark.rule("FUT-52")
    def test_a_task_that_asked_for_no_ram_asks_for_twice_what_it_had(self, stage: Stage) -> None:
        worker = stage.worker("w")
        stage.submit()
        row = stage.fail(worker, stage.claim_one(worker), "oom", ram_used=3 * GIB)
        assert isinstance(row, Unclaimed)
        assert (row.tally.ram, row.assigned) == (6 * GIB, "")  # nobody else is there: the pool

    @pytest.mark.rule("FUT-52")
    def test_a_task_that_asked_for_ram_asks_for_twice_that_whatever_its_process_had(
        self, stage: Stage
    ) -> None:
        worker = stage.worker("w")
        stage.submit(needs=Needs(ram=GIB))
        row = stage.fail(worker, stage.claim_one(worker), "oom", ram_used=3 * GIB)
        assert row.tally.ram == 2 * GIB

    @pytest.mark.rule("FUT-52", "FUT-20")
    def test_the_third_time_it_fails_as_out_of_memory(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(max_retries=10, needs=Needs(ram=GIB))
        for time in range(1, 4):
            row = stage.fail(worker, stage.claim_one(worker, future), "oom")
            assert isinstance(row, Failed) == (time == 3)
        assert isinstance(row, Failed)
        assert row.kind == "oom"


@pytest.mark.rule("FUT-22")
def test_code_that_cannot_be_loaded_is_tried_once_on_another_node_and_then_fails(stage: Stage) -> None:
    first, second = stage.worker("one"), stage.worker("two")
    stage.submit(max_retries=50)
    row = stage.fail(first, stage.claim_one(first), "deserialize")
    assert isinstance(row, Unclaimed)
    assert row.assigned == "two"
    row = stage.fail(second, stage.claim_one(second), "deserialize")
    assert isinstance(row, Failed)
    assert row.kind == "deserialize"


@pytest.mark.rule("FUT-22")
def test_code_that_cannot_be_loaded_never_loops_where_there_is_one_node(stage: Stage) -> None:
    worker = stage.worker("w")
    future = stage.submit(max_retries=50)
    stage.fail(worker, stage.claim_one(worker), "deserialize")
    stage.fail(worker, stage.claim_one(worker), "deserialize")
    assert isinstance(stage.row(future), Failed)


@pytest.mark.parametrize("letter", ["x", "ü", "漢"])
def test_a_failure_always_fits_a_value(letter: str) -> None:
    huge = Failure(
        kind="exception",
        type=letter * 5_000,
        message=letter * 50_000,
        traceback=letter * 200_000,
        pickled=bytes(30_000),
        upstream=(letter * 5_000,) * 60,
    )
    for failure in (
        huge,
        Failure(kind="x", pickled=bytes(19_000), traceback=letter * 60_000, message=letter * 9_000),
    ):
        clipped = edges.clipped(failure)
        assert len(rows.encode(clipped)) < LIMITS.value_bytes
        assert clipped.traceback.startswith(letter * 10)
        assert clipped.traceback.endswith(letter * 10)
    short = Failure(kind="x", message="short", traceback="too", pickled=b"exception")
    assert edges.clipped(short) == short


def test_requeueing_behind_a_failed_input_says_so(stage: Stage) -> None:
    worker = stage.worker("w")
    first = stage.submit()
    second = stage.submit(first)
    stage.fail(worker, stage.claim_one(worker))
    with pytest.raises(UsageError, match="input"):
        stage.here(requeue.requeue, second)
    stage.here(requeue.requeue, first)
    assert not isinstance(stage.row(second), Failed)  # it follows by itself
    stage.make(worker, first)
    stage.make(worker, second)
