"""Submitting: unclaimed or blocked, once per key, failed at once behind what failed."""

import pytest

from tests.unit.futures_stage import BIG, Stage
from tidemill.errors import FutureUnknown, UsageError
from tidemill.futures.protocol import cancel, submit
from tidemill.futures.protocol.keys import FutureKeys, new_id
from tidemill.futures.protocol.lanes import Capacity
from tidemill.futures.protocol.rows import Blob, Blocked, Failed, Location, Needs, Realized, Result, Unclaimed
from tidemill.store import LIMITS, unpack


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.rule("FUT-1")
def test_a_future_without_missing_inputs_is_unclaimed(stage: Stage) -> None:
    worker = stage.worker("w")
    first = stage.submit()
    assert isinstance(stage.row(first), Unclaimed)
    stage.make(worker, first)
    assert isinstance(stage.row(stage.submit(first)), Unclaimed)


@pytest.mark.rule("FUT-1")
def test_a_future_waits_for_each_input_once(stage: Stage) -> None:
    worker = stage.worker("w")
    there, first, second = stage.submit(), stage.submit(), stage.submit()
    stage.make(worker, there)
    waiting = stage.submit(first, second, there, first, second)
    assert stage.row(waiting) == Blocked(waits_on=2)


@pytest.mark.rule("FUT-11")
def test_every_key_lies_under_the_name_of_the_cluster(stage: Stage) -> None:
    other = FutureKeys("another")
    worker = stage.worker("w")
    first = stage.submit(queue="q", deadline_at=10**15, key="once", owner="client")
    stage.submit(first)
    stage.make(worker, first, kind="segment")
    stored = stage.store.run(lambda tx: tx.range(b"\x00", b"\xfe", snapshot=True))
    assert stored
    assert {unpack(row.key)[0] for row in stored} == {"c"}
    stage.store.run(lambda tx: submit.submit(tx, other, [stage.spec()]))
    assert stage.lanes() == [*stage.lanes()]
    assert len(stage.all_rows()) == len(stored)


@pytest.mark.rule("FUT-56")
def test_the_same_key_is_the_same_future(stage: Stage) -> None:
    first = stage.submit(key="daily/2026-01-01")
    again = stage.spec(key="daily/2026-01-01")
    other = stage.spec(key="daily/2026-01-02")
    assert stage.here(submit.submit, [again, other]) == [first, other.id]
    assert stage.here(submit.submit, [stage.spec(key="x"), stage.spec(key="x")])[0] != first
    assert stage.store.run(lambda tx: tx.get(stage.keys.spec[again.id])) is None


@pytest.mark.rule("FUT-46")
def test_what_hangs_on_a_failed_future_fails_at_once_with_the_chain_of_causes(stage: Stage) -> None:
    worker = stage.worker("w")
    first = stage.submit(name="load")
    stage.fail(worker, stage.claim_one(worker), message="no such file")
    second = stage.submit(first, name="clean")
    third = stage.submit(second, name="report")
    assert isinstance(stage.row(third), Failed)
    failure = stage.failure(third)
    assert failure is not None
    assert failure.kind == "upstream"
    assert (failure.type, failure.message) == ("ValueError", "no such file")
    assert [name.split(" (")[0] for name in failure.upstream] == ["clean", "load"]


def test_an_input_that_does_not_exist_is_refused_and_nothing_is_entered(stage: Stage) -> None:
    before = stage.all_rows()
    with pytest.raises(FutureUnknown):
        stage.submit(b"\x00" * 16)
    assert stage.all_rows() == before


@pytest.mark.rule("FUT-19")
def test_a_future_keeps_what_was_submitted(stage: Stage) -> None:
    inputs = (stage.submit(), stage.submit())
    spec = stage.spec(
        inputs=inputs,
        args=Blob(b"pickled"),
        max_retries=4,
        needs=Needs(2.0, 2**30, 1.0, ("spark",)),
        python="3.13",
    )
    stage.here(submit.submit, [spec])
    stored = stage.spec_of(spec.id)
    assert stored.submitted_at > 0
    assert (stored.inputs, stored.args, stored.max_retries) == (inputs, spec.args, 4)
    assert (stored.needs, stored.python, stored.code) == (spec.needs, "3.13", b"digest")


