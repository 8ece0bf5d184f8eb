"""Mistakes that designs like this one have made, each as the test that fails where it is made again."""

import pytest

from tests.unit.futures_stage import Stage
from tidemill.errors import LeaseLost
from tidemill.futures.protocol import actors, finish, requeue
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Failed, Failure, Needs, Quarantined, Realized, Unclaimed
from tidemill.store import Tx


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.rule("FUT-8", "FUT-20")
def test_a_claim_does_not_set_the_count_of_attempts_back(stage: Stage) -> None:
    """A claim that began with no attempts made every failure the first one: a loop that never failed."""
    worker = stage.worker("w")
    future = stage.submit(max_retries=2)
    counts = []
    for _ in range(3):
        claimed = stage.claim_one(worker)
        counts.append(claimed.row.tally.exceptions)
        stage.fail(worker, claimed)
        stage.clock.advance(3)
        worker = stage.beat(worker)
    assert counts == [0, 1, 2]
    assert isinstance(stage.row(future), Failed)


@pytest.mark.rule("FUT-8", "FUT-15")
@pytest.mark.parametrize("kind", ["deserialize", "oom", "actor", "lost"])
def test_what_failed_for_good_with_retries_left_reads_as_failed(stage: Stage, kind: str) -> None:
    """A state that is inferred from counts read a final failure as unclaimed, and in no index: lost."""
    worker = stage.worker("w")
    future = stage.submit(max_retries=50)
    for _ in range(3):
        if isinstance(stage.row(future), Failed):
            break
        stage.fail(worker, stage.claim_one(worker), kind)
    row = stage.row(future)
    assert isinstance(row, Failed)
    assert row.kind == kind
    assert row.tally.exceptions < 50
    assert stage.claim(worker) == []
    assert isinstance(stage.here(requeue.requeue, future), Unclaimed)
    assert stage.ready_ids() == [future]


@pytest.mark.rule("FUT-19", "FUT-50")
def test_a_past_exception_is_no_failure_while_there_are_attempts_left(stage: Stage) -> None:
    """Whoever awaited was told of a failure as soon as one exception was on record, final or not."""
    worker = stage.worker("w")
    future = stage.submit(max_retries=1)
    behind = stage.submit(future)
    stage.fail(worker, stage.claim_one(worker, future))
    assert stage.failure(future) is not None
    assert isinstance(stage.row(future), Unclaimed)
    assert not isinstance(stage.row(behind), Failed)
    stage.clock.advance(1)
    stage.make(worker, future)
    assert stage.failure(future) is not None
    assert isinstance(stage.row(future), Realized)
    assert isinstance(stage.row(behind), Unclaimed)


@pytest.mark.rule("FUT-26", "FUT-23")
def test_what_fails_one_resource_does_not_pass_on_the_others(stage: Stage) -> None:
    """An intersection of scans took an empty first scan for one that had not begun."""
    worker = stage.worker("w")
    future = stage.submit(needs=Needs(cpu=8.0, ram=1, gpu=0.0))
    assert stage.claim(worker, 10, Capacity(cpu=1.0, ram=2**40, gpu=8.0)) == []
    assert stage.ready_ids() == [future]


@pytest.mark.rule("FUT-49")
def test_recovery_from_a_dead_worker_runs_to_its_end(stage: Stage) -> None:
    """The one path that nobody had run raised an error of its own: the dead worker's work stayed claimed."""
    dead, alive = stage.worker("dead"), stage.worker("alive")
    future = stage.submit()
    stage.claim(dead)
    stage.kill(dead, alive=[alive])
    assert isinstance(stage.reap_one(future), Unclaimed)
    stage.make(alive, future)
    again = stage.submit()
    other = stage.worker("other")
    stage.claim_one(other, again)
    stage.kill(other, alive=[alive])
    stage.round("reap futures")
    stage.make(alive, again)


@pytest.mark.rule("FUT-47", "FUT-46")
def test_where_reconstruction_is_not_allowed_the_loss_is_a_typed_failure(stage: Stage) -> None:
    """The branch without reconstruction named an unbound variable, and actors' calls never reached it."""
    worker = stage.worker("w")
    actor = stage.here(actors.create, stage.spec())
    stage.make(worker, actor, kind="actor")
    (call,) = stage.here(actors.call, actor, [stage.spec()])
    assert not stage.spec_of(call).reconstruct
    stage.make(worker, call, kind="segment")
    behind = stage.submit(call)
    lost = stage.lose(call)
    assert isinstance(lost, Failed)
    assert lost.kind == "lost"
    failure = stage.failure(behind)
    assert failure is not None
    assert failure.kind == "upstream"
    assert failure.type == "ResultLost"
    assert call.hex() in failure.upstream[0]


@pytest.mark.rule("FUT-13")
def test_a_second_claim_within_the_same_second_is_told_from_the_first(stage: Stage) -> None:
    """A claim known by its worker and a whole second: its own earlier attempt passed as the later."""
    worker = stage.worker("w")
    future = stage.submit(max_retries=3)
    first = stage.claim_one(worker)
    stage.there(finish.relinquish, worker, [first])
    second = stage.claim_one(worker)
    assert second.row.claimed_at == first.row.claimed_at
    assert second.epoch > first.epoch
    with pytest.raises(LeaseLost):
        stage.fail(worker, first)
    assert stage.realize_fast(worker, first) == [False]
    assert stage.realize_fast(worker, second) == [True]
    assert isinstance(stage.row(future), Realized)


@pytest.mark.rule("FUT-53")
def test_a_future_that_kills_its_workers_is_taken_out_of_circulation(stage: Stage) -> None:
    """Giving back counted as nothing, so that a poisonous task killed one worker after the other for ever."""
    future = stage.submit(max_retries=10**6)
    deaths = 0
    while isinstance(stage.row(future), Unclaimed):
        worker = stage.worker(f"w{deaths}")
        stage.claim_one(worker)
        stage.kill(worker)
        stage.round("reap futures")
        deaths += 1
        assert deaths <= 10
    assert isinstance(stage.row(future), Quarantined)


@pytest.mark.rule("FUT-26")
def test_a_claim_reads_what_it_takes_and_not_all_there_is(stage: Stage) -> None:
    """Every claim scanned all unclaimed futures three times over, and picked one by chance."""
    stage.scan = False
    worker = stage.worker("w")
    order = []
    for _ in range(500):
        stage.clock.advance(0.001)
        order.append(stage.submit())
    read: list[int] = []
    lanes = stage.lanes()

    def claim(tx: Tx) -> list[bytes]:
        from tidemill.futures.protocol import claim as claims

        plain = tx.range

        def counted(*args: object, **named: object) -> object:
            listed = plain(*args, **named)  # type: ignore[arg-type]
            read.append(len(listed))
            return listed

        tx.range = counted  # type: ignore[method-assign,assignment]
        claimed = claims.claim(tx, stage.keys, stage.cluster, worker, lanes, Capacity(), 5)
        return [item.id for item in claimed]

    assert stage.run(claim, mode="take") == order[:5]
    assert sum(read) <= 20


def test_a_failure_is_a_record_and_never_only_a_pickle() -> None:
    """What happened can be read where nothing of the task can be loaded."""
    fields = Failure(kind="exception", type="ValueError", message="no", traceback="line 1")
    assert (fields.kind, fields.type, fields.message, fields.traceback) == (
        "exception",
        "ValueError",
        "no",
        "line 1",
    )
