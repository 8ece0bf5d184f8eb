"""A repeated append is published once."""

import msgspec
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


# --- folded receipts


def count_receipts(stage: Stage, producer: str = "till") -> int:
    return len(stage.run(lambda tx: tx.range(*stage.lots.receipt.under(*ORDERS.parts, producer))))


def most_receipts() -> int:
    return producers.KEPT_RECEIPTS + producers.FOLDED_AT_ONCE


@pytest.mark.rule("LOT-36")
def test_old_receipts_become_one_row_and_their_numbers_stay_known():
    stage = Stage(scan=False)
    receipts = {}
    for seq in range(1_000):
        receipts[seq] = append(stage, "till", seq, f"d{seq}", seq + 1)
        assert count_receipts(stage) <= most_receipts()
        assert stage.writes <= 3, "folding a page is one write"
    kept = count_receipts(stage)
    assert kept >= producers.KEPT_RECEIPTS
    for seq, receipt in receipts.items():
        again = append(stage, "till", seq, f"d{seq}", 5_000)
        assert stage.writes == 0, "a repeated append is not recorded again"
        if seq >= 1_000 - kept:
            assert again == receipt
        else:
            assert (again.folded, again.lot, again.position) == (True, "", None)
    with pytest.raises(ProducerConflict, match="after number 999"):
        append(stage, "till", -1, "x")


@pytest.mark.rule("LOT-36")
def test_a_skipped_number_is_refused_even_if_its_neighbours_are_folded():
    stage = Stage(scan=False)
    for seq in [*range(100), *range(101, 600)]:
        append(stage, "till", seq, "d")
    assert append(stage, "till", 99, "d").folded
    assert append(stage, "till", 101, "d").folded
    with pytest.raises(ProducerConflict):
        append(stage, "till", 100, "d")


def test_a_producer_that_skips_numbers_keeps_the_newest_ranges():
    stage = Stage(scan=False)
    numbers = range(0, 1_000, 2)
    for seq in numbers:
        append(stage, "till", seq, "d")
    folded = [seq for seq in numbers if seq < max(numbers) - 2 * (count_receipts(stage) - 1)]
    for seq in folded[-producers.MOST_RANGES :]:
        assert append(stage, "till", seq, "d").folded
    for seq in folded[: -producers.MOST_RANGES]:
        with pytest.raises(ProducerConflict, match="too old"):
            append(stage, "till", seq, "d")


def test_the_receipts_of_an_earlier_release_are_folded_a_page_per_append():
    stage = Stage(scan=False)

    def store(tx, seq):
        receipt = Receipt(dataset=ORDERS, lot="A", position=seq, visible_at=7)
        value = msgspec.msgpack.encode(producers._StoredReceipt("d", receipt))
        tx.set(stage.lots.receipt[(*ORDERS.parts, "till", seq)], value)
        tx.set(stage.lots.producer[(*ORDERS.parts, "till")], msgspec.msgpack.encode(seq))

    for seq in range(500):
        stage.run(store, seq)
    seq = 500
    while count_receipts(stage) > most_receipts():
        append(stage, "till", seq, "d")
        seq += 1
    assert seq < 520
    assert append(stage, "till", 0, "d").folded
    assert append(stage, "till", 250, "d").folded
    assert append(stage, "till", seq, "d").position == 1


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from("xy")), max_size=60))
def test_a_folded_number_is_never_appended_again(history):
    stage = Stage(scan=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("KEPT_RECEIPTS", 3), ("FOLDED_AT_ONCE", 2), ("MOST_RANGES", 2)):
            patch.setattr(producers, name, value)
        used: dict[int, str] = {}
        for position, (seq, digest) in enumerate(history, 1):
            try:
                receipt = append(stage, "p", seq, digest, position)
            except ProducerConflict:
                assert used
                assert seq < max(used) or used.get(seq) not in (None, digest)
                continue
            if receipt.folded:
                assert seq in used
            elif seq in used:
                assert used[seq] == digest
                assert receipt.position < position
            else:
                assert all(seq > other for other in used)
                used[seq] = digest
            assert count_receipts(stage, "p") <= 5
