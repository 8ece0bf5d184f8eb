"""Records and commits of steps, one by one."""

import msgspec
import pytest

from tests.unit.steps_stage import P, StepStage, outputs, spec
from tidemill import crash
from tidemill.cluster.leases import Busy, Lease
from tidemill.errors import GroupUnknown, LeaseLost, StepConflict, UsageError
from tidemill.lots.keys import DatasetId
from tidemill.publish import attempts
from tidemill.publish.attempts import Abandoned, Published
from tidemill.store import LIMITS, Space
from tidemill.triggers import runs, subscriptions
from tidemill.triggers.subscriptions import Scheduled, Waiting
from tidemill.triggers.terms import CatchUp
from tidemill.views.steps import commits, groups, records
from tidemill.views.steps.commits import StepResult
from tidemill.views.steps.groups import MOST_VIEWS, GroupSpec, ViewSpec
from tidemill.views.steps.keys import group_id, group_source, step_log
from tidemill.views.steps.records import MOST_RANGES, PositionRange


@pytest.fixture
def stage() -> StepStage:
    return StepStage()


def everything(stage: StepStage) -> dict[bytes, bytes]:
    return {row.key: row.value for row in stage.store.run(lambda tx: tx.range(*Space("c").all()))}


# --- records


@pytest.mark.rule("DBSP-34")
def test_a_record_has_a_range_for_every_base_dataset_whose_head_moved(stage: StepStage) -> None:
    a, b, c = stage.dataset("a"), stage.dataset("b"), stage.dataset("c")
    stage.publish(a)
    stage.declare(spec("g", a, b), spec("h", c), circuit="v7")
    stage.publish(a)
    stage.publish(b)
    assert stage.run(records.write_record_now, stage.keys, P, "n").ranges == (
        PositionRange(a, 1, 2),
        PositionRange(b, 0, 1),
    )
    first, second = stage.records()
    assert first.ranges == (PositionRange(a, 0, 1),)
    assert {first.circuit, second.circuit} == {"v7"}
    assert first.now <= second.now
    assert second.epoch > first.epoch
    assert stage.run(records.write_record_now, stage.keys, P, "n") is None  # nothing was published since
    assert len(stage.records()) == 2


@pytest.mark.rule("DBSP-34")
def test_a_record_holds_as_many_ranges_as_fit_and_the_next_has_the_others(
    stage: StepStage,
) -> None:
    stage.scan = False
    bases = [stage.dataset(f"d{number:04}") for number in range(MOST_RANGES + 10)]
    stage.declare(*(spec(f"g{n}", *bases[n * 50 : n * 50 + 50]) for n in range(7)))
    for dataset in bases:
        stage.publish(dataset)
    first = stage.run(records.write_record_now, stage.keys, P, "n")
    assert len(first.ranges) == MOST_RANGES
    assert stage.writes <= LIMITS.transaction_writes
    for served in first.ranges:
        stage.publish(served.dataset)  # the datasets of the first record move again at once
    second = stage.run(records.write_record_now, stage.keys, P, "n")
    assert set(bases) - first.moved < second.moved
    assert len(second.ranges) == MOST_RANGES
    stage.check()


@pytest.mark.rule("DBSP-34")
def test_a_record_of_long_names_fits_one_value(stage: StepStage) -> None:
    stage.scan = False
    bases = [stage.dataset(f"{number:0195}", version="v" * 195) for number in range(160)]
    stage.declare(*(spec(f"g{n}", *bases[n * 80 : n * 80 + 80]) for n in range(2)))
    for dataset in bases:
        stage.publish(dataset)
    while stage.run(records.write_record_now, stage.keys, P, "n") is not None:
        pass
    log = stage.records()
    assert sum(len(record.ranges) for record in log) == 160
    assert all(0 < len(msgspec.msgpack.encode(record)) < LIMITS.value_bytes for record in log)
    stage.check()


