"""Shadows: repeat the steps of a group on a copy of its state, compare, and take over where it stopped."""

from collections.abc import Sequence

import msgspec
import pytest

from tests.unit.steps_stage import P, StepStage, outputs, spec
from tidemill import crash
from tidemill.cluster.leases import Lease
from tidemill.cluster.nodes import Node
from tidemill.errors import (
    GroupDiverged,
    LeaseLost,
    ShadowDiffers,
    ShadowNotReady,
    StepConflict,
)
from tidemill.lots.keys import DatasetId
from tidemill.publish import attempts
from tidemill.publish.attempts import Abandoned, Hold, Open, Published
from tidemill.store import Tx
from tidemill.views.steps import divergence, groups, records, rounds, shadow, versions
from tidemill.views.steps.commits import StepBatch, StepOutput, StepPart, StepResult, StepState
from tidemill.views.steps.coordinator import Coordinator
from tidemill.views.steps.divergence import Fate
from tidemill.views.steps.keys import group_id, state_prefix
from tidemill.views.steps.rounds import Running
from tidemill.views.steps.shadow import Shadow

X = DatasetId("x")
LONG_US = 10_000_000_000


def computed(batch: StepBatch, attempt: str, wrong: int = 0) -> tuple[StepPart, ...]:
    """The digest of a step depends on its input alone."""
    prefix = state_prefix(P, batch.spec.name, batch.lot, attempt)
    digest = f"{sum(batch.positions.values()) - sum(batch.before.values()) + wrong:032x}"
    parts = [msgspec.structs.replace(each, digest=digest) for each in outputs(batch, attempt)]
    return (*parts, StepState(version=f"{prefix}version", size=1))


class ShadowStage(StepStage):
    """One group, whose state a round has pinned, with a shadow."""

    def prepare(self) -> "ShadowStage":
        self.runner = self.node("runner", LONG_US)
        self.upgrader = self.node("upgrader", LONG_US)
        self.dataset("x")
        self.publish(X)
        self.declare(spec("g", X))
        self.go()
        self.coordinator().run_round(lambda tx: None)
        return self

    def coordinator(self) -> Coordinator:
        return Coordinator(self.scope(self.upgrader), P, wait_s=5)

    def compute(self, batch: StepBatch, attempt: str) -> tuple[StepOutput, ...]:
        self.computed.append((batch, attempt))
        return computed(batch, attempt)  # type: ignore[return-value]

    def go(self, count: int = 0) -> None:
        """Apply this many publications, one step for each."""
        for _ in range(count):
            self.publish(X)
            self.go()
        self.clock.advance(1)
        self.settle(self.runner, "g")

    def copy(self) -> tuple[Shadow, Hold]:
        attempt = self.scope().new_attempt()
        return self.run(shadow.begin, self.keys, P, "g", self.upgrader, attempt, attempt)

    def next(self, copy: Shadow) -> StepBatch | None:
        return self.store.run(lambda tx: shadow.next_batch(tx, self.keys, P, copy))

    def repeat(self, copy: Shadow, wrong: int = 0) -> tuple[Shadow, list[Hold]]:
        """Repeat all steps."""
        holds = []
        while (batch := self.next(copy)) is not None:
            attempt = self.scope().new_attempt()
            copy, hold = self.run(shadow.open_step, self.keys, P, copy, batch, attempt)
            result = StepResult.of(hold, computed(batch, attempt, wrong))
            copy = self.run(shadow.advance, self.keys, P, copy, batch, result, 10)
            holds.append(hold)
        return copy, holds

    def stored(self) -> Shadow | None:
        return self.store.run(lambda tx: shadow.read(tx, self.keys, P, "g"))

    def attempt(self, name: str) -> attempts.AnyAttempt:
        return self.store.run(lambda tx: attempts.read(tx, self.keys, name))

    def stopped(self) -> Lease:
        """Stop the group in a round."""
        lease = self.run(records.become_coordinator, self.keys, P, "c", LONG_US)
        assert isinstance(lease, Lease)
        self.run(rounds.pause, self.keys, P, lease)
        assert self.run(rounds.rest_idle, self.keys, P, lease)
        self.run(rounds.stop, self.keys, P, lease)
        assert self.run(rounds.finish_idle, self.keys, P, "g", lease)
        return lease


