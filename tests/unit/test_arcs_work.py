"""One lot of an arc: planned, made in parts, published for all sinks at once, or partial and retried."""

from contextlib import contextmanager

import msgspec
import pytest

from tests.unit.arcs_stage import ArcStage, lapse
from tests.unit.lots_stage import SECOND_US
from tidemill.arcs import declarations, lot_status
from tidemill.arcs import lots as arc_lots
from tidemill.arcs.events import ArcLotBegan, ArcLotComplete, ArcLotPartial
from tidemill.arcs.lot_sequence import LotSequence
from tidemill.arcs.lots import BeginRefused
from tidemill.arcs.parts import LotPart
from tidemill.arcs.rows import CompleteLot
from tidemill.arcs.states import ArcState
from tidemill.arcs.work import LotEnd
from tidemill.clock import SYSTEM, poll
from tidemill.errors import ArcUnknown, LeaseLost, LotConflict
from tidemill.lots.manifest import ManifestState
from tidemill.lots.states import LotState
from tidemill.publish import attempts
from tidemill.publish.attempts import Open
from tidemill.publish.events import AttemptAdopted, AttemptOpened, AttemptPublished, PartEnded
from tidemill.testing.threads import STUCK_S
from tidemill.triggers.subscriptions import Scheduled, Waiting


@pytest.mark.rule("LOT-29")
@pytest.mark.rule("LOT-27")
def test_one_run_takes_several_lots_with_a_state_each_and_publishes_every_sink_of_a_lot_at_once():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    stage.subscribe(spec.id, stage.orders)
    lots = [stage.append([1, 2, 3], [4, 5], [6]), stage.append([7]), stage.append([8], [10])]
    stage.parts.failing[7] = 1
    outcomes = stage.drain(spec, stage.worker(node), node)
    assert ended(outcomes) == [LotEnd.COMPLETE, LotEnd.PARTIAL, LotEnd.COMPLETE]
    assert stage.row(spec.id).tally.fence == 1  # one run
    assert [stage.standing(spec, lot).state for lot in lots] == ["complete", "partial", "complete"]
    assert stage.table(stage.cleaned) == {lots[0]: [1, 2, 3, 4, 5, 6], lots[2]: [8, 10]}
    assert stage.table(stage.odd) == {lots[0]: [1, 3, 5], lots[2]: []}
    assert [event.state for event in stage.events(stage.odd)] == [LotState.COMPLETE, LotState.EMPTY]
    for name in ("cleaned", "odd"):
        assert [outcome.attempt for outcome in outcomes if outcome.rows] == [
            event.attempt for event in stage.events(getattr(stage, name))
        ]
    row = stage.row(spec.id)
    assert isinstance(row, Waiting)
    assert row.tally.progress == (3,)  # progress passes what failed


@pytest.mark.rule("LOT-8")
@pytest.mark.rule("LOT-16")
def test_a_lot_has_a_manifest_for_each_part_and_sink_and_the_intent_comes_first():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    lot = stage.append([1, 2], [4], [6])
    intents = []

    def look(task) -> None:
        for sink in spec.sinks:
            prefix = f"datasets/name={sink.dataset.name}/version=1/lot={lot}/"
            (key,) = [key for key in stage.keys_under(prefix) if "/part=" not in key]
            intents.append(stage.manifests.load(key))

    stage.parts.between = look
    outcome = stage.worker(node).work(spec, lot)
    assert [intent.state for intent in intents] == [ManifestState.PARTIAL] * 2
    for intent, sink in zip(intents, spec.sinks, strict=True):
        (prefix,) = intent.objects
        written = stage.keys_under(f"data/name={sink.dataset.name}/")
        assert written
        assert all(key.startswith(prefix.uri) for key in written)
    row = stage.rows_of(stage.odd)[0]
    root = stage.manifests.load(row.manifest)
    leaves = stage.manifests.leaves(row.manifest)
    assert len(root.parts) == len(leaves) == outcome.parts == 3
    assert sorted(leaf.state for leaf in leaves) == ["complete", "empty", "empty"]
    assert root.inputs == leaves[0].inputs
    assert root.inputs[0].lot == lot
    assert root.schema_fingerprint
    assert {leaf.attempt for leaf in [*leaves, root]} == {outcome.attempt}