@pytest.mark.rule("DBSP-6")
def test_each_publication_of_any_producer_belongs_to_one_step_which_does_not_change(
    stage: StepStage,
) -> None:
    a, b = stage.dataset("a"), stage.dataset("b")
    stage.declare(spec("g", a, b))
    steps: dict[tuple[DatasetId, int], int] = {}
    for batch in ([a], [b, b, a], [], [a, a, a, b]):
        received = [(dataset, stage.publish(dataset)) for dataset in batch]
        assert [steps_of(stage, *each) for each in received] == [[]] * len(batch), "received, not recorded"
        stage.run(records.write_record_now, stage.keys, P, "n")
        for each in received:
            (steps[each],) = steps_of(stage, *each)
    assert len({*steps.values()}) == 3
    assert steps == {each: steps_of(stage, *each)[0] for each in steps}


def steps_of(stage: StepStage, dataset: DatasetId, position: int) -> list[int]:
    """The records that contain a position."""
    return [
        record.number
        for record in stage.records()
        for each in record.ranges
        if each.dataset == dataset and each.after < position <= each.to
    ]


@pytest.mark.rule("DBSP-26")
def test_lots_published_after_a_crash_belong_to_a_later_step(stage: StepStage) -> None:
    orders, node = stage.dataset("orders"), stage.node("n")
    stage.publish(orders)
    stage.declare(spec("g", orders))
    with crash.armed("views.commit.before"), pytest.raises(crash.Crashed):
        stage.step(node, "g")
    stage.publish(orders)
    stage.kill(node)
    stage.look(group_id(P, "g"))
    other = stage.node("m")
    stage.settle(other, "g")
    assert [batch.positions[orders] for batch, _ in stage.computed] == [1, 1, 2]
    assert [row.step for row in stage.rows_of_group("g")] == [1, 2]
    assert stage.records()[1].ranges == (PositionRange(orders, 1, 2),)


@pytest.mark.rule("LOT-38")
@pytest.mark.parametrize(("policy", "runs_at_once"), [("all", True), ("latest", True), ("none", False)])
def test_a_resumed_group_processes_every_lot_under_every_catch_up_policy(
    stage: StepStage, policy: str, runs_at_once: bool
) -> None:
    orders, node, name = stage.dataset("orders"), stage.node("n"), group_id(P, "g")
    stage.declare(spec("g", orders))
    stage.settle(node, "g")
    stage.run(subscriptions.pause, stage.triggers, name)
    for _ in range(3):
        stage.publish(orders)
    assert stage.step(node, "g") is None
    stage.run(subscriptions.resume, stage.triggers, stage.lots, name, CatchUp(policy))
    assert (stage.step(node, "g") is not None) == runs_at_once
    stage.publish(orders)
    stage.settle(node, "g")
    assert [each for record in stage.records() for each in record.ranges] == (
        [PositionRange(orders, 0, 3), PositionRange(orders, 3, 4)]
        if runs_at_once
        else [PositionRange(orders, 0, 4)]
    )
    assert stage.computed[-1][0].positions[orders] == 4


@pytest.mark.rule("DBSP-35")
def test_a_former_coordinator_cannot_write_a_record(stage: StepStage) -> None:
    orders = stage.dataset("orders")
    stage.declare(spec("g", orders))
    stage.publish(orders)
    old = stage.run(records.become_coordinator, stage.keys, P, "old", 10_000_000)
    assert isinstance(old, Lease)
    assert isinstance(stage.run(records.write_record_now, stage.keys, P, "n"), Busy)
    assert isinstance(stage.run(groups.declare_circuit, stage.keys, P, "2", "n"), Busy)
    stage.clock.advance(11)
    new = stage.run(records.become_coordinator, stage.keys, P, "new", 10_000_000)
    before = everything(stage)
    with pytest.raises(LeaseLost):
        stage.run(records.write_record, stage.keys, P, old)
    assert everything(stage) == before
    assert stage.run(records.write_record, stage.keys, P, new).epoch == new.epoch > old.epoch


def test_now_never_decreases_although_the_wall_clock_does(stage: StepStage) -> None:
    orders = stage.dataset("orders")
    stage.declare(spec("g", orders))
    stage.publish(orders)
    stage.clock.wall_s -= 3600
    late = stage.run(records.write_record_now, stage.keys, P, "n")
    assert late.now == stage.records()[0].now


# --- commits


