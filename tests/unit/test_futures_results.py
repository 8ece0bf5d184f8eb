"""Results: copies, losses, and who keeps them."""

import msgspec
import pytest

from tests.unit.futures_stage import Stage
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.futures.protocol import inbox, results, submit
from tidemill.futures.protocol.results import MOST_REBUILDS
from tidemill.futures.protocol.rows import Blocked, Claimed, Failed, Location, Realized, Result, Unclaimed


@pytest.fixture
def stage() -> Stage:
    return Stage()


def realized(stage: Stage, future: bytes) -> Realized:
    row = stage.row(future)
    assert isinstance(row, Realized)
    return row


def copied(stage: Stage, node: Node, future: bytes, name: str = "copy") -> Result:
    row = realized(stage, future)
    return msgspec.structs.replace(
        row.result, location=Location(kind="segment", name=name, node=node.id, node_epoch=node.epoch)
    )


def commands(stage: Stage, node: str) -> list[inbox.Command]:
    return stage.here(inbox.take, node, mode="take")


class TestLoss:
    """FUT-7, FUT-51, FUT-63."""

    @pytest.mark.rule("FUT-7", "FUT-51", "FUT-14")
    def test_when_every_copy_is_lost_the_future_is_computed_again_under_its_id(self, stage: Stage) -> None:
        holder, other = stage.worker("holder"), stage.worker("other")
        future = stage.submit()
        spec = stage.spec_of(future)
        stage.make(holder, future, kind="segment")
        stage.kill(holder, alive=[other])
        version = realized(stage, future).result.version
        row = stage.there(results.lose, future, version)
        assert isinstance(row, Unclaimed)
        assert stage.spec_of(future) == spec
        stage.make(other, future, kind="segment")
        assert realized(stage, future).result.version > version

    @pytest.mark.rule("FUT-9")
    def test_a_reconstruction_is_counted_on_its_own_and_sets_no_attempts_back(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(max_retries=1)
        stage.fail(worker, stage.claim_one(worker))
        stage.clock.advance(1)
        stage.make(worker, future, kind="segment")
        stage.lose(future)
        tally = stage.row(future).tally
        assert (tally.rebuilds, tally.exceptions) == (1, 1)
        stage.fail(worker, stage.claim_one(worker))
        assert isinstance(stage.row(future), Failed)

    @pytest.mark.rule("FUT-63")
    def test_two_readers_of_one_lost_object_make_one_recomputation(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit()
        stage.make(worker, future, kind="segment")
        version = realized(stage, future).result.version
        first = stage.there(results.lose, future, version, unreachable=True)
        before = stage.all_rows()
        second = stage.there(results.lose, future, version, unreachable=True)
        assert first == second
        assert stage.all_rows() == before
        stage.make(worker, future, kind="segment")
        before = stage.all_rows()
        assert isinstance(stage.there(results.lose, future, version, unreachable=True), Realized)
        assert stage.all_rows() == before

    @pytest.mark.rule("FUT-63")
    def test_only_a_dead_node_or_repeated_failed_fetches_prove_a_loss(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit()
        stage.make(worker, future, kind="segment")
        version = realized(stage, future).result.version
        assert isinstance(stage.there(results.lose, future, version), Realized)
        stage.kill(worker)
        assert isinstance(stage.there(results.lose, future, version), Unclaimed)

    @pytest.mark.rule("FUT-45", "FUT-28")
    def test_with_another_copy_the_loss_of_one_changes_only_where_it_is(self, stage: Stage) -> None:
        first, second = stage.worker("one"), stage.worker("two")
        future = stage.submit()
        stage.make(first, future, kind="segment")
        copy = copied(stage, second, future)
        assert stage.there(results.add_copy, second, future, copy)
        stage.kill(first, alive=[second])
        row = stage.there(results.lose, future, copy.version)
        assert isinstance(row, Realized)
        assert row.result.location.node == "two"
        near = stage.submit(future, near=future)
        assert stage.row(near).assigned == "two"  # type: ignore[union-attr]

    @pytest.mark.rule("FUT-30")
    def test_records_of_copies_from_an_earlier_boot_are_deleted_by_whoever_notices(
        self, stage: Stage
    ) -> None:
        boots = [stage.worker(f"boot-{number}", address="here:1") for number in range(3)]
        future = stage.submit()
        stage.make(boots[0], future, kind="segment")
        for boot in boots[1:]:
            assert stage.there(results.add_copy, boot, future, copied(stage, boot, future))
        stage.kill(*boots[:2], alive=[boots[2]])
        version = realized(stage, future).result.version
        stage.there(results.lose, future, version)
        left = stage.store.run(lambda tx: results.copies(tx, stage.keys, future))
        assert [copy.location.node for copy in left] == ["boot-2"]

    @pytest.mark.rule("FUT-51")
    def test_reconstruction_is_recursive_where_the_inputs_are_lost_too(self, stage: Stage) -> None:
        worker = stage.worker("w")
        first = stage.submit()
        second = stage.submit(first)
        for future_id in (first, second):
            stage.make(worker, future_id, kind="segment")
        stage.lose(first)
        assert isinstance(stage.lose(second), Blocked)
        stage.make(worker, first)
        stage.make(worker, second)

    @pytest.mark.rule("FUT-51")
    def test_reconstruction_has_a_cap(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit()
        for _ in range(MOST_REBUILDS):
            stage.make(worker, future, kind="segment")
            assert isinstance(stage.lose(future), Unclaimed)
        stage.make(worker, future, kind="segment")
        row = stage.lose(future)
        assert isinstance(row, Failed)
        assert row.kind == "lost"

    def test_what_may_not_be_computed_again_fails_and_so_does_what_needs_it(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(reconstruct=False)
        stage.make(worker, future, kind="segment")
        behind = stage.submit(future)
        assert isinstance(stage.lose(future), Failed)
        assert isinstance(stage.row(behind), Failed)

    def test_a_result_in_the_row_cannot_be_lost(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit()
        stage.make(worker, future)
        assert isinstance(stage.lose(future), Realized)


class TestCopies:
    """FUT-28, FUT-31, FUT-32."""

    @pytest.mark.rule("FUT-28", "FUT-31")
    def test_each_copy_has_its_node_time_size_and_place(self, stage: Stage) -> None:
        first, second = stage.worker("one"), stage.worker("two")
        future = stage.submit()
        stage.make(first, future, kind="segment")
        assert stage.there(results.add_copy, second, future, copied(stage, second, future, "seg-two"))
        copies = stage.store.run(lambda tx: results.copies(tx, stage.keys, future))
        assert [(copy.location.node, copy.location.name) for copy in copies] == [
            ("one", "seg-1"),
            ("two", "seg-two"),
        ]
        assert {copy.size for copy in copies} == {3}
        assert all(copy.at > 0 for copy in copies)

    @pytest.mark.rule("FUT-31")
    def test_ownership_goes_to_another_node_and_the_old_one_is_told_to_delete(self, stage: Stage) -> None:
        first, second = stage.worker("one"), stage.worker("two")
        future = stage.submit()
        stage.make(first, future, kind="segment")
        assert stage.there(results.transfer, second, future, copied(stage, second, future))
        assert realized(stage, future).result.location.node == "two"
        assert realized(stage, future).result.size == 3
        assert commands(stage, "one") == [inbox.FreeSegment(future, "seg-1")]
        stage.kill(first, alive=[second])
        version = realized(stage, future).result.version
        assert isinstance(stage.there(results.lose, future, version), Realized)

    def test_a_copy_of_an_old_version_is_refused(self, stage: Stage) -> None:
        first, second = stage.worker("one"), stage.worker("two")
        future = stage.submit()
        stage.make(first, future, kind="segment")
        old = copied(stage, second, future)
        stage.lose(future)
        assert not stage.there(results.add_copy, second, future, old)
        stage.make(first, future, kind="segment")
        assert not stage.there(results.transfer, second, future, old)

    def test_a_node_whose_lease_is_over_records_no_copy(self, stage: Stage) -> None:
        first, second = stage.worker("one"), stage.worker("two")
        future = stage.submit()
        stage.make(first, future, kind="segment")
        copy = copied(stage, second, future)
        stage.kill(second, alive=[first])
        with pytest.raises(LeaseLost):
            stage.there(results.add_copy, second, future, copy)

    @pytest.mark.rule("FUT-32")
    def test_the_results_of_one_or_of_many_can_be_deleted_and_are_computed_again_when_asked_for(
        self, stage: Stage
    ) -> None:
        worker = stage.worker("w")
        ids = [stage.submit(owner="client") for _ in range(4)]
        got = {claimed.id: claimed for claimed in stage.claim(worker)}
        for kind, future_id in zip(("inline", "segment", "object"), ids, strict=False):
            stage.realize(worker, got[future_id], kind=kind)
        assert stage.here(results.delete_results, ids) == 3
        assert stage.here(results.delete_results, ids[:1]) == 0
        assert [realized(stage, future_id).result.location.kind for future_id in ids[:3]] == ["freed"] * 3
        assert commands(stage, "w") == [inbox.FreeSegment(ids[1], "seg-1")]
        garbage = stage.store.run(lambda tx: tx.range(*stage.keys.garbage.all()))
        assert [stage.keys.garbage.unpack(row.key) for row in garbage] == [(f"obj-{ids[2].hex()}-1",)]
        version = realized(stage, ids[0]).result.version
        assert isinstance(stage.there(results.lose, ids[0], version), Unclaimed)


class TestKeeping:
    """FUT-34, FUT-64: handles, dependents and pins keep a result."""

    @staticmethod
    def kind(stage: Stage, future: bytes) -> str:
        return realized(stage, future).result.location.kind

    @pytest.mark.rule("FUT-34")
    def test_a_released_result_that_nobody_needs_is_freed_at_once(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(owner="client")
        stage.make(worker, future, kind="segment")
        stage.here(results.release, "client", [future])
        assert self.kind(stage, future) == "freed"
        assert commands(stage, "w") == [inbox.FreeSegment(future, "seg-1")]

    @pytest.mark.rule("FUT-34")
    def test_a_result_is_kept_while_a_dependent_has_not_ended(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(owner="client")
        behind = stage.submit(future)
        stage.make(worker, future, kind="segment")
        stage.here(results.release, "client", [future])
        stage.round("release results")
        assert self.kind(stage, future) == "segment"
        stage.make(worker, behind)
        stage.round("release results")
        assert self.kind(stage, future) == "freed"

    @pytest.mark.rule("FUT-34")
    def test_a_result_with_very_many_dependents_is_judged_in_short_looks(self, stage: Stage) -> None:
        stage.scan = False
        worker = stage.worker("w")
        future = stage.submit(owner="client")
        specs = [stage.spec(inputs=(future,)) for _ in range(450)]
        for page in submit.pages(specs):
            stage.here(submit.submit, page)
        stage.make(worker, future, kind="segment")
        stage.drain()
        while claimed := stage.claim(worker):
            stage.realize_fast(worker, *claimed)
        stage.here(results.release, "client", [future])
        for _ in range(6):
            stage.round("release results")
        assert self.kind(stage, future) == "freed"
        stage.check()

    @pytest.mark.rule("FUT-34")
    def test_a_pin_keeps_a_result_until_it_is_taken_away(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(owner="client")
        stage.make(worker, future, kind="segment")
        stage.here(results.pin, future, "me")
        stage.here(results.release, "client", [future])
        assert self.kind(stage, future) == "segment"
        stage.here(results.unpin, future, "me")
        stage.round("release results")
        assert self.kind(stage, future) == "freed"

    @pytest.mark.rule("FUT-64")
    def test_handles_are_counted_per_client(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(owner="one")
        stage.make(worker, future, kind="segment")
        stage.here(results.hold, "two", [future])
        stage.here(results.release, "one", [future])
        assert self.kind(stage, future) == "segment"
        stage.here(results.release, "two", [future])
        assert self.kind(stage, future) == "freed"

    @pytest.mark.rule("FUT-64")
    def test_the_handles_of_a_client_whose_lease_is_over_count_no_more(self, stage: Stage) -> None:
        worker = stage.worker("w")
        owner, other = stage.worker("owner", kind="client"), stage.worker("other", kind="client")
        future = stage.submit(owner="owner")
        late = stage.submit(owner="owner")
        stage.make(worker, future, kind="segment")
        stage.here(results.hold, "other", [future])
        stage.kill(owner, alive=[worker, other])
        stage.round("release results")
        assert self.kind(stage, future) == "segment"
        stage.make(worker, late, kind="segment")  # it is computed although its client is gone
        stage.round("release results")
        assert self.kind(stage, late) == "freed"
        stage.kill(other, alive=[worker])
        stage.round("release results")
        assert self.kind(stage, future) == "freed"

    def test_a_future_that_is_released_before_it_ended_is_freed_when_it_has(self, stage: Stage) -> None:
        worker = stage.worker("w")
        future = stage.submit(owner="client")
        claimed = stage.claim_one(worker)
        stage.here(results.release, "client", [future])
        assert isinstance(stage.row(future), Claimed)
        assert stage.realize_fast(worker, claimed, kind="segment") == [False]
        stage.realize(worker, claimed, kind="segment")
        stage.round("release results")
        assert self.kind(stage, future) == "freed"