def test_a_lot_of_one_part_is_that_parts_manifest_and_an_empty_one_needs_no_part():
    stage = ArcStage()
    spec, worker = stage.clean(), stage.worker(stage.living())
    single, empty = stage.append([1, 2]), stage.append()
    assert worker.work(spec, single).parts == 1
    row = stage.rows_of(stage.cleaned)[0]
    assert row.manifest.endswith(".1/manifest.json")
    assert len(stage.manifests.load(row.manifest).objects) == 2
    outcome = worker.work(spec, empty)
    assert (outcome.ended, outcome.parts) == (LotEnd.COMPLETE, 0)
    assert [row.state for row in stage.rows_of(stage.cleaned)] == [LotState.COMPLETE, LotState.EMPTY]
    assert len(stage.parts.ran) == 1
    empty = stage.append()
    assert worker.work(msgspec.structs.replace(spec, on_empty="run"), empty).parts == 1
    assert stage.rows(stage.cleaned, empty) == []
    stage.cleaner(stage.living("c"), keep_s=0).clean()
    assert stage.orphans() == []


@pytest.mark.rule("LOT-10")
@pytest.mark.rule("LOT-14")
def test_a_complete_lot_is_made_again_only_for_a_new_input_or_a_replay():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    lot = stage.append([1])
    worker = stage.worker(node)
    assert worker.work(spec, lot).ended is LotEnd.COMPLETE
    assert worker.work(spec, lot).ended is LotEnd.DONE
    assert stage.worker(stage.living("m")).work(stage.clean(code="v2"), lot).ended is LotEnd.DONE
    assert len(stage.parts.ran) == len(stage.events(stage.cleaned)) == 1
    stage.correct(lot, 1, [2, 3])
    again = worker.work(spec, lot)
    assert (again.ended, again.generation) == (LotEnd.COMPLETE, 1)
    assert stage.rows(stage.cleaned, lot) == [2, 3]
    assert worker.work(spec, lot).ended is LotEnd.DONE
    replayed = worker.work(stage.clean(code="v2"), lot, replay=True)
    assert (replayed.ended, replayed.generation) == (LotEnd.COMPLETE, 2)
    assert stage.rows(stage.cleaned, lot) == [20, 30]
    assert [event.generation for event in stage.events(stage.cleaned)] == [0, 1, 2]


@pytest.mark.rule("LOT-9")
def test_no_other_node_runs_a_running_lot_until_the_lease_of_its_node_is_over():
    stage = ArcStage()
    spec = stage.clean(max_concurrent=5)
    first, second = stage.node("first", 10 * SECOND_US), stage.living("second")
    lot = stage.append([1, 2])
    outcomes = []

    def other(task) -> None:
        outcomes.append(stage.worker(second).work(spec, lot).ended)
        outcomes.append(slow.work(spec, lot).ended)  # another thread of the same node
        assert stage.run(lot_status.stale, stage.keys)[0] == []
        stage.clock.advance(11)
        (left,) = stage.run(lot_status.stale, stage.keys)[0]
        assert (left.arc, left.lot, left.state) == (spec.id, lot, ArcState.RUNNING)
        outcomes.append(stage.worker(second).work(spec, lot).ended)

    slow = stage.worker(first)
    stage.parts.between = other
    with pytest.raises(LeaseLost):
        slow.work(spec, lot)
    assert outcomes == [LotEnd.ELSEWHERE, LotEnd.ELSEWHERE, LotEnd.COMPLETE]
    assert len(stage.events(stage.cleaned)) == 1
    row = stage.standing(spec, lot).row
    assert isinstance(row, CompleteLot)
    assert row.tries == 1


@pytest.mark.rule("LOT-14")
def test_no_more_lots_are_worked_on_at_once_than_the_arc_may_on_all_nodes_together():
    stage = ArcStage()
    spec = stage.clean(max_concurrent=2)
    lots = [stage.append([n]) for n in range(4)]
    first, second = (stage.worker(stage.living(name)) for name in ("one", "two"))
    ends = []

    def deeper(task) -> None:
        """While the first lot is worked on, the other node begins a second one, and no third is begun."""

        def deepest(task) -> None:
            ends.append(first.work(spec, lots[2]).ended)
            ends.append(second.work(spec, lots[3]).ended)
            ends.append(first.work(stage.sum(reads=(stage.orders,)), lots[0]).ended)  # another arc

        stage.parts.between = deepest
        ends.append(second.work(spec, lots[1]).ended)

    stage.parts.between = deeper
    assert first.work(spec, lots[0]).ended is LotEnd.COMPLETE
    assert ends == [LotEnd.FULL, LotEnd.FULL, LotEnd.COMPLETE, LotEnd.COMPLETE]
    assert first.work(spec, lots[2]).ended is LotEnd.COMPLETE