@pytest.mark.rule("DBSP-39")
def test_a_commit_is_one_transaction_with_the_row_the_head_the_wake_and_the_finish(stage: StepStage) -> None:
    orders, node = stage.dataset("orders"), stage.node("n")
    views = (
        ViewSpec(name="u", code="c", reads=(orders,)),
        ViewSpec(name="v", code="c", uses=("u",)),
    )
    stage.declare(GroupSpec(name="g", views=views))
    stage.settle(node, "g")
    reader = group_source(P, "g")
    stage.subscribe("arc", reader)
    stage.settle(node, "g")
    stage.publish(orders)
    ticket = stage.begin(node, "g")
    stage.run(records.write_record_now, stage.keys, P, "n")
    batch = stage.run(commits.next_batch, stage.keys, P, "g")
    hold = stage.run(commits.open_step, stage.keys, ticket, batch, "attempt")
    before = everything(stage)
    result = StepResult.of(hold, outputs(batch, "attempt"))
    row = stage.run(commits.commit, stage.keys, ticket, batch, result, ends=True)
    assert [output.view for output in row.outputs] == ["u", "v"]  # one row for all views
    after = everything(stage)
    wakes = stage.triggers.wake.all()
    new = {key for key in after if after[key] != before.get(key)}
    assert [key for key in new if wakes[0] <= key < wakes[1]] == [stage.triggers.wake[reader.parts]]
    assert stage.keys.step[P, "g", 2] in new
    assert stage.head(reader) == stage.group("g").step == 2
    assert stage.group("g").tables == {output.view: output.table for output in row.outputs}
    assert isinstance(stage.row(group_id(P, "g")), Waiting)
    assert isinstance(stage.run(attempts.read, stage.keys, "attempt"), Published)
    assert not any(b"view:" in key for key in new)  # nothing is written per view
    stage.page_all()
    assert isinstance(stage.row("arc"), Scheduled)
    assert stage.start(node, "arc").heads == {reader: 2}


@pytest.mark.rule("DBSP-39")
def test_views_of_a_group_do_not_wake_each_other(stage: StepStage) -> None:
    orders, node = stage.dataset("orders"), stage.node("n")
    views = (ViewSpec(name="u", code="c", reads=(orders,)), ViewSpec(name="v", code="c", uses=("u",)))
    stage.declare(GroupSpec(name="g", views=views))
    stage.settle(node, "g")
    stage.publish(orders)
    jobs = len(stage.computed)
    assert stage.step(node, "g").jobs == 1
    assert stage.step(node, "g") is None
    assert len(stage.computed) == jobs + 1


@pytest.mark.rule("DBSP-34")
def test_groups_apply_every_record_and_pass_records_without_work_together(stage: StepStage) -> None:
    a, b, node = stage.dataset("a"), stage.dataset("b"), stage.node("n")
    stage.declare(spec("g", a), spec("h", b))
    stage.settle(node, "g", "h")
    for _ in range(5):
        stage.publish(a)
        assert stage.step(node, "g").jobs == 1
    stage.publish(b)
    before = len(stage.computed)
    summary = stage.step(node, "h")
    assert (summary.step, summary.commits, summary.jobs) == (
        6,
        1,
        0,
    )  # five records at once
    assert len(stage.computed) == before
    stage.settle(node, "g", "h")
    assert [(row.after, row.step, bool(row.outputs)) for row in stage.rows_of_group("h")] == [
        (0, 1, True),
        (1, 6, False),
        (6, 7, True),
    ]
    assert [(row.step, bool(row.outputs)) for row in stage.rows_of_group("g")] == [
        (1, True),
        (2, True),
        (3, True),
        (4, True),
        (5, True),
        (6, True),
        (7, False),
    ]
    assert stage.group("g").step == stage.group("h").step == 7


@pytest.mark.rule("DBSP-34")
def test_groups_that_read_one_dataset_divide_it_at_the_same_positions(stage: StepStage) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.declare(spec("g", a), spec("h", a))
    stage.settle(node, "g", "h")
    for _ in range(3):
        stage.publish(a)
        stage.publish(a)
        stage.step(node, "g")  # `h` lags
    stage.settle(node, "g", "h")
    batches = {
        name: [(batch.step, batch.positions[a]) for batch, _ in stage.computed if batch.spec.name == name]
        for name in ("g", "h")
    }
    assert batches["g"] == batches["h"] == [(1, 0), (2, 2), (3, 4), (4, 6)]


