"""Pushed rows: a request is answered when it is durable, and each number is taken once."""

import threading
from concurrent.futures import Future

import pytest

from tests.unit.push_stage import SOURCE, PushStage, table
from tidemill import crash
from tidemill.cluster.keeper import HeldLease
from tidemill.errors import (
    AppendRefused,
    BadSource,
    ProducerConflict,
    PushBusy,
    PushRefused,
    SourceUnavailable,
    ValueTooLarge,
)
from tidemill.lots.datasets import Drift, Kind
from tidemill.lots.ids import Unit
from tidemill.lots.producers import Identity, Receipt
from tidemill.publish import attempts
from tidemill.sources.events import BatchReceived
from tidemill.sources.push_receiver import ReceiverLimits, _Request
from tidemill.testing.threads import STUCK_S


@pytest.fixture
def stage() -> PushStage:
    return PushStage()


def test_requests_that_wait_together_become_one_lot(stage: PushStage) -> None:
    receiver = stage.receiver(start=False)
    answers = [receiver.submit(table(number)) for number in range(5)]
    receiver.start()
    receipts = {answer.result(STUCK_S).lot for answer in answers}
    assert len(receipts) == 1
    assert stage.ids() == list(range(5))
    (batch,) = [event for event in stage.told if isinstance(event, BatchReceived)]
    assert (batch.requests, batch.rows) == (5, 5)
    receiver.close()
    stage.stage.check()


def test_a_request_that_was_answered_takes_no_place_in_the_queue(stage: PushStage) -> None:
    receiver = stage.receiver(start=False, waiting_bytes=10)
    sent: Future[Receipt] = Future()

    def send_again(_: Future[Receipt]) -> None:
        try:
            receiver.submit(table(2)).add_done_callback(lambda answer: sent.set_result(answer.result()))
        except PushBusy as busy:
            sent.set_exception(busy)

    receiver.submit(table(1)).add_done_callback(send_again)
    receiver.start()
    sent.result(STUCK_S)
    receiver.close()
    assert stage.ids() == [1, 2]


@pytest.mark.rule("LOT-36")
def test_a_repeated_numbered_request_gets_the_first_answer(stage: PushStage) -> None:
    receiver = stage.receiver(start=False)
    identity = Identity("till", 7, "d1")
    twice = [receiver.submit(table(1), identity), receiver.submit(table(1), identity)]
    other = receiver.submit(table(9), Identity("till", 7, "d2"))
    receiver.start()
    first, again = (answer.result(STUCK_S) for answer in twice)
    assert first == again
    with pytest.raises(ProducerConflict):
        other.result(STUCK_S)
    assert receiver.submit(table(1), identity).result(STUCK_S) == first
    with pytest.raises(ProducerConflict):
        receiver.submit(table(2), Identity("till", 7, "d2")).result(STUCK_S)
    with pytest.raises(ProducerConflict):
        receiver.submit(table(2), Identity("till", 3, "d3")).result(STUCK_S)
    assert stage.ids() == [1]
    receiver.close()


def test_numbers_that_arrive_out_of_order_in_one_batch_are_taken_in_order(stage: PushStage) -> None:
    receiver = stage.receiver(start=False)
    answers = [receiver.submit(table(seq), Identity("till", seq, "d")) for seq in (3, 1, 2)]
    receiver.start()
    assert len({answer.result(STUCK_S).lot for answer in answers}) == 1
    assert stage.ids() == [1, 2, 3]
    receiver.close()


@pytest.mark.rule("LOT-35")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "step", ["sources.receive", "publish.intent", "publish.part-manifest", "publish.commit"]
)
def test_an_unanswered_request_is_sent_again_and_taken_once(stage: PushStage, step: str, when: str) -> None:
    identity = Identity("till", 1, "d")
    with crash.armed(f"{step}.{when}"), pytest.raises(SourceUnavailable):
        stage.receiver().submit(table(1, 2), identity).result(STUCK_S)
    receiver = stage.receiver()
    receipt = receiver.submit(table(1, 2), identity).result(STUCK_S)
    assert isinstance(receipt, Receipt)
    assert stage.ids() == [1, 2]
    receiver.close()
    stage.stage.check()


@pytest.mark.rule("CLU-19")
def test_a_receiver_without_its_lease_publishes_nothing_and_refuses(stage: PushStage) -> None:
    keeper = stage.keeper("old", ttl_s=15)
    lease = keeper.acquire(stage.keys.push_lease(SOURCE))
    assert isinstance(lease, HeldLease)
    receiver = stage.receiver(lease)
    assert receiver.submit(table(1)).result(STUCK_S).position == 1
    stage.stage.clock.advance(16)
    with pytest.raises(SourceUnavailable):
        receiver.submit(table(2)).result(STUCK_S)
    receiver._thread.join(STUCK_S)
    with pytest.raises(SourceUnavailable):
        receiver.submit(table(3))
    assert stage.ids() == [1]


def test_requests_beyond_the_queue_limit_are_refused(stage: PushStage) -> None:
    receiver = stage.receiver(start=False, waiting_bytes=100)
    large = receiver.submit(table(*range(50)))  # larger than what may wait, but nothing does
    with pytest.raises(PushBusy) as busy:
        receiver.submit(table(1))
    assert busy.value.hint
    receiver.start()
    large.result(STUCK_S)
    receiver.submit(table(100)).result(STUCK_S)
    receiver.close()
    assert len(stage.ids()) == 51