@pytest.fixture
def stage() -> ShadowStage:
    return ShadowStage().prepare()


# --- what becomes of the output of a step


@pytest.mark.rule("DBSP-29")
def test_output_is_discarded_compared_committed_or_refused_by_its_step(stage: ShadowStage) -> None:
    stage.go(3)
    rows = stage.rows_of_group("g")
    first, last, head = rows[0], rows[-1], stage.group("g").step

    def compare(after: int, step: int, ours: Sequence[StepOutput], kept: int = 0) -> divergence.Compared:
        committed = [row for row in rows[kept:] if after < row.step <= step]
        return divergence.compare(committed, head, after, step, ours)

    assert compare(last.after, last.step, last.outputs).fate is Fate.EQUAL
    assert compare(first.after, first.step, first.outputs, kept=1).fate is Fate.EXPIRED
    assert compare(head, head + 1, last.outputs).fate is Fate.NEXT
    with pytest.raises(StepConflict, match="not the next step"):
        compare(head + 1, head + 2, last.outputs)
    with pytest.raises(StepConflict, match="not the next step"):
        compare(last.after, head + 1, last.outputs)
    other = [msgspec.structs.replace(each, digest="7") for each in last.outputs]
    assert compare(last.after, last.step, other) == divergence.Compared(Fate.DIFFERENT, ("g",))
    assert compare(last.after, last.step, []) == divergence.Compared(Fate.DIFFERENT, ("g",))
    merged = [msgspec.structs.replace(each, digest=f"{2:032x}") for each in last.outputs]
    assert compare(rows[-2].after, last.step, merged).fate is Fate.EQUAL, "digests add up (DBSP-42)"


@pytest.mark.rule("DBSP-29")
def test_a_group_that_has_diverged_commits_nothing_until_its_state_is_built_again(stage: ShadowStage) -> None:
    stage.run(divergence.mark_diverged, stage.keys, P, "g", 2, ("g",))
    before = stage.group("g")
    stage.publish(X)
    with pytest.raises(GroupDiverged, match="step 2 of group 'g'") as caught:
        stage.go()
    assert "doctor --repair" in caught.value.hint
    assert stage.group("g") == before
    marked = stage.store.run(lambda tx: divergence.all_diverged(tx, stage.keys, P))
    assert (marked["g"].step, marked["g"].views) == (2, ("g",))
    stage.run(divergence.clear_diverged, stage.keys, P, "g")
    stage.kill(stage.runner)
    stage.look(group_id(P, "g"))
    stage.runner = stage.node("next", LONG_US)
    stage.go()
    assert stage.group("g").step == len(stage.records())


@pytest.mark.rule("DBSP-29")
def test_a_step_that_was_being_computed_when_its_group_diverged_is_not_committed(stage: ShadowStage) -> None:
    stage.publish(X)
    before = stage.group("g")

    def compute(batch: StepBatch, attempt: str) -> tuple[StepPart, ...]:
        stage.run(divergence.mark_diverged, stage.keys, P, "g", 2, ("g",))
        return computed(batch, attempt)

    with pytest.raises(GroupDiverged):
        stage.step(stage.runner, "g", compute=compute)
    assert stage.group("g") == before


# --- a shadow