def test_a_group_that_is_behind_can_apply_several_records_in_one_step(stage: StepStage) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.declare(spec("g", a), spec("h", a))
    stage.settle(node, "g", "h")
    for _ in range(5):
        stage.publish(a)
        stage.step(node, "g")
    summary = stage.step(node, "h", most=3)
    assert (summary.step, summary.commits, summary.jobs) == (6, 2, 2)
    assert [(row.after, row.step) for row in stage.rows_of_group("h")] == [(0, 1), (1, 4), (4, 6)]


@pytest.mark.rule("DBSP-35")
@pytest.mark.rule("DBSP-39")
def test_a_stale_run_commits_nothing_and_its_attempt_is_abandoned(stage: StepStage) -> None:
    a, node, other = stage.dataset("a"), stage.node("n"), stage.node("m")
    stage.publish(a)
    stage.declare(spec("g", a))
    ticket = stage.begin(node, "g")
    batch = stage.run(commits.next_batch, stage.keys, P, "g")
    hold = stage.run(commits.open_step, stage.keys, ticket, batch, "zombie")
    stage.kill(node)
    assert stage.look(group_id(P, "g"))
    again = stage.node("n")  # the same node starts again: its old run has ended nevertheless
    second = stage.begin(other, "g")
    second_hold = stage.run(commits.open_step, stage.keys, second, batch, "second")
    assert isinstance(stage.run(attempts.read, stage.keys, "zombie"), Abandoned)
    revived = msgspec.structs.replace(ticket, node=again)
    result = StepResult.of(hold, outputs(batch, "zombie"))
    for late in (ticket, revived):
        before = everything(stage)
        with pytest.raises(LeaseLost):
            stage.run(commits.commit, stage.keys, late, batch, result, ends=True)
        with pytest.raises(LeaseLost):
            stage.run(commits.open_step, stage.keys, late, batch, "third")
        assert everything(stage) == before
    result = StepResult.of(second_hold, outputs(batch, "second"))
    stage.run(commits.commit, stage.keys, second, batch, result, ends=True)
    assert [row.attempt for row in stage.rows_of_group("g")] == ["second"]


@pytest.mark.parametrize(
    "fault", ["another step", "declared differently", "no attempt", "no table", "another's run"]
)
def test_a_refused_commit_changes_nothing(stage: StepStage, fault: str) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.publish(a)
    stage.declare(spec("g", a), spec("h", a))
    ticket = stage.begin(node, "g")
    batch = stage.run(commits.next_batch, stage.keys, P, "g")
    hold = stage.run(commits.open_step, stage.keys, ticket, batch, "t")
    result: StepResult | None = StepResult.of(hold, outputs(batch, "t"))
    if fault == "another step":
        batch = msgspec.structs.replace(batch, after=7, step=8)
    if fault == "declared differently":
        stage.declare(spec("g", a, code="other"), circuit="2")
    if fault == "no attempt":
        result = None
    if fault == "no table":
        result = StepResult(hold=hold)
    if fault == "another's run":
        ticket = stage.begin(node, "h")
    before = everything(stage)
    with pytest.raises(StepConflict):
        stage.run(commits.commit, stage.keys, ticket, batch, result, ends=True)
    assert everything(stage) == before


@pytest.mark.rule("DBSP-39")
def test_a_step_with_input_is_not_committed_without_a_result_although_its_view_has_a_table(
    stage: StepStage,
) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.publish(a)
    stage.declare(spec("g", a))
    stage.settle(node, "g")
    stage.publish(a)
    ticket = stage.begin(node, "g")
    stage.run(commits.next_record, stage.keys, P, ticket, "g")
    batch = stage.run(commits.next_batch, stage.keys, P, "g")
    assert batch.moved == {a}
    before = everything(stage)
    with pytest.raises(StepConflict, match="without a result"):
        stage.run(commits.commit, stage.keys, ticket, batch, None, ends=True)
    assert everything(stage) == before


