"""The cleaner: removes objects that no manifest lists, keeps the others, and never touches open attempts."""

import pytest

from tests.unit.arcs_stage import ArcStage, lapse
from tests.unit.attempt_publisher import AttemptPublisher
from tests.unit.lots_stage import SECOND_US
from tidemill import crash
from tidemill.lots.manifest import ManifestState
from tidemill.publish import attempts
from tidemill.publish.attempts import Abandoned, Draft, Hold, Open, Target
from tidemill.publish.cleaner import FIRST_AGAIN_S, KEEP_S, Cleaner
from tidemill.publish.events import AttemptAbandoned, AttemptCleaned
from tidemill.publish.manifests import data_start
from tidemill.scope import ATTEMPT_LETTERS

LOT = "A00000000000000001"


def next_sweep_at(stage: ArcStage) -> int | None:
    """When the next ended attempt is to be looked after (store time, µs); None when there is none."""
    page = stage.store.run(lambda tx: tx.range(*stage.keys.publish.sweep.all(), limit=1))
    return stage.keys.publish.sweep.unpack(page[0].key)[0] if page else None


def opened(stage: ArcStage, node, attempt: str = "t" * ATTEMPT_LETTERS, lot: str = LOT) -> Hold:
    targets = (Target(stage.cleaned, lot), Target(stage.odd, lot))
    return AttemptPublisher(stage.scope(node)).open(Draft(id=attempt, author="arc", lot=lot, targets=targets))


def write(stage: ArcStage, hold: Hold, place: str = ".1.1") -> list[str]:
    """Data and an intent for each sink."""
    stage.manifests.write_intents(hold)
    return [
        stage.objects.put(f"{data_start(target, hold.draft.id)}{place}/x.json", b"[1]").key
        for target in hold.draft.targets
    ]


@pytest.mark.rule("LOT-20")
@pytest.mark.rule("LOT-15")
def test_nothing_is_deleted_before_the_attempt_is_abandoned_and_then_a_removed_manifest_tells_of_it():
    stage = ArcStage()
    hold = opened(stage, stage.node("slow"))
    data = write(stage, hold)
    cleaner = stage.cleaner(stage.living("c"), grace_s=60)
    cleaner.clean()
    assert stage.keys_under("data/") == sorted(data)  # its node lives
    lapse(stage)
    cleaner.clean()
    assert stage.keys_under("data/") == sorted(data)  # within the grace somebody may adopt it
    assert isinstance(stage.run(attempts.read, stage.keys.publish, hold.draft.id), Open)
    stage.clock.advance(60)
    cleaner.clean()
    row = stage.run(attempts.read, stage.keys.publish, hold.draft.id)
    assert isinstance(row, Abandoned)
    assert stage.keys_under("data/") == []
    left = [stage.manifests.load(key) for key in stage.keys_under("datasets/")]
    assert [body.state for body in left] == [ManifestState.REMOVED] * 2
    assert all("/state=removed/" in key for key in stage.keys_under("datasets/"))
    assert left[0].comment == row.why
    assert data[0].startswith(left[0].objects[0].uri)
    assert [type(event) for event in stage.told] == [AttemptAbandoned, AttemptCleaned]
    assert stage.told[1].objects == 4


@pytest.mark.rule("LOT-19")
def test_an_abandoned_attempt_is_swept_again_until_a_day_has_passed_and_then_forgotten():
    stage = ArcStage()
    node = stage.living("n")
    hold = opened(stage, node)
    cleaner = stage.cleaner(node)
    stage.run(attempts.abandon, stage.keys.publish, hold, "no more")
    began = stage.clock.monotonic()
    swept: list[float] = []
    while True:
        write(stage, hold, f".{len(swept)}.1")  # a zombie goes on and on
        cleaner.clean()
        assert stage.keys_under("data/") == []
        swept.append(stage.clock.monotonic() - began)
        at = next_sweep_at(stage)
        if at is None:
            break
        records = stage.keys_under("datasets/")
        assert [stage.manifests.load(key).state for key in records] == [ManifestState.REMOVED] * 2
        stage.clock.advance(at / SECOND_US - stage.clock.monotonic())
    assert swept[0] == 0
    assert swept[1] == FIRST_AGAIN_S
    assert swept[-1] == KEEP_S
    assert len(swept) < 10
    assert stage.store.run(lambda tx: tx.get(stage.keys.publish.attempt[hold.draft.id])) is None
    assert stage.keys_under("datasets/") == []