@pytest.mark.rule("DBSP-43", "DBSP-4")
def test_a_shadow_repeats_steps_publishes_nothing_and_takes_over_where_its_group_was_stopped(
    stage: ShadowStage,
) -> None:
    stage.go(2)
    pin = stage.store.run(lambda tx: versions.listed(tx, stage.keys, P, "g"))[-1]
    head, commits_before = stage.group("g"), stage.rows_of_group("g")
    copy, first = stage.copy()
    assert (copy.step, copy.origin, copy.tables) == (pin.step, pin.version, pin.tables)
    assert copy.version not in (pin.version, head.version)
    copy, holds = stage.repeat(copy)
    assert (copy.step, copy.steps, copy.rows) == (head.step, 2, 20)
    assert copy.uncovered(P) == ()
    assert stage.group("g") == head
    assert stage.rows_of_group("g") == commits_before, "it publishes nothing"
    assert all(isinstance(stage.attempt(name), Open) for name in copy.attempts)

    stage.go(1)
    copy, more = stage.repeat(copy)
    assert copy.step == stage.group("g").step > head.step, "it follows the group"
    lease = stage.stopped()
    with pytest.raises(LeaseLost):
        stage.run(shadow.take_over, stage.keys, P, copy, msgspec.structs.replace(lease, epoch=0))
    for hold in (first, *holds, *more):
        stage.run(shadow.keep_state, stage.keys, P, copy, hold, copy.version)
    moved = stage.run(shadow.take_over, stage.keys, P, copy, lease)
    assert (moved.version, moved.step, moved.tables) == (
        copy.version,
        copy.step,
        stage.group("g").tables,
    )
    assert stage.stored() is None
    ended = [stage.attempt(name) for name in copy.attempts]
    assert all(isinstance(row, Published) and "" in ("", *row.manifest_keys[:-1]) for row in ended)
    pinned = stage.store.run(lambda tx: versions.listed(tx, stage.keys, P, "g"))
    assert pinned[-1].step == copy.step
    assert pinned[-1].version != copy.version, "the way back: the state of before, at the same step"
    stage.run(rounds.start, stage.keys, P, lease)
    stage.run(records.resign_coordinator, stage.keys, P, lease)
    stage.go(1)
    assert stage.computed[-1][0].version == copy.version, "the next step reads the state of the shadow"


@pytest.mark.rule("DBSP-43", "DBSP-29")
def test_a_shadow_with_other_digests_is_refused_and_its_group_goes_on(stage: ShadowStage) -> None:
    stage.go(2)
    copy, _ = stage.copy()
    before = stage.group("g")
    with pytest.raises(ShadowDiffers, match="other rows of g") as caught:
        stage.repeat(copy, wrong=1)
    assert caught.value.views == ("g",)
    stored = stage.stored()
    assert stored is not None
    assert stored.step == copy.step
    while stage.run(shadow.discard, stage.keys, P, "g", 1):
        continue
    assert stage.stored() is None
    assert all(isinstance(stage.attempt(name), Abandoned) for name in stored.attempts), "the cleaner deletes"
    assert stage.group("g") == before
    stage.go(1)
    assert stage.group("g").step > before.step
    assert stage.store.run(lambda tx: divergence.diverged(tx, stage.keys, P, "g")) is None


@pytest.mark.rule("DBSP-43")
def test_a_shadow_takes_over_only_at_the_step_where_its_group_was_stopped(stage: ShadowStage) -> None:
    copy, _ = stage.copy()
    stage.go(1)
    lease = stage.stopped()
    with pytest.raises(ShadowNotReady, match="not stopped at step"):
        stage.run(shadow.take_over, stage.keys, P, copy, lease)
    copy, _ = stage.repeat(copy)
    stage.run(rounds.start, stage.keys, P, lease)
    with pytest.raises(ShadowNotReady, match="not stopped"):
        stage.run(shadow.take_over, stage.keys, P, copy, lease)


@pytest.mark.rule("DBSP-43")
def test_a_step_that_read_the_old_state_is_not_committed_after_a_shadow_took_over(stage: ShadowStage) -> None:
    stage.publish(X)
    replaced = "data/other"

    def compute(batch: StepBatch, attempt: str) -> tuple[StepPart, ...]:
        group = stage.group("g")
        stage.run(groups.write, stage.keys, P, msgspec.structs.replace(group, version=replaced))
        return computed(batch, attempt)

    with pytest.raises(StepConflict, match="state of views:shop/g was replaced"):
        stage.step(stage.runner, "g", compute=compute)
    assert stage.group("g").version == replaced