@pytest.mark.rule("FUT-42", "FUT-44")
def test_what_wants_to_be_near_a_result_is_assigned_to_its_node_and_not_in_the_pool(stage: Stage) -> None:
    worker, other = stage.worker("w"), stage.worker("other")
    data = stage.submit()
    stage.make(worker, data, kind="segment")
    near = stage.submit(data, near=data)
    row = stage.row(near)
    assert isinstance(row, Unclaimed)
    assert (row.assigned, row.hard) == ("w", False)
    assert near not in stage.ready_ids()
    assert stage.claim(other) == []
    assert [claimed.id for claimed in stage.claim(worker)] == [near]


def test_what_wants_to_be_near_a_result_in_the_row_goes_to_the_pool(stage: Stage) -> None:
    worker = stage.worker("w")
    data = stage.submit()
    stage.make(worker, data)
    assert stage.submit(data, near=data) in stage.ready_ids()


@pytest.mark.rule("FUT-33")
def test_a_value_that_was_put_is_realised_and_never_computed(stage: Stage) -> None:
    spec = stage.spec(owner="client")
    result = Result(0, 0, 5, Location(kind="segment", name="s", node="w"), b"head")
    assert stage.here(submit.put, spec, result) == spec.id
    row = stage.row(spec.id)
    assert isinstance(row, Realized)
    assert row.result.size == 5
    assert not stage.spec_of(spec.id).reconstruct
    lost = stage.lose(spec.id)
    assert isinstance(lost, Failed)
    assert lost.kind == "lost"
    failure = stage.failure(spec.id)
    assert failure is not None
    assert "cannot be computed again" in failure.message


@pytest.mark.rule("FUT-56")
def test_a_batch_is_cut_so_that_each_transaction_fits(stage: Stage) -> None:
    up = [stage.submit() for _ in range(3)]
    specs = [stage.spec(inputs=tuple(up), args=Blob(bytes(1000))) for _ in range(300)]
    specs += [stage.spec(args=Blob(bytes(60_000))) for _ in range(20)]
    cut = submit.pages(specs)
    assert [spec for page in cut for spec in page] == specs
    stage.scan = False
    for page in cut:
        stage.here(submit.submit, page)
    assert max(stage.writes) < LIMITS.transaction_writes
    assert len(cut) < 12
    stage.check()


def test_too_many_inputs_are_refused_with_the_way_out(stage: Stage) -> None:
    with pytest.raises(UsageError, match="inputs"):
        stage.submit(*(bytes([n // 256, n % 256]) * 8 for n in range(submit.MOST_INPUTS + 1)))


def test_as_many_inputs_as_are_allowed_fit_one_transaction(stage: Stage) -> None:
    stage.scan = False
    ups = [stage.spec() for _ in range(submit.MOST_INPUTS)]
    for page in submit.pages(ups):
        stage.here(submit.submit, page)
    wide = stage.submit(*(spec.id for spec in ups))
    assert stage.row(wide) == Blocked(waits_on=submit.MOST_INPUTS)
    stage.check()


@pytest.mark.rule("FUT-23", "FUT-24")
def test_what_asks_for_nothing_is_indexed_all_the_same(stage: Stage) -> None:
    worker = stage.worker("w", Capacity())
    nothing = stage.submit()
    assert stage.ready_ids() == [nothing]
    claimed = stage.claim(worker, free=Capacity())
    assert [item.id for item in claimed] == [nothing]
    assert stage.ready_ids() == []
    assert BIG.cpu > 0


@pytest.mark.rule("FUT-56")
def test_a_cancelled_input_fails_its_dependents(stage: Stage) -> None:
    first = stage.submit()
    second = stage.submit(first)
    stage.here(cancel.cancel, first)
    assert isinstance(stage.row(second), Failed)
    assert isinstance(stage.row(stage.submit(first)), Failed)


def test_ids_sort_by_the_time_of_their_submission(stage: Stage) -> None:
    ids = [new_id(ms, stage.chance) for ms in (1, 2, 1000, 1_700_000_000_000)]
    assert ids == sorted(ids)
    assert {len(future_id) for future_id in ids} == {16}
