"""A repeated append is published once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.lots_stage import Stage
from tidemill.errors import ProducerConflict
from tidemill.lots import producers
from tidemill.lots.keys import DatasetId
from tidemill.lots.producers import Identity, Receipt

ORDERS = DatasetId("orders")


def append(stage: Stage, producer: str, seq: int, digest: str, position: int = 1) -> Receipt:
    """What a door does: find the receipt of the first time, or record this one."""

    def both(tx):
        earlier = producers.find(tx, stage.lots, ORDERS, Identity(producer, seq, digest))
        if earlier is not None:
            return earlier
        receipt = Receipt(dataset=ORDERS, lot=f"A{position:017}", position=position, visible_at=7)
        producers.record(tx, stage.lots, Identity(producer, seq, digest), receipt)
        return receipt

    return stage.run(both)


def test_the_same_number_with_the_same_digest_gets_the_same_receipt():
    stage = Stage()
    first = append(stage, "till", 1, "a", 1)
    append(stage, "till", 5, "b", 2)  # numbers may be skipped
    assert append(stage, "till", 1, "a", 99) == first
    assert stage.writes == 0
    assert stage.run(producers.last_seq, stage.lots, ORDERS, "till") == 5


@pytest.mark.parametrize(("seq", "digest"), [(5, "other"), (3, "c"), (-1, "c")])
def test_a_number_with_other_rows_and_a_skipped_one_are_refused(seq, digest):
    stage = Stage()
    append(stage, "till", 1, "a")
    append(stage, "till", 5, "b")
    with pytest.raises(ProducerConflict):
        append(stage, "till", seq, digest)
    append(stage, "other till", seq, digest)  # every producer counts for itself


def test_of_two_that_race_for_a_number_the_second_is_refused():
    stage = Stage()
    receipt = append(stage, "till", 1, "a")
    with pytest.raises(ProducerConflict, match="twice at the same time"):
        stage.run(producers.record, stage.lots, Identity("till", 1, "a"), receipt)


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from("xy")), max_size=25))
def test_every_history_of_appends_follows_the_rule(history):
    stage = Stage(scan=False)
    receipts: dict[int, tuple[str, Receipt]] = {}
    for position, (seq, digest) in enumerate(history, 1):
        earlier = receipts.get(seq)
        if earlier and earlier[0] == digest:
            assert append(stage, "p", seq, digest, position) == earlier[1]
        elif earlier or any(seq < other for other in receipts):
            with pytest.raises(ProducerConflict):
                append(stage, "p", seq, digest, position)
        else:
            receipts[seq] = (digest, append(stage, "p", seq, digest, position))
            assert receipts[seq][1].position == position
