"""Attempts: open until published or abandoned, adopted by one node, fenced against stale holders."""

import msgspec
import pytest

from tests.unit.lots_stage import SECOND_US, Stage
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import AttemptEnded, AttemptUnknown, IllegalTransition, LeaseLost, UsageError
from tidemill.lots import layout
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import InputLot
from tidemill.publish import attempts
from tidemill.publish.adoption import open_or_adopt
from tidemill.publish.attempts import PARTS_PAGE, Abandoned, Draft, Hold, Open, Target
from tidemill.publish.keys import PublishKeys
from tidemill.publish.states import ATTEMPT, AttemptEdge, AttemptState, step

KEYS = PublishKeys("c")
SINK = DatasetId("sink")
INPUT = InputLot(dataset="orders", version="1", lot="A00000000000000001", generation=0)
DRAFT = Draft(
    id="t1",
    author="clean",
    lot="A00000000000000001",
    targets=(Target(SINK, "A00000000000000001"),),
    inputs=(INPUT,),
    code="c0de",
)


def opened(stage: Stage, node: Node, **changes: object) -> Hold:
    return stage.run(attempts.begin, KEYS, node, msgspec.structs.replace(DRAFT, **changes))


def row_of(stage: Stage, attempt: str = "t1") -> attempts.AnyAttempt:
    return stage.run(attempts.read, KEYS, attempt)


def adopt(stage: Stage, node: Node, expected: Open, inputs=(INPUT,), code="c0de") -> Hold | None:
    return stage.run(attempts.adopt, KEYS, node, expected, inputs, code)


def test_every_state_has_the_edges_of_the_table_and_no_others():
    for state in AttemptState:
        for edge in AttemptEdge:
            if edge in ATTEMPT[state]:
                assert step(state, edge) is ATTEMPT[state][edge]
            else:
                with pytest.raises(IllegalTransition):
                    step(state, edge)
    assert all(not ATTEMPT[state] for state in (AttemptState.PUBLISHED, AttemptState.ABANDONED))


def test_an_attempt_names_its_targets_before_anything_is_written():
    stage = Stage()
    hold = opened(stage, stage.node("n"))
    row = row_of(stage)
    assert isinstance(row, Open)
    assert row.draft == DRAFT == hold.draft
    assert stage.run(attempts.attempts_at, KEYS, "clean", DRAFT.lot, 0) == [row]
    assert stage.run(attempts.attempts_at, KEYS, "clean", DRAFT.lot, 1) == []
    assert stage.run(attempts.open_ids, KEYS) == ["t1"]
    with pytest.raises(UsageError):
        opened(stage, hold.node)
    for targets in ((), DRAFT.targets * 2):
        with pytest.raises(UsageError):
            opened(stage, hold.node, id="t2", targets=targets)
    with pytest.raises(UsageError):
        opened(stage, hold.node, id="t2", inputs=(INPUT,) * 301)
    with pytest.raises(AttemptUnknown):
        row_of(stage, "t2")


def test_the_list_of_parts_is_stored_in_pages_and_an_incomplete_list_is_written_again():
    stage = Stage()
    hold = opened(stage, stage.node("n"))
    names = [f"day={n}" for n in range(PARTS_PAGE + 5)]
    stage.run(attempts.list_parts, KEYS, hold, 0, [f"other={n}" for n in range(PARTS_PAGE)], last=False)
    assert row_of(stage).parts is None
    stage.run(attempts.list_parts, KEYS, hold, 0, names[:3], last=False)
    assert stage.run(attempts.parts, KEYS, "t1") == names[:3]
    stage.run(attempts.list_parts, KEYS, hold, 3, names[3:300], last=False)
    stage.run(attempts.list_parts, KEYS, hold, 300, names[300:], last=True)
    assert stage.writes <= PARTS_PAGE + 2
    assert row_of(stage).parts == len(names)
    assert stage.run(attempts.parts, KEYS, "t1") + stage.run(attempts.parts, KEYS, "t1", PARTS_PAGE) == names
    for page in ([], names):
        with pytest.raises(UsageError):
            stage.run(attempts.list_parts, KEYS, hold, len(names), page, last=True)


def test_of_two_adopters_one_wins_and_the_one_before_is_refused():
    stage = Stage()
    dead = stage.node("dead", 10 * SECOND_US)
    zombie = opened(stage, dead)
    expected = row_of(stage)
    first, other = stage.node("one", 99 * SECOND_US), stage.node("other", 99 * SECOND_US)
    assert adopt(stage, first, expected) is None  # its node is alive
    stage.clock.advance(11)
    hold = adopt(stage, first, expected)
    assert hold is not None
    assert adopt(stage, other, expected) is None
    assert adopt(stage, other, row_of(stage)) is None  # the adopter is alive
    stage.run(attempts.check, KEYS, hold)
    assert adopt(stage, first, expected) is None  # it has adopted the attempt since it read this row
    back = stage.node("dead")
    for late in (zombie, msgspec.structs.replace(zombie, node=back)):
        with pytest.raises(LeaseLost):
            stage.run(attempts.check, KEYS, late)
        with pytest.raises(LeaseLost):
            stage.run(attempts.abandon, KEYS, late, "")