def test_a_node_that_is_gone_does_not_count_for_the_limit():
    stage = ArcStage()
    spec = stage.clean()
    lots = [stage.append([n]) for n in range(2)]
    stage.parts.between = stop
    with pytest.raises(Died):
        stage.worker(stage.node("dead")).work(spec, lots[0])
    worker = stage.worker(stage.living())
    assert worker.work(spec, lots[1]).ended is LotEnd.FULL
    lapse(stage)
    assert worker.work(spec, lots[1]).ended is LotEnd.COMPLETE
    assert worker.work(spec, lots[0]).ended is LotEnd.COMPLETE


def test_a_run_that_finds_no_room_ends_early_and_starts_again_later():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    stage.subscribe(spec.id, stage.orders)
    lots = [stage.append([n]) for n in range(3)]
    worker = stage.worker(node)

    def run_it(task) -> None:
        stage.page_all()
        ticket = stage.start(stage.living("other"), spec.id)
        outcomes = stage.worker(ticket.node).run(spec, ticket)
        assert ended(outcomes) == [LotEnd.FULL]

    stage.parts.between = run_it
    assert worker.work(spec, lots[1]).ended is LotEnd.COMPLETE
    row = stage.row(spec.id)
    assert isinstance(row, Scheduled)
    assert (row.tally.progress, row.tally.failures, row.run) == ((0,), 0, None)  # nobody failed
    assert stage.due() == []
    stage.clock.advance(1)
    assert ended(stage.drain(spec, worker, node)) == [LotEnd.COMPLETE, LotEnd.DONE, LotEnd.COMPLETE]
    assert isinstance(stage.row(spec.id), Waiting)


def test_a_run_takes_a_limited_number_of_lots_and_keeps_its_progress_when_there_is_no_room():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    stage.subscribe(spec.id, stage.orders)
    lots = [stage.append([n]) for n in range(5)]

    def begin_another(event) -> None:
        if isinstance(event, ArcLotComplete) and event.lot == lots[1]:
            stage.parts.between = stop
            with pytest.raises(Died):
                stage.worker(stage.node("other")).work(spec, lots[4])

    worker = stage.worker(node, emit=begin_another)
    stage.page_all()
    assert ended(worker.run(spec, stage.start(node, spec.id), most=1)) == [LotEnd.COMPLETE]
    assert stage.row(spec.id).tally.progress == (1,)
    ticket = stage.start(node, spec.id)
    assert ended(worker.run(spec, ticket)) == [LotEnd.COMPLETE, LotEnd.FULL]
    row = stage.row(spec.id)
    assert (row.tally.progress, row.tally.failures) == ((2,), 0)
    lapse(stage)
    assert ended(stage.drain(spec, worker, node)) == [LotEnd.COMPLETE] * 3
    assert len(stage.events(stage.cleaned)) == 5


def test_a_run_that_is_stopped_keeps_its_progress_and_the_next_run_continues():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    stage.subscribe(spec.id, stage.orders)
    for n in range(3):
        stage.append([n])
    worker, stop_answers = stage.worker(node), iter([False, True])
    stage.page_all()
    outcomes = worker.run(spec, stage.start(node, spec.id), lambda: next(stop_answers, True))
    assert ended(outcomes) == [LotEnd.COMPLETE]
    row = stage.row(spec.id)
    assert isinstance(row, Scheduled)
    assert (row.tally.progress, row.tally.failures, row.run) == ((1,), 0, None)
    assert ended(stage.drain(spec, worker, node)) == [LotEnd.COMPLETE] * 2


def test_a_lot_that_begins_after_a_later_lot_has_stopped_the_run_is_not_skipped(monkeypatch):
    stage = ArcStage(scan=False)
    spec, node = stage.clean(max_concurrent=2), stage.living()
    stage.subscribe(spec.id, stage.orders)
    for n in range(2):
        stage.append([n])
    turn = LotSequence.turn

    @contextmanager
    def late_first_turn(sequence, number):
        if number == 0:
            assert poll(lambda: sequence.stopped_at is not None, SYSTEM, every_s=0.005, timeout_s=STUCK_S)
        with turn(sequence, number) as own:
            yield own

    monkeypatch.setattr(LotSequence, "turn", late_first_turn)
    worker = stage.worker(node)
    stage.page_all()
    assert worker.run(spec, stage.start(node, spec.id), lambda: True) == []
    monkeypatch.undo()
    assert stage.row(spec.id).tally.progress == (0,)
    stage.clock.advance(1)
    assert ended(stage.drain(spec, worker, node)) == [LotEnd.COMPLETE] * 2