def test_steps_cannot_be_repeated_if_there_is_no_version_or_a_view_changed(stage: ShadowStage) -> None:
    fresh = ShadowStage()
    fresh.runner = fresh.upgrader = fresh.node("runner", LONG_US)
    fresh.dataset("x")
    fresh.publish(X)
    fresh.declare(spec("g", X))
    fresh.go()
    with pytest.raises(ShadowNotReady, match="cannot be repeated"):
        fresh.copy()
    stage.go(1)
    stage.declare(spec("g", X, code="d"), circuit="2")
    with pytest.raises(ShadowNotReady, match="cannot be repeated"):
        stage.copy()
    stage.go(1)
    with pytest.raises(ShadowNotReady, match="cannot be repeated"):
        stage.copy()  # a step since the version has rebuilt the view
    stage.coordinator().run_round(lambda tx: None)
    copy, _ = stage.copy()
    stage.declare(spec("g", X, code="e"), circuit="3")
    with pytest.raises(ShadowNotReady, match="have changed"):
        stage.next(copy)


def test_a_group_has_one_shadow_and_a_stale_process_moves_none(stage: ShadowStage) -> None:
    stage.go(1)
    copy, _ = stage.copy()
    with pytest.raises(ShadowNotReady, match="another shadow"):
        stage.copy()

    def foreign(tx: Tx, node: Node) -> bool:
        return shadow.is_foreign(tx, stage.keys, P, "g", node)

    assert not stage.store.run(lambda tx: foreign(tx, stage.upgrader))
    other = stage.node("other", LONG_US)
    assert stage.store.run(lambda tx: foreign(tx, other))
    batch = stage.next(copy)
    assert batch is not None
    stage.kill(stage.upgrader)
    assert not stage.store.run(lambda tx: foreign(tx, other)), "its process is gone"
    assert stage.store.run(lambda tx: shadow.kept(tx, stage.keys, P, "g")) is None
    with pytest.raises(LeaseLost):
        stage.run(shadow.open_step, stage.keys, P, copy, batch, "a" * 26)
    while stage.run(shadow.discard, stage.keys, P, "g"):
        continue
    stage.upgrader = other
    newer, _ = stage.copy()
    with pytest.raises((StepConflict, LeaseLost)):
        stage.run(shadow.skip, stage.keys, P, copy, batch)
    assert stage.stored() == newer


def test_a_shadow_repeats_a_limited_number_of_steps(
    stage: ShadowStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "MOST_STEPS", 2)
    stage.go(1)
    copy, _ = stage.copy()
    stage.go(2)
    with pytest.raises(ShadowNotReady, match="has repeated 2 steps"):
        stage.repeat(copy)


@pytest.mark.rule("DBSP-38", "DBSP-43")
@pytest.mark.parametrize("name", ["pause", "stop", "finish", "start", "take-over"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_an_upgrade_that_dies_in_its_round_leaves_the_old_or_the_new_state(name: str, side: str) -> None:
    stage = ShadowStage().prepare()
    stage.go(1)
    copy, first = stage.copy()
    copy, holds = stage.repeat(copy)
    before, scope = stage.group("g"), stage.scope(stage.upgrader)

    def switch(lease: Lease, step: int) -> None:
        for hold in (first, *holds):
            scope.step(
                "views.keep",
                lambda tx: shadow.keep_state(tx, stage.keys, P, copy, hold, copy.version),  # noqa: B023
            )
        scope.step("views.take-over", lambda tx: shadow.take_over(tx, stage.keys, P, copy, lease))

    with crash.armed(f"views.{name}.{side}"), pytest.raises(crash.Crashed):
        stage.coordinator().run_round(lambda tx: None, stopped=switch)
    new = name == "start" or (name, side) == ("take-over", "after")
    assert stage.group("g").version == (copy.version if new else before.version)
    stage.kill(stage.upgrader)
    stage.clock.advance(20)
    for _ in range(4):
        stage.go(1)
        stage.clock.advance(1)
    assert stage.store.run(lambda tx: rounds.read_all(tx, stage.keys, P)) == {"g": Running()}
    assert stage.group("g").step == len(stage.records())
    rows = stage.rows_of_group("g")
    assert [row.step for row in rows] == [1, 2, 3, 4, 5, 6][: len(rows)], "no step is lost or doubled"
    assert {each.digest for row in rows for each in row.outputs} == {f"{1:032x}"}
    while stage.run(shadow.discard, stage.keys, P, "g"):
        continue
    assert stage.stored() is None