def test_a_node_adopts_the_attempt_of_its_earlier_start_which_is_then_refused():
    stage = Stage()
    node = stage.node("n")
    first = opened(stage, node)
    second = adopt(stage, node, row_of(stage))
    assert second is not None
    with pytest.raises(LeaseLost):
        stage.run(attempts.check, KEYS, first)
    stage.run(attempts.check, KEYS, second)


@pytest.mark.parametrize(
    ("inputs", "code"),
    [((INPUT,), "other"), ((), "c0de"), ((msgspec.structs.replace(INPUT, generation=1),), "c0de")],
)
def test_an_attempt_with_other_inputs_or_other_code_is_not_adopted(inputs, code):
    stage = Stage()
    node = stage.node("n")
    opened(stage, node)
    stage.kill(node)
    assert adopt(stage, stage.node("m"), row_of(stage), inputs, code) is None


def test_an_abandoned_attempt_cannot_be_published_and_is_swept_until_its_rows_are_deleted():
    stage = Stage()
    node = stage.node("n", 1000 * SECOND_US)
    hold = opened(stage, node)
    expected = row_of(stage)
    names = [f"p{n}" for n in range(5)]
    stage.run(attempts.list_parts, KEYS, hold, 0, names, last=True)
    with pytest.raises(UsageError):
        stage.run(attempts.forget, KEYS, "t1")
    gone = stage.run(attempts.abandon, KEYS, hold, "the check failed")
    assert isinstance(gone, Abandoned)
    assert stage.run(attempts.to_sweep, KEYS) == [gone]
    assert stage.run(attempts.open_ids, KEYS) == []
    assert adopt(stage, node, expected) is None
    for again in (attempts.abandon, attempts.check):
        with pytest.raises(AttemptEnded):
            stage.run(again, KEYS, hold, *(("",) if again is attempts.abandon else ()))
    pages = 1
    while stage.run(attempts.forget, KEYS, "t1", 2):
        assert stage.writes == 1
        pages += 1
    assert pages == 3
    left = stage.store.run(
        lambda tx: [row for row in tx.range(b"\x02c\x00", b"\x02c\xff") if b"t1" in row.key]
    )
    assert left == []


@pytest.mark.rule("LOT-19")
def test_of_two_cleaners_that_swept_an_attempt_one_records_it():
    stage = Stage()
    ended = stage.run(attempts.abandon, KEYS, opened(stage, stage.node("n")), "the check failed")
    assert stage.run(attempts.sweep_again, KEYS, ended, ended.at + 10)
    assert not stage.run(attempts.sweep_again, KEYS, ended, ended.at + 20)
    assert row_of(stage).sweep_at == ended.at + 10
    assert len(stage.run(lambda tx: tx.range(*KEYS.sweep.all()))) == 1


@pytest.mark.rule("LOT-19", "LOT-20")
def test_an_attempt_of_an_earlier_start_of_a_node_is_left_although_the_node_is_in_the_list():
    stage = Stage()
    node, other = stage.node("n", 10**12), stage.node("m", 10**12)
    opened(stage, node)
    assert stage.run(attempts.abandon_left, KEYS, "t1", "", other) is None  # its node is alive
    stage.store.run(lambda tx: nodes.join(tx, KEYS.cluster, node, 10**12))
    assert stage.run(attempts.abandon_left, KEYS, "t1", "", other) is not None


def test_the_cleaner_abandons_only_attempts_of_dead_nodes_after_a_grace():
    stage = Stage()
    node = stage.node("n", 30 * SECOND_US)
    hold = opened(stage, node)
    grace_us = 60 * SECOND_US
    assert stage.run(attempts.abandon_lost, KEYS, "t1", 0) is None  # alive
    stage.clock.advance(31)
    assert stage.run(attempts.abandon_lost, KEYS, "t1", grace_us) is None
    stage.clock.advance(30)
    adopter = adopt(stage, stage.node("m", 5 * SECOND_US), row_of(stage))
    assert adopter is not None
    assert stage.run(attempts.abandon_lost, KEYS, "t1", grace_us) is None  # adopted
    stage.clock.advance(6)
    assert isinstance(stage.run(attempts.abandon_lost, KEYS, "t1", grace_us), Abandoned)
    stage.node("m")
    for late in (hold, adopter):
        with pytest.raises(LeaseLost):
            stage.run(attempts.check, KEYS, late)  # their nodes' entries are over