def test_a_failed_computation_abandons_its_attempt_and_the_caller_ends_the_run(
    stage: StepStage,
) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.publish(a)
    stage.declare(spec("g", a))
    ticket = stage.begin(node, "g")

    def broken(batch: commits.StepBatch, attempt: str) -> tuple[commits.StepOutput, ...]:
        raise ValueError("a poor query")

    emitted = []
    with pytest.raises(ValueError, match="a poor query"):
        stage.stepper(compute=broken, emit=emitted.append).run(ticket)
    assert "a poor query" in emitted[-1].why
    assert isinstance(stage.run(attempts.read, stage.keys, emitted[-1].attempt), Abandoned)
    stage.fail(ticket)
    assert stage.row(ticket.name).tally.failures == 1
    stage.settle(node, "g")
    assert stage.group("g").step == 1


JAVA_ERROR = (
    "An error occurred while calling o1620.getResult.\n"
    ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
    "\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)\n"
    "\tat java.base/jdk.internal.reflect.NativeMethodAccessorImpl.invoke0(Native Method)\n"
    "\t... 13 more\n"
    "Caused by: java.io.IOException: No space left on device\n"
    "\tat org.apache.spark.executor.Executor$TaskRunner.$anonfun$run$4(Executor.scala:903)\n"
)


def test_the_reason_of_a_failed_step_is_one_line_without_the_stack_of_java(stage: StepStage) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.publish(a)
    stage.declare(spec("g", a))
    ticket = stage.begin(node, "g")

    def full(batch: commits.StepBatch, attempt: str) -> tuple[commits.StepOutput, ...]:
        raise RuntimeError(JAVA_ERROR)

    emitted = []
    with pytest.raises(RuntimeError):
        stage.stepper(compute=full, emit=emitted.append).run(ticket)
    assert emitted[-1].why == (
        "RuntimeError: An error occurred while calling o1620.getResult. : org.apache.spark.SparkException:"
        " Exception thrown in awaitResult: Caused by: java.io.IOException: No space left on device"
    )
    abandoned = stage.run(attempts.read, stage.keys, emitted[-1].attempt)
    assert isinstance(abandoned, Abandoned)
    assert abandoned.why == emitted[-1].why


def test_a_run_waits_while_another_process_is_the_coordinator_and_counts_no_failure(stage: StepStage) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.declare(spec("g", a))
    stage.settle(node, "g")
    stage.publish(a)
    lease = stage.run(records.become_coordinator, stage.keys, P, "round", 60_000_000)
    assert stage.step(node, "g").commits == 0
    row = stage.row(group_id(P, "g"))
    assert isinstance(row, Scheduled)
    assert row.tally.failures == 0
    stage.run(records.resign_coordinator, stage.keys, P, lease)
    assert stage.step(node, "g") is None  # not at once
    stage.clock.advance(1)
    assert stage.step(node, "g").jobs == 1


def test_a_stopped_run_leaves_the_group_at_a_step_and_the_next_run_continues(stage: StepStage) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.publish(a)
    stage.declare(spec("g", a), spec("h", a))
    for _ in range(3):
        stage.settle(node, "g")
        stage.publish(a)
    stops = iter([False, True])
    ticket = stage.begin(node, "h")
    assert stage.stepper().run(ticket, lambda: next(stops)).step == 1
    stage.settle(node, "g", "h")
    assert stage.group("h").step == stage.group("g").step == 4


# --- declarations


@pytest.mark.rule("DBSP-34")
def test_a_new_group_is_built_in_one_step_and_has_no_history(stage: StepStage) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.declare(spec("g", a))
    for _ in range(4):
        stage.publish(a)
        stage.settle(node, "g")
    stage.declare(spec("g", a), spec("h", a), circuit="2")
    stage.settle(node, "g", "h")
    batch, _ = next(computed for computed in stage.computed if computed[0].spec.name == "h")
    assert (batch.after, batch.step, batch.positions[a], batch.stale) == (5, 6, 4, frozenset({"h"}))
    assert stage.group("h").step == stage.group("g").step == 6
    assert not stage.rows_of_group("g")[-1].outputs  # g has no work in the first step of h