@pytest.mark.rule("LOT-19")
@pytest.mark.parametrize("kind", ["abandoned", "published"])
def test_an_attempt_whose_application_is_gone_is_swept_once_and_its_other_data_is_dropped(kind):
    stage = ArcStage()
    node = stage.living("n")
    gone, dropped = set(), []
    cleaner = stage.cleaner(node, gone=lambda draft: draft.id in gone, drop=lambda d: dropped.append(d.id))
    if kind == "abandoned":
        attempt = opened(stage, node).draft.id
        stage.run(attempts.abandon_left, stage.keys.publish, attempt, "why", node)
    else:
        lot = stage.append([1, 2])
        attempt = stage.worker(node).work(stage.clean(), lot).attempt
    cleaner.clean()
    assert dropped.count(attempt) == 1
    assert next_sweep_at(stage) is not None
    gone.update(attempt.draft.id for attempt in all_ended(stage))
    stage.clock.advance(FIRST_AGAIN_S)
    assert not cleaner.clean()
    assert dropped.count(attempt) == 2
    assert next_sweep_at(stage) is None
    assert stage.orphans() == []


def all_ended(stage: ArcStage) -> list:
    return [
        row
        for row in stage.store.run(
            lambda tx: [
                attempts.read(tx, stage.keys.publish, str(stage.keys.publish.attempt.unpack(row.key)[0]))
                for row in tx.range(*stage.keys.publish.attempt.all())
            ]
        )
        if not isinstance(row, Open)
    ]


@pytest.mark.rule("LOT-19")
def test_only_unlisted_objects_of_a_published_attempt_are_removed():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living("n")
    lot, other = stage.append([1, 2], [3, 4]), stage.append([5])
    worker = stage.worker(node)
    stage.parts.failing[3] = 2
    worker.work(spec, lot)
    worker.work(spec, lot)
    outcome = worker.work(spec, lot)
    second = worker.work(spec, other)
    before = stage.keys_under("")
    stage.objects.put(f"{data_start(Target(stage.odd, lot), outcome.attempt)}.zombie.9/late.json", b"[]")
    near = (
        f"{data_start(Target(stage.odd, lot), outcome.attempt)}0/of-another.json"  # an id that begins alike
    )
    stage.objects.put(near, b"[]")
    cleaner = stage.cleaner(node)
    cleaner.clean()
    after = set(stage.keys_under(""))
    assert near in after
    stage.objects.delete(near)
    removed = set(before) - after
    assert removed
    assert all("/state=partial/" in key or outcome.attempt in key for key in removed)
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4]
    assert stage.rows(stage.cleaned, other) == [5]
    assert {second.attempt, outcome.attempt} == {event.attempt for event in stage.events(stage.cleaned)}
    stage.clock.advance(KEEP_S)
    cleaner.clean()
    assert stage.orphans() == []
    assert stage.rows(stage.odd, lot) == [1, 3]


def test_a_published_attempt_keeps_its_objects_if_its_manifest_is_unreadable():
    stage = ArcStage()
    node = stage.living("n")
    lot = stage.append([1, 2], [3, 4])
    stage.worker(node).work(stage.clean(), lot)
    row = stage.rows_of(stage.cleaned)[0]
    part = stage.manifests.load(row.manifest).parts[0]
    body, _ = stage.objects.get(part)
    stage.objects.delete(part)
    before = stage.keys_under("data/")
    cleaner = stage.cleaner(node)
    cleaner.clean()
    assert stage.keys_under("data/") == before
    stage.objects.put(part, body)
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4]


def test_a_sink_that_was_left_out_keeps_nothing():
    stage = ArcStage()
    node = stage.living("n")
    publisher = AttemptPublisher(stage.scope(node))
    targets = (Target(stage.cleaned, LOT), Target(stage.odd, LOT, optional=True))
    hold = publisher.open(Draft(id="t" * ATTEMPT_LETTERS, author="source", lot=LOT, targets=targets))
    write(stage, hold)
    rows = stage.manifests.finish(hold, [], {})
    assert [row.dataset for row in rows] == [stage.cleaned]
    publisher.publish(hold, rows)
    stage.cleaner(node, keep_s=0).clean()
    assert stage.keys_under("data/") == []
    assert [key for key in stage.keys_under("datasets/") if "name=odd" in key] == []
    assert stage.orphans() == []


