"""Stale holders: what they write after losing their lease changes nothing."""

from collections.abc import Callable

import pytest

from tests.unit.arcs_stage import ArcStage, lapse
from tests.unit.lots_stage import SECOND_US
from tidemill.arcs.work import LotEnd
from tidemill.errors import AttemptEnded, LeaseLost
from tidemill.objects.memory import MemoryObjects
from tidemill.objects.port import Body, ObjectInfo
from tidemill.publish import attempts
from tidemill.publish.attempts import Abandoned
from tidemill.publish.manifests import attempt_in

DAY_S = 24 * 3600


def clean_for_a_day(stage: ArcStage) -> None:
    cleaner = stage.cleaner(stage.living("cleaner"))
    for _ in range(10):
        cleaner.clean()
        stage.clock.advance(DAY_S / 8)
    cleaner.clean()


@pytest.mark.rule("LOT-17")
@pytest.mark.rule("LOT-19")
@pytest.mark.parametrize("forgetful", [False, True])
def test_a_stale_part_shares_no_folder_with_its_successor(forgetful):
    stage = ArcStage()
    spec = stage.clean(max_concurrent=2)
    stage.parts.memory = None if forgetful else {}
    lot = stage.append([1, 2, 3], [4, 5])
    by_others: set[str] = set()

    def successor(task) -> None:
        """While the part is before its last write, its node's time runs out and another node publishes."""
        own_keys = set(stage.keys_under("data/"))
        lapse(stage)
        assert stage.worker(stage.living("second")).work(spec, lot).ended is LotEnd.COMPLETE
        by_others.update(set(stage.keys_under("data/")) - own_keys)
        stage.cleaner(stage.living("cleaner")).clean()  # once, before the zombie goes on

    stage.parts.between = successor
    zombie = stage.worker(stage.node("first"))
    with pytest.raises((LeaseLost, AttemptEnded)):
        zombie.work(spec, lot)
    late = {key for key in stage.keys_under("data/") if "name=orders" not in key} - by_others
    assert late  # it did write
    folders = [{key.split("/attempt=")[1].split("/")[0] for key in keys} for keys in (late, by_others)]
    assert not folders[0] & folders[1]
    assert {name.split(".")[0] for name in folders[0]} == {name.split(".")[0] for name in folders[1]}
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4, 5]
    assert [event.position for event in stage.events(stage.cleaned)] == [1]
    assert stage.orphans() != []
    clean_for_a_day(stage)
    assert stage.orphans() == []
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4, 5]
    assert stage.rows(stage.odd, lot) == [1, 3, 5]


class LateObjects(MemoryObjects):
    """Objects where one put takes long: something happens before it lands."""

    before: tuple[str, Callable[[], None]] | None = None

    def put(self, key: str, body: Body) -> ObjectInfo:
        if self.before is not None and self.before[0] in key:
            (_, happens), self.before = self.before, None
            happens()
        return super().put(key, body)


@pytest.mark.rule("LOT-19")
@pytest.mark.rule("LOT-20")
@pytest.mark.parametrize("name", ["state=partial", "part=", "manifest-root.json"])
def test_a_manifest_that_lands_after_its_attempt_was_abandoned_is_no_lot_and_is_swept(name):
    stage = ArcStage()
    stage.objects = stage.parts.objects = objects = LateObjects(stage.clock)
    stage.manifests.objects = objects
    spec = stage.clean()
    lot = stage.append([1, 2], [3])
    abandoned: list[str] = []

    def give_up() -> None:
        """The node's time runs out, the cleaner gives its attempt up and sweeps what is there."""
        lapse(stage)
        (open_id,) = stage.run(attempts.open_ids, stage.keys.publish)
        stage.cleaner(stage.living("cleaner"), grace_s=0).clean()
        assert isinstance(stage.run(attempts.read, stage.keys.publish, open_id), Abandoned)
        abandoned.append(open_id)

    objects.before = (name, give_up)
    with pytest.raises((LeaseLost, AttemptEnded)):
        stage.worker(stage.node("slow")).work(spec, lot)
    landed = [key for key in stage.keys_under("datasets/") if attempt_in(key) == abandoned[0]]
    assert any(name in key for key in landed)
    assert stage.events(stage.cleaned) == []
    assert stage.rows(stage.cleaned, lot) is None

    assert stage.worker(stage.living("next")).work(spec, lot).ended is LotEnd.COMPLETE
    clean_for_a_day(stage)
    assert stage.orphans() == []
    assert [key for key in stage.keys_under("datasets/") if attempt_in(key) == abandoned[0]] == []
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3]
    assert len(stage.events(stage.odd)) == 1


@pytest.mark.rule("LOT-20")
def test_of_two_adopters_of_one_attempt_one_publishes_and_the_other_changes_nothing():
    """The first adopter is paused in a part until it is over, and a second one has adopted from it."""
    stage = ArcStage()
    spec = stage.clean(max_concurrent=3)
    stage.parts.memory = None
    lot = stage.append([1, 2], [3, 4])
    outcomes = []

    def die(task) -> None:
        raise Gone

    stage.parts.between = die
    with pytest.raises(Gone):
        stage.worker(stage.node("dead")).work(spec, lot)
    lapse(stage)

    def second(task) -> None:
        stage.clock.advance(11)
        outcomes.append(stage.worker(stage.living("second")).work(spec, lot))

    stage.parts.between = second
    with pytest.raises((LeaseLost, AttemptEnded)):
        stage.worker(stage.node("first", 10 * SECOND_US)).work(spec, lot)
    assert [outcome.ended for outcome in outcomes] == [LotEnd.COMPLETE]
    (event,) = stage.events(stage.cleaned)
    assert (
        event.attempt == outcomes[0].attempt == stage.parts.ran[0][0]
    )  # the one attempt, from the dead node
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4]
    root = stage.manifests.load(stage.rows_of(stage.cleaned)[0].manifest)
    assert all(".3/part=" in key for key in root.parts)  # the epoch of the second adopter
    clean_for_a_day(stage)
    assert stage.orphans() == []
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4]


def test_two_cleaners_and_an_adopter_at_the_same_attempt():
    """Abandoning and adopting conflict in the store: whoever is second finds that it is over."""
    stage = ArcStage()
    spec = stage.clean()
    lot = stage.append([1, 2], [3, 4])

    def abandoned_meanwhile(task) -> None:
        lapse(stage)
        cleaners = [stage.cleaner(stage.living(name), grace_s=0, keep_s=0) for name in ("c", "d")]
        for _ in range(2):
            for cleaner in cleaners:
                cleaner.clean()

    stage.parts.between = abandoned_meanwhile
    with pytest.raises((LeaseLost, AttemptEnded)):
        stage.worker(stage.node("slow")).work(spec, lot)
    outcome = stage.worker(stage.living("next")).work(spec, lot)
    assert outcome.ended is LotEnd.COMPLETE
    assert stage.rows(stage.cleaned, lot) == [1, 2, 3, 4]


class Gone(BaseException):
    pass