def test_declaring_the_same_again_changes_nothing(stage: StepStage) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.publish(a)
    stage.declare(spec("g", a))
    stage.settle(node, "g")
    before = everything(stage)
    stage.declare(spec("g", a))
    assert everything(stage) == before


@pytest.mark.parametrize("change", ["code", "another dataset", "another view"])
def test_the_next_step_rebuilds_what_is_declared_differently(stage: StepStage, change: str) -> None:
    a, b, node = stage.dataset("a"), stage.dataset("b"), stage.node("n")
    stage.declare(spec("g", a), spec("other", b))
    stage.publish(b)
    stage.settle(node, "g", "other")
    stage.publish(a)
    new = {
        "code": spec("g", a, code="new"),
        "another dataset": spec("g", a, b, code="new"),
        "another view": GroupSpec(
            name="g",
            views=(ViewSpec(name="g", code="c", reads=(a,)), ViewSpec(name="x", code="c", reads=(b,))),
        ),
    }[change]
    stage.declare(new, spec("other", b), circuit="2")
    stage.settle(node, "g", "other")
    last = [batch for batch, _ in stage.computed if batch.spec == new]
    assert [batch.stale for batch in last] == [frozenset({"x" if change == "another view" else "g"})]
    assert last[0].positions == {a: 1} if change == "code" else {a: 1, b: 1}
    assert stage.group("g").stale == frozenset()
    stage.publish(b)
    stage.settle(node, "g", "other")
    assert stage.computed[-1][0].spec.name in ("g", "other")


@pytest.mark.rule("DBSP-5")
def test_a_group_that_is_declared_differently_is_rebuilt_although_the_circuit_has_its_old_version(
    stage: StepStage,
) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.declare(spec("g", a))
    stage.settle(node, "g")
    new = spec("g", a, code="new")
    stage.declare(new)
    stage.settle(node, "g")
    assert [batch.stale for batch, _ in stage.computed if batch.spec == new] == [{"g"}]
    assert stage.group("g").stale == frozenset()


def test_a_removed_group_commits_nothing_and_a_later_one_of_its_name_is_new(stage: StepStage) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.declare(spec("g", a), spec("h", a))
    stage.settle(node, "g", "h")
    stage.publish(a)
    ticket = stage.begin(node, "g")

    def removed_meanwhile(batch: commits.StepBatch, attempt: str) -> tuple[commits.StepOutput, ...]:
        assert stage.run(groups.remove, stage.keys, P, "g")
        return outputs(batch, attempt)

    with pytest.raises(LeaseLost):
        stage.stepper(compute=removed_meanwhile).run(ticket)
    assert not stage.run(groups.remove, stage.keys, P, "g")
    stage.scan = False  # the steps that the removed group published have no rows any more
    stage.declare(spec("h", a), circuit="2")
    stage.settle(node, "h")
    stage.declare(spec("g", a), spec("h", a), circuit="3")
    stage.settle(node, "g", "h")
    batch, _ = stage.computed[-1]
    assert (batch.spec.name, batch.after, batch.positions[a]) == ("g", batch.step - 1, 1)
    assert [row.step for row in stage.rows_of_group("g")] == [batch.step]


def test_a_group_with_a_cadence_waits_between_its_runs(stage: StepStage) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    stage.declare(spec("g", a, cadence_us=60_000_000))
    stage.settle(node, "g")
    for _ in range(3):
        stage.publish(a)
        assert stage.step(node, "g") is None
    stage.clock.advance(60)
    node = stage.node("n")
    assert stage.step(node, "g").jobs == 1  # three appends are one step
    assert stage.records()[-1].ranges == (PositionRange(a, 0, 3),)


@pytest.mark.parametrize(
    "bad",
    [
        GroupSpec(name="g", views=()),
        GroupSpec(name="g", views=(ViewSpec(name="v", code="c"),) * 2),
        GroupSpec(name="g", views=tuple(ViewSpec(name=f"{n}", code="c") for n in range(MOST_VIEWS + 1))),
        GroupSpec(name="g", views=(ViewSpec(name="v", code="c", uses=("later",)),)),
        GroupSpec(
            name="g",
            views=(ViewSpec(name="v", code="c", reads=tuple(DatasetId(f"{n}") for n in range(100))),),
        ),
    ],
)
def test_invalid_groups_are_refused(stage: StepStage, bad: GroupSpec) -> None:
    with pytest.raises(UsageError):
        stage.run(groups.declare, stage.keys, P, bad)