def test_many_open_attempts_are_looked_at_page_by_page_round_after_round():
    stage = ArcStage(scan=False)
    dead = stage.node("dead", 1)
    for n in range(7):
        opened(stage, dead, f"{n:026}", f"A{n:017}")
    stage.clock.advance(1)
    cleaner = stage.cleaner(stage.living("c"), grace_s=0, keep_s=0)
    rounds = 0
    while cleaner.clean(limit=3):
        rounds += 1
    assert rounds >= 2
    cleaner.clean()
    assert stage.orphans() == []
    assert isinstance(cleaner, Cleaner)


def test_ids_of_attempts_have_one_length_and_sort_as_time_does():
    stage = ArcStage()
    ids = []
    for _ in range(50):
        ids.append(stage.scope().new_attempt())
        stage.clock.advance(0.01)
    assert {len(attempt) for attempt in ids} == {ATTEMPT_LETTERS}
    assert sorted(ids) == ids
    assert len({stage.scope().new_attempt() for _ in range(100)}) == 100


def rows_of_attempts(stage: ArcStage) -> list[bytes]:
    keys = stage.keys.publish
    spaces = (keys.attempt, keys.part, keys.of, keys.open, keys.sweep)
    return [row.key for space in spaces for row in stage.store.run(lambda tx, s=space: tx.range(*s.all()))]


@pytest.mark.rule("LOT-19")
def test_the_rows_of_a_published_attempt_are_deleted_after_its_last_sweep():
    stage = ArcStage()
    spec, node = stage.clean(), stage.living("n")
    lots = [stage.append([1, 2], [3, 4]) for _ in range(3)]
    worker = stage.worker(node)
    attempts_of = [worker.work(spec, lot).attempt for lot in lots]
    assert all(attempts_of)
    assert rows_of_attempts(stage)
    before, objects = stage.table(stage.cleaned), set(stage.keys_under("data/"))
    cleaner = stage.cleaner(node)
    while cleaner.clean():
        pass
    assert rows_of_attempts(stage), "a stale holder may still write"
    while (at := next_sweep_at(stage)) is not None:
        stage.clock.advance(max(0.0, at / SECOND_US - stage.clock.monotonic()))
        cleaner.clean()
    assert rows_of_attempts(stage) == []
    assert stage.table(stage.cleaned) == before
    assert set(stage.keys_under("data/")) == objects
    again = stage.append([5])
    assert worker.work(spec, again).attempt
    assert stage.table(stage.cleaned).keys() > before.keys()


def test_the_rows_that_an_earlier_release_kept_are_deleted_too():
    stage = ArcStage()
    node = stage.living("n")
    for _ in range(7):
        stage.append([1])
    keys = stage.keys.publish
    rows = all_ended(stage)
    for row in rows:  # an earlier release ended the sweeps of a published attempt, and kept its rows
        stage.run(attempts.sweep_again, keys, row, None)
    cleaner = stage.cleaner(node)
    cleaner.clean()
    assert len(all_ended(stage)) == len(rows), "too young"
    stage.clock.advance(KEEP_S + 1)
    cleaner = stage.cleaner(stage.living("n"))
    while cleaner.clean(limit=2):
        pass
    assert rows_of_attempts(stage) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["publish.swept", "publish.forget"])
def test_a_cleaner_that_dies_while_it_forgets_an_attempt_leaves_nothing_after_the_next(step: str, when: str):
    stage = ArcStage()
    node = stage.living("n")
    stage.append([1])
    stage.clock.advance(KEEP_S if step == "publish.forget" else 0)
    with crash.armed(f"{step}.{when}"), pytest.raises(crash.Crashed):
        stage.cleaner(stage.living("n")).clean()
    stage.clock.advance(KEEP_S)
    while stage.cleaner(node).clean():
        pass
    assert rows_of_attempts(stage) == []