def test_a_lot_is_partial_with_a_reason_if_another_arc_publishes_its_sink():
    stage = ArcStage()
    spec, worker = stage.clean(), stage.worker(stage.living())
    lot = stage.append([1])
    stage.add(stage.odd, lot, manifest="elsewhere")
    outcome = worker.work(spec, lot)
    assert outcome.ended is LotEnd.PARTIAL
    assert LotConflict.hint in outcome.error
    assert stage.events(stage.cleaned) == []


def test_the_steps_of_a_lot_are_reported_as_events():
    stage = ArcStage()
    spec, worker = stage.clean(), stage.worker(stage.living())
    lot = stage.append([1, 2], [3, 4])
    stage.parts.failing[3] = 1
    worker.work(spec, lot)
    kinds = [AttemptOpened, ArcLotBegan, PartEnded, PartEnded, ArcLotPartial]
    assert [type(event) for event in stage.told] == kinds
    (failed,) = [event for event in stage.told if isinstance(event, PartEnded) and event.error]
    assert failed.error == "ValueError: 3 is bad"
    stage.told.clear()
    worker.make_requested(spec, stage.ask(spec, lot))
    kinds = [AttemptAdopted, ArcLotBegan, PartEnded, AttemptPublished, ArcLotComplete]
    assert [type(event) for event in stage.told] == kinds
    assert stage.told[-2].positions == {"cleaned@1": 1, "odd@1": 1}
    assert stage.told[-1].rows == {"cleaned@1": 4, "odd@1": 2}


def test_a_declaration_is_replaced_when_the_code_changes():
    stage = ArcStage()
    assert stage.run(declarations.declare, stage.keys, stage.clean())
    assert not stage.run(declarations.declare, stage.keys, stage.clean())
    assert stage.run(declarations.declare, stage.keys, stage.clean(code="v2"))
    stage.run(declarations.declare, stage.keys, stage.sum())
    assert stage.run(declarations.read, stage.keys, "arc:shop/clean").code == "v2"
    page = stage.run(declarations.listed, stage.keys, "", 1)
    assert [spec.name for spec in page] == ["clean"]
    assert [spec.name for spec in stage.run(declarations.listed, stage.keys, page[0].id)] == ["sum"]
    with pytest.raises(ArcUnknown):
        stage.run(declarations.read, stage.keys, "arc:shop/other")


def test_begin_fail_and_renew_move_the_row_along_its_states():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living()
    lot = stage.append([1])
    current = stage.input_lot(stage.orders, lot)
    part = LotPart(name="p", inputs=())
    plan = arc_lots.LotPlan(spec=spec, lot=lot, inputs=(current,), parts=(part,))
    stale = msgspec.structs.replace(plan, inputs=(msgspec.structs.replace(current, generation=7),))
    assert stage.run(arc_lots.begin, stage.keys, node, stale, "t0") is BeginRefused.CHANGED
    began = stage.run(arc_lots.begin, stage.keys, node, plan, "t1")
    assert isinstance(began, arc_lots.BegunLot)
    row = stage.run(attempts.read, stage.keys.publish, "t1")
    assert isinstance(row, Open)
    assert (row.parts, stage.run(attempts.parts, stage.keys.publish, "t1")) == (1, ["p"])
    assert stage.run(arc_lots.begin, stage.keys, node, plan, "t2") is BeginRefused.RUNNING
    stage.run(arc_lots.fail, stage.keys, began.hold, ["p"], "why")
    with pytest.raises(LeaseLost):  # it was let go
        stage.run(arc_lots.fail, stage.keys, began.hold, [], "")
    with pytest.raises(LeaseLost):
        stage.run(arc_lots.renew, stage.keys, began, ["p"], "t3", "")
    adopted = stage.run(arc_lots.begin, stage.keys, node, plan, "t4")
    assert isinstance(adopted, arc_lots.BegunLot)
    assert (adopted.opened.adopted, adopted.hold.epoch, adopted.tries) == (True, 2, 2)
    other = msgspec.structs.replace(
        plan, parts=(part, LotPart(name="q", inputs=()))
    )  # another layout of its input
    stage.run(arc_lots.fail, stage.keys, adopted.hold, ["p"], "why")
    third = stage.run(arc_lots.begin, stage.keys, node, other, "t5")
    assert isinstance(third, arc_lots.BegunLot)
    assert third.hold.draft.id == "t5"
    assert [gone.draft.id for gone in third.opened.abandoned] == ["t1"]


def ended(outcomes) -> list[LotEnd]:
    return [outcome.ended for outcome in outcomes]


class Died(BaseException):
    pass


def stop(task) -> None:
    raise Died