def test_the_largest_group_commits_within_the_limits(stage: StepStage) -> None:
    stage.scan = False
    node = stage.node("n")
    bases = [stage.dataset(f"{number:0140}", version="v" * 20) for number in range(99)]
    views = tuple(
        ViewSpec(name=f"{number:0180}", code="c" * 32, reads=tuple(bases[number * 2 : number * 2 + 2]))
        for number in range(MOST_VIEWS)
    )
    stage.declare(GroupSpec(name="g" * 100, views=views))
    for dataset in bases:
        stage.publish(dataset)
    stage.settle(node, "g" * 100)
    assert stage.group("g" * 100).step > 1
    stage.check()
    wide = [msgspec.structs.replace(view, reads=tuple(bases)) for view in views]
    with pytest.raises(UsageError, match="bytes"):
        stage.run(groups.declare, stage.keys, P, GroupSpec(name="wide", views=tuple(wide)))


def test_unknown_groups_and_tickets_of_others_are_refused(stage: StepStage) -> None:
    a, node = stage.dataset("a"), stage.node("n")
    with pytest.raises(GroupUnknown):
        stage.group("nobody")
    stage.subscribe("arc", a)
    stage.publish(a)
    stage.page_all()
    with pytest.raises(UsageError):
        stage.stepper().run(stage.start(node, "arc"))


def test_groups_subscribe_to_the_step_log(stage: StepStage) -> None:
    a = stage.dataset("a")
    stage.declare(spec("g", a))
    terms = stage.row(group_id(P, "g")).tally.terms
    assert terms.sources == (step_log(P), a)
    with pytest.raises(UsageError):
        stage.run(lambda tx: runs.events.advance(tx, stage.lots, step_log(P), 0))


# --- crashes


def run_with_a_crash(point: str | None, visit: int) -> tuple[StepStage, bool]:
    """Run a fixed history of publications and runs, and kill the process at one visit of a crash point."""
    stage = StepStage()
    a, b = stage.dataset("a"), stage.dataset("b")
    node_numbers = iter(range(1, 1000))
    died = False

    def act(*names: str) -> None:
        nonlocal died
        node = stage.node(f"n{next(node_numbers)}")
        for _ in range(3):
            try:
                stage.settle(node, *names)
                break
            except crash.Crashed:
                died = True
                stage.check()
                stage.kill(node)
                for name in names:
                    stage.look(group_id(P, name))
                node = stage.node(f"n{next(node_numbers)}")
        stage.kill(node)

    def history() -> None:
        stage.publish(a)
        stage.declare(spec("g", a), spec("h", a, b))
        act("g", "h")
        stage.publish(b)
        stage.publish(a)
        act("g", "h")
        stage.publish(b)
        act("h", "g")

    if point is None:
        history()
    else:
        with crash.armed(point, visit=visit):
            history()
    return stage, died


def visible_state(stage: StepStage) -> list:
    """Return the state that readers can see, without the names of attempts."""
    return [
        [
            [
                (row.after, row.step, [output.view for output in row.outputs])
                for row in stage.rows_of_group(name)
            ]
            for name in ("g", "h")
        ],
        [(record.number, record.ranges) for record in stage.records()],
        [stage.head(group_source(P, name)) for name in ("g", "h")],
    ]


def test_a_crash_before_or_after_any_durable_write_changes_nothing_visible() -> None:
    with crash.recorded() as visited:
        calm, _ = run_with_a_crash(None, 0)
    points = {point for point in visited if point.startswith("views.")}
    assert {"views.cut.before", "views.open.after", "views.commit.before", "views.pass.after"} <= points
    for point in sorted(points):
        for visit in (1, 2, 3):
            stage, died = run_with_a_crash(point, visit)
            assert visible_state(stage) == visible_state(calm), (point, visit)
            if not died:
                break
        assert visit > 1 or died
