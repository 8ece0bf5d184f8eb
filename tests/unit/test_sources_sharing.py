"""A listing that nodes share: stretches of paths, each looked at by one node at a time."""

import itertools
import random
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.sources_stage import ORDERS, SOURCE, SourceStage, ids
from tidemill import crash
from tidemill.crash import Crashed
from tidemill.errors import BadSource, LeaseLost
from tidemill.events import Event
from tidemill.publish.parts import PartTask
from tidemill.sources import looking, stretches
from tidemill.sources.events import StretchesMade, StretchLooked, WindowPublished
from tidemill.sources.folder import folder
from tidemill.sources.stretches import Stretch
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock
from tidemill.testing.threads import STUCK_S, together


class Killed(BaseException):
    """A node is gone."""


def filled(root: Path, count: int, **policy: object) -> SourceStage:
    stage = SourceStage(root, settle_s=0, **policy)
    for number in range(count):
        (stage.root / f"{number:05}.json").write_bytes(b'{"id":%d}\n' % number)
    return stage


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches and pages of a hundred files instead of a thousand."""
    monkeypatch.setattr(stretches, "LEAST_FILES", 100)
    monkeypatch.setattr(looking, "PAGE", 100)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.integers(0, 5000), st.integers(1, 64))
def test_stretches_hold_every_path_once_and_about_equally_many(count: int, wanted: int) -> None:
    paths = [f"{number:06}" for number in range(count)]
    found, counted = stretches.cut(iter(paths), wanted)
    assert counted == count
    assert (found[0].after, found[-1].until) == ("", None)
    assert all(one.until == other.after for one, other in itertools.pairwise(found))
    sizes = [sum(1 for path in paths if _within(path, one)) for one in found]
    assert sum(sizes) == count
    assert len(found) <= min(wanted, count // stretches.LEAST_FILES + 1)
    if len(found) > 1:
        assert max(sizes) <= 1.5 * count / len(found)


def _within(path: str, one: Stretch) -> bool:
    return path > one.after and (one.until is None or path <= one.until)


@pytest.mark.rule("CLU-21")
def test_nodes_share_a_listing_and_every_file_is_taken_once(tmp_path: Path) -> None:
    """One is killed, one is stopped and goes on when the others are done, one joins late."""
    clock = FakeClock()
    store = MemoryStore(clock=clock, chance=random.Random(1))
    stage = SourceStage(tmp_path / "in", store, settle_s=0, stretches=8, max_files=10)
    stage.clock = clock
    for number in range(600):
        (stage.root / f"{number:05}.json").write_bytes(b'{"id":%d}\n' % number)
    arranged = stage.work("first")
    arranged._sharing._arrange(None)  # type: ignore[union-attr]
    others_done = threading.Event()

    def killed() -> str:
        node = stage.node("killed")
        tasks = iter(range(100))

        def die(task: PartTask) -> None:
            if next(tasks) == 3:
                stage.stage.kill(node)
                raise Killed

        work = stage.work(node, before=die)
        try:
            work.look()
            work.work()
        except Killed:
            return "killed"
        return "idle"  # the others left it nothing

    def stopped() -> str:
        node = stage.node("stopped")

        def stop(task: PartTask) -> None:
            stage.stage.kill(node)  # its lease runs out while it is stopped
            others_done.wait(STUCK_S)

        work = stage.work(node, before=stop)
        work.look()
        try:
            work.work()
        except LeaseLost:
            return "zombie"
        return "idle"

    def joins() -> str:
        stage.run("joiner")
        others_done.set()
        return "joined"

    together(killed, stopped, joins)
    clock.advance(60)
    last = stage.work("last")
    looked = last.look()
    assert looked is not None
    assert looked.whole
    last.work()
    assert ids(stage.published()) == list(range(600))
    assert stage.open_windows() == []
    stage.stage.check()


@pytest.mark.rule("CLU-21")
def test_a_node_that_joins_takes_the_stretches_that_are_left(tmp_path: Path) -> None:
    stage = filled(tmp_path / "in", 600, stretches=4)
    first, joiner = stage.work("first"), stage.work("joiner")
    looked = []

    def join(event: Event) -> None:
        stage.told.append(event)
        if isinstance(event, StretchLooked) and not looked:
            stage.clock.advance(1)
            looked.append(joiner.look(fresh_s=10))

    first._sharing._emit = join  # type: ignore[union-attr]
    looked.append(first.look())
    assert all(one is not None and one.whole for one in looked)
    listed = {event.stretch: event.holder.partition(".")[0] for event in stage.heard(StretchLooked)}
    assert sorted(listed.values()) == ["first", "joiner", "joiner", "joiner"]
    assert sum(one.taken for one in looked if one) == 600


@pytest.mark.rule("CLU-21")
def test_a_stretch_of_a_node_that_died_is_looked_at_when_its_lease_has_run_out(tmp_path: Path) -> None:
    stage = filled(tmp_path / "in", 250, stretches=3)
    with crash.armed("sources.take-stretch.after"), pytest.raises(Crashed):
        stage.work("dead").look()
    other = stage.work("other")
    looked = other.look()
    assert looked is not None
    assert not looked.whole  # a third of it is held by the dead one
    assert 0 < looked.taken < 250
    stage.clock.advance(16)
    again = other.look()
    assert again is not None
    assert again.whole
    assert looked.taken + again.taken == 250


def test_whoever_lost_its_stretch_takes_nothing_from_it(tmp_path: Path) -> None:
    stage = filled(tmp_path / "in", 150, stretches=2)
    work = stage.work("slow")
    sharing = work._sharing
    assert sharing is not None
    sharing._arrange(None)
    genuine = sharing._looker.look

    def slow(**named):  # type: ignore[no-untyped-def]
        stage.clock.advance(16)
        return genuine(**named)

    sharing._looker.look = slow  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        work.look()
    assert stage.taken() == {}


def test_a_long_look_keeps_its_stretch(tmp_path: Path) -> None:
    stage = filled(tmp_path / "shared", 550, stretches=2)
    work = stage.work("slow")
    listing = stage.place.listing()
    genuine = listing.files

    def slow(skip, **named):  # type: ignore[no-untyped-def]
        for number, file in enumerate(genuine(skip, **named)):
            if number % 100 == 99:
                stage.clock.advance(6)
            yield file

    listing.files = slow  # type: ignore[method-assign]
    work._looker._listing = listing
    looked = work.look()
    assert looked is not None
    assert looked.taken == 550


def test_stretches_are_made_anew_when_one_has_grown(tmp_path: Path) -> None:
    stage = filled(tmp_path / "in", 120, stretches=4)
    stage.run()
    assert [event.stretches for event in stage.heard(StretchesMade)] == [2]
    for number in range(500):
        (stage.root / f"x{number:05}.json").write_bytes(b"{}\n")
    work = stage.work("n2")
    work.look()
    assert [event.stretches for event in stage.heard(StretchesMade)] == [2, 4]
    looked = work.look()
    assert looked is not None
    assert (looked.listed, looked.taken, looked.whole) == (620, 0, True)
    arranged = stage.store.run(lambda tx: stretches.read(tx, stage.keys, SOURCE))
    assert arranged is not None
    assert (arranged.generation, arranged.stretches) == (2, 4)


def test_what_was_looked_at_a_moment_ago_is_left_to_later(tmp_path: Path) -> None:
    stage = filled(tmp_path / "in", 10, stretches=2)
    sharing = stage.work()._sharing
    assert sharing is not None
    assert sharing.look().listed == 10
    stage.clock.advance(5)
    assert sharing.look(fresh_s=10).listed == 0
    assert sharing.look(fresh_s=4).listed == 10


@pytest.mark.rule("CLU-22")
def test_a_crash_in_a_shared_look_loses_and_doubles_nothing(tmp_path: Path) -> None:
    steps = [
        f"sources.{one}.{when}"
        for one in ("arrange", "take-stretch", "finish-stretch")
        for when in ("before", "after")
    ]
    for number, point in enumerate(steps):
        stage = SourceStage(tmp_path / f"s{number}", settle_s=0, stretches=3, max_files=2)
        for one in range(6):
            stage.put(f"{one}.json", one)
        with crash.armed(point), pytest.raises(Crashed):
            stage.run()
        stage.clock.advance(60)
        stage.run()
        assert ids(stage.published()) == list(range(6)), point
        assert len(stage.heard(WindowPublished)) == len(stage.stage.events(ORDERS)) == 3


def test_more_stretches_than_there_can_be_are_refused() -> None:
    with pytest.raises(BadSource):
        folder("x/*.json", stretches=65)