def test_a_parked_attempt_has_no_holder_and_stays_until_it_is_adopted_or_abandoned():
    stage = Stage()
    node, other = stage.node("n", 10**12), stage.node("m", 10**12)
    hold = opened(stage, node)
    assert stage.run(attempts.abandon_left, KEYS, "t1", "not theirs", other) is None
    assert stage.run(attempts.abandon_left, KEYS, "t1", "nobody's") is None
    stage.run(attempts.park, KEYS, hold)
    for step_ in (attempts.check, attempts.park):
        with pytest.raises(LeaseLost):  # whoever let go of it has let go of it
            stage.run(step_, KEYS, hold)
    stage.clock.advance(10**5)
    assert stage.run(attempts.abandon_lost, KEYS, "t1", 0) is None
    adopted = adopt(stage, other, row_of(stage))  # though its last node is alive
    assert adopted is not None
    stage.run(attempts.check, KEYS, adopted)
    stage.run(attempts.park, KEYS, adopted)
    gone = stage.run(attempts.abandon_left, KEYS, "t1", "on request")
    assert isinstance(gone, Abandoned)
    assert stage.run(attempts.abandon_left, KEYS, "t1", "again") is None


def test_a_draft_that_would_not_fit_its_row_in_the_end_is_refused_at_the_beginning():
    stage = Stage()
    node = stage.node("n")
    long = tuple(Target(DatasetId(f"{'x' * 240}{n:03}", "v" * 240), DRAFT.lot) for n in range(100))
    with pytest.raises(UsageError, match="of the inputs and sinks of"):
        opened(stage, node, targets=long)
    targets = tuple(Target(DatasetId(f"{'x' * 60}{n:03}"), DRAFT.lot) for n in range(100))
    hold = opened(stage, node, targets=targets, inputs=(INPUT,) * 300)
    keys = [
        layout.manifest_key(*target.dataset.parts, target.lot, "complete", 0, "t1.1", root=True)
        for target in targets
    ]
    assert sum(map(len, keys)) > 15_000
    published = stage.run(attempts.end_published, KEYS, hold, range(1, 101), keys)
    assert published.manifest_keys == tuple(keys)
    assert sum(map(len, published.manifests)) < 8_000
    assert row_of(stage) == published


def test_opening_adopts_equal_work_and_abandons_other_work_of_dead_nodes():
    stage = Stage()
    node, other = stage.node("n", 10**12), stage.node("m", 10**12)
    first = stage.run(open_or_adopt, KEYS, node, DRAFT, ["p", "q"])
    assert (first.adopted, first.hold.epoch) == (False, 1)
    assert stage.run(attempts.parts, KEYS, "t1") == ["p", "q"]
    again = msgspec.structs.replace(DRAFT, id="t2")
    assert stage.run(open_or_adopt, KEYS, other, again, ["p", "q"]) is None  # somebody works on it
    assert stage.run(open_or_adopt, KEYS, other, msgspec.structs.replace(again, code="x"), ["p"]) is None
    opened_again = stage.run(open_or_adopt, KEYS, node, again, ["p", "q"])
    assert (opened_again.adopted, opened_again.hold.draft.id, opened_again.hold.epoch) == (True, "t1", 2)
    stage.run(attempts.park, KEYS, opened_again.hold)
    for number, (changes, parts) in enumerate(
        [
            ({"code": "x"}, ["p", "q"]),
            ({"inputs": ()}, ["p", "q"]),
            ({"targets": (Target(DatasetId("x"), DRAFT.lot),)}, ["p", "q"]),
            ({}, ["p"]),
            ({}, ["q"]),
            ({}, ["q", "p"]),
        ]
    ):
        before = stage.run(attempts.open_ids, KEYS)
        draft = msgspec.structs.replace(DRAFT, id=f"u{number}", **changes)
        opened_now = stage.run(open_or_adopt, KEYS, node, draft, parts)
        assert not opened_now.adopted
        assert [gone.draft.id for gone in opened_now.abandoned] == before
        assert stage.run(attempts.open_ids, KEYS) == [draft.id]
    stage.kill(node)
    left = stage.run(open_or_adopt, KEYS, other, msgspec.structs.replace(DRAFT, id="v"), ["q", "p"])
    assert (left.adopted, left.hold.draft.id) == (True, "u5")


def test_a_list_of_parts_that_was_not_brought_to_its_end_is_written_by_the_adopter():
    stage = Stage()
    node = stage.node("n")
    hold = opened(stage, node)
    stage.run(attempts.list_parts, KEYS, hold, 0, ["x"], last=False)
    adopted = stage.run(open_or_adopt, KEYS, node, msgspec.structs.replace(DRAFT, id="t2"), ["p", "q"])
    assert (adopted.adopted, adopted.hold.draft.id) == (True, "t1")
    assert stage.run(attempts.parts, KEYS, "t1") == ["p", "q"]
    assert row_of(stage).parts == 2