def test_batches_are_bounded(stage: PushStage) -> None:
    receiver = stage.receiver(start=False, batch_requests=2)
    answers = [receiver.submit(table(number)) for number in range(5)]
    receiver.start()
    assert len({answer.result(STUCK_S).lot for answer in answers}) == 3
    receiver.close()
    by_bytes = stage.receiver(start=False, batch_bytes=1)
    answers = [by_bytes.submit(table(10 + number)) for number in range(3)]
    by_bytes.start()
    assert len({answer.result(STUCK_S).lot for answer in answers}) == 3
    by_bytes.close()
    with pytest.raises(BadSource):
        ReceiverLimits(batch_requests=301)


@pytest.mark.rule("LOT-43")
def test_a_batch_that_exceeds_a_limit_of_the_store_is_split_in_order(stage: PushStage) -> None:
    receiver = stage.receiver(start=False)
    names = [f"{number:04}" + "p" * 1800 for number in range(140)]
    answers = [
        receiver.submit(table(10 * number + seq), Identity(name, seq, "d"))
        for seq in (2, 1)
        for number, name in enumerate(names)
    ]
    receiver.start()
    lots = {answer.result(STUCK_S).lot for answer in answers}
    assert len(lots) == 2
    assert len(stage.ids()) == 280
    receiver.close()
    assert stage.store.run(lambda tx: attempts.open_ids(tx, stage.keys.publish)) == []


@pytest.mark.rule("LOT-43")
def test_a_request_that_exceeds_a_limit_alone_is_refused_and_the_others_are_stored(stage: PushStage) -> None:
    receiver = stage.receiver(start=False)
    with pytest.raises(PushRefused, match="the producer's name is too long"):
        receiver.submit(table(0), Identity("p" * 3000, 1, "d"))
    answers = [receiver.submit(table(number)) for number in range(1, 6)]

    def refuse_three(batch: list[_Request]) -> None:
        if any(request.table.column("id")[0].as_py() == 3 for request in batch):
            raise ValueTooLarge("the value has 70,000 bytes")
        publish(batch)

    publish = receiver._publish_batch
    receiver._publish_batch = refuse_three  # type: ignore[assignment, method-assign]
    receiver.start()
    with pytest.raises(PushRefused, match="the request is too large: the value has 70,000 bytes"):
        answers[2].result(STUCK_S)
    for answer in (*answers[:2], *answers[3:]):
        answer.result(STUCK_S)
    assert stage.ids() == [1, 2, 4, 5]
    assert not receiver.closed
    receiver.close()


@pytest.mark.rule("LOT-34")
def test_a_request_with_too_many_new_columns_is_refused_alone() -> None:
    stage = PushStage(schema="id bigint, name string", drift=Drift.EVOLVE)
    receiver = stage.receiver(start=False)
    wide = {f"column_{number:06}": 1 for number in range(4000)}
    bodies = [[{"id": 1, "n": 1}], [{"id": 2, **wide}], [{"id": 3, "m": 1}]]
    answers = [receiver.submit(table(number), rows=rows) for number, rows in enumerate(bodies, 1)]
    receiver.start()
    with pytest.raises(AppendRefused, match="the 4,000 new columns in row"):
        answers[1].result(STUCK_S)
    assert answers[0].result(STUCK_S) == answers[2].result(STUCK_S)
    assert [row["id"] for row in stage.rows()] == [1, 3]
    receiver.close()


def test_closing_publishes_the_waiting_requests(stage: PushStage) -> None:
    receiver = stage.receiver(start=False)
    answers = [receiver.submit(table(number)) for number in range(3)]
    receiver.start()
    receiver.close()
    assert all(answer.done() for answer in answers)
    assert stage.ids() == [0, 1, 2]


def test_one_request_sent_to_two_nodes_is_taken_once(stage: PushStage) -> None:
    """Both nodes read before either publishes: the transaction of the second one detects this."""
    receivers = [stage.receiver(), stage.receiver()]
    both = threading.Barrier(2)
    for receiver in receivers:
        firsts = iter([True])

        def together(genuine=receiver._begin, firsts=firsts):  # type: ignore[no-untyped-def]
            if next(firsts, False):
                both.wait(STUCK_S)
            return genuine()

        receiver._begin = together  # type: ignore[method-assign]
    identity = Identity("till", 1, "d")
    answers: list[Future[Receipt]] = [receiver.submit(table(1), identity) for receiver in receivers]
    first, second = (answer.result(STUCK_S) for answer in answers)
    assert first == second
    assert stage.ids() == [1]
    for receiver in receivers:
        receiver.close()
    assert stage.store.run(lambda tx: attempts.open_ids(tx, stage.keys.publish)) == []


def test_rows_of_a_keyed_dataset_are_upserts_and_need_the_key(stage: PushStage) -> None:
    keyed = PushStage(kind=Kind.KEYED, key=("id",), deletes=True)
    receiver = keyed.receiver(start=False)
    answers = [receiver.submit(table(1, 2)), receiver.submit(table(1))]
    receiver.start()
    for answer in answers:
        answer.result(STUCK_S)
    assert [(row["id"], row["_op"], row["_ordinal"]) for row in keyed.rows()] == [
        (1, "upsert", 0),
        (2, "upsert", 1),
        (1, "upsert", 2),
    ]
    with pytest.raises(PushRefused):
        receiver.submit(table(1).set_column(0, "id", [[None]]).cast(table(1).schema))
    receiver.close()


def test_a_dataset_with_intervals_is_refused() -> None:
    with pytest.raises(BadSource):
        PushStage(unit=Unit.parse("PT5M")).receiver()
