"""A listing that nodes share: shards of paths, each listed by one node at a time."""

import dataclasses
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
from tidemill.sources import discovery, listing_shards
from tidemill.sources.events import ListingShardDone, ListingSharded, WindowPublished
from tidemill.sources.folder import folder
from tidemill.sources.listing_shards import ListingShard
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
    """Shards and pages of a hundred files instead of a thousand."""
    monkeypatch.setattr(listing_shards, "LEAST_FILES", 100)
    monkeypatch.setattr(discovery, "PAGE", 100)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.integers(0, 5000), st.integers(1, 64))
def test_shards_cover_every_path_once_and_have_about_equal_size(count: int, shards: int) -> None:
    paths = [f"{number:06}" for number in range(count)]
    cut_shards, counted = listing_shards.cut(iter(paths), shards)
    assert counted == count
    assert (cut_shards[0].after, cut_shards[-1].until) == ("", None)
    assert all(shard.until == following.after for shard, following in itertools.pairwise(cut_shards))
    sizes = [sum(1 for path in paths if _within(path, shard)) for shard in cut_shards]
    assert sum(sizes) == count
    assert len(cut_shards) <= min(shards, count // listing_shards.LEAST_FILES + 1)
    if len(cut_shards) > 1:
        assert max(sizes) <= 1.5 * count / len(cut_shards)


def _within(path: str, shard: ListingShard) -> bool:
    return path > shard.after and (shard.until is None or path <= shard.until)


@pytest.mark.rule("CLU-21")
def test_nodes_share_a_listing_and_every_file_is_taken_once(tmp_path: Path) -> None:
    """One node is killed, one is stopped and continues when the others have finished, one joins late."""
    clock = FakeClock()
    store = MemoryStore(clock=clock, chance=random.Random(1))
    stage = SourceStage(tmp_path / "in", store, settle_s=0, listing_shards=8, max_files=10)
    stage.clock = clock
    for number in range(600):
        (stage.root / f"{number:05}.json").write_bytes(b'{"id":%d}\n' % number)
    arranged = stage.ingestion("first")
    arranged._sharded._cut(None)  # type: ignore[union-attr]
    others_done = threading.Event()

    def killed() -> str:
        node = stage.node("killed")
        tasks = iter(range(100))

        def die(task: PartTask) -> None:
            if next(tasks) == 3:
                stage.stage.kill(node)
                raise Killed

        work = stage.ingestion(node, before=die)
        try:
            work.discover()
            work.ingest()
        except Killed:
            return "killed"
        return "idle"  # the others left it nothing

    def stopped() -> str:
        node = stage.node("stopped")

        def stop(task: PartTask) -> None:
            stage.stage.kill(node)  # its lease runs out while it is stopped
            others_done.wait(STUCK_S)

        work = stage.ingestion(node, before=stop)
        work.discover()
        try:
            work.ingest()
        except LeaseLost:
            return "zombie"
        return "idle"

    def joins() -> str:
        stage.run("joiner")
        others_done.set()
        return "joined"

    together(killed, stopped, joins)
    clock.advance(60)
    last = stage.ingestion("last")
    looked = last.discover()
    assert looked is not None
    assert looked.complete
    last.ingest()
    assert ids(stage.published()) == list(range(600))
    assert stage.open_windows() == []
    stage.stage.check()


@pytest.mark.rule("CLU-21")
def test_a_node_that_joins_takes_the_shards_that_are_left(tmp_path: Path) -> None:
    stage = filled(tmp_path / "in", 600, listing_shards=4)
    first, joiner = stage.ingestion("first"), stage.ingestion("joiner")
    looked = []

    def join(event: Event) -> None:
        stage.told.append(event)
        if isinstance(event, ListingShardDone) and not looked:
            stage.clock.advance(1)
            looked.append(joiner.discover(fresh_s=10))

    sharded = first._sharded
    assert sharded is not None
    sharded._scope = dataclasses.replace(sharded._scope, emit=join)
    looked.append(first.discover())
    assert all(result is not None and result.complete for result in looked)
    listed = {event.shard: event.holder.partition(".")[0] for event in stage.heard(ListingShardDone)}
    assert sorted(listed.values()) == ["first", "joiner", "joiner", "joiner"]
    assert sum(result.taken for result in looked if result) == 600


@pytest.mark.rule("CLU-21")
def test_a_shard_of_a_dead_node_is_listed_when_its_lease_has_expired(tmp_path: Path) -> None:
    stage = filled(tmp_path / "in", 250, listing_shards=3)
    with crash.armed("sources.take-shard.after"), pytest.raises(Crashed):
        stage.ingestion("dead").discover()
    other = stage.ingestion("other")
    looked = other.discover()
    assert looked is not None
    assert not looked.complete  # a third of it is held by the dead one
    assert 0 < looked.taken < 250
    stage.clock.advance(16)
    again = other.discover()
    assert again is not None
    assert again.complete
    assert looked.taken + again.taken == 250


def test_a_node_that_lost_its_shard_takes_nothing_from_it(tmp_path: Path) -> None:
    stage = filled(tmp_path / "in", 150, listing_shards=2)
    work = stage.ingestion("slow")
    sharded = work._sharded
    assert sharded is not None
    sharded._cut(None)
    genuine = sharded._discovery.discover

    def slow(**options):  # type: ignore[no-untyped-def]
        stage.clock.advance(16)
        return genuine(**options)

    sharded._discovery.discover = slow  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        work.discover()
    assert stage.taken() == {}


def test_a_long_listing_keeps_its_shard(tmp_path: Path) -> None:
    stage = filled(tmp_path / "shared", 550, listing_shards=2)
    work = stage.ingestion("slow")
    listing = stage.source.listing()
    genuine = listing.files

    def slow(skip, **options):  # type: ignore[no-untyped-def]
        for number, file in enumerate(genuine(skip, **options)):
            if number % 100 == 99:
                stage.clock.advance(6)
            yield file

    listing.files = slow  # type: ignore[method-assign]
    work._discovery._listing = listing
    looked = work.discover()
    assert looked is not None
    assert looked.taken == 550


def test_shards_are_cut_again_when_one_has_grown(tmp_path: Path) -> None:
    stage = filled(tmp_path / "in", 120, listing_shards=4)
    stage.run()
    assert [event.shards for event in stage.heard(ListingSharded)] == [2]
    for number in range(500):
        (stage.root / f"x{number:05}.json").write_bytes(b"{}\n")
    work = stage.ingestion("n2")
    work.discover()
    assert [event.shards for event in stage.heard(ListingSharded)] == [2, 4]
    looked = work.discover()
    assert looked is not None
    assert (looked.listed, looked.taken, looked.complete) == (620, 0, True)
    arranged = stage.store.run(lambda tx: listing_shards.read(tx, stage.keys, SOURCE))
    assert arranged is not None
    assert (arranged.generation, arranged.shards) == (2, 4)


def test_a_shard_listed_recently_is_skipped(tmp_path: Path) -> None:
    stage = filled(tmp_path / "in", 10, listing_shards=2)
    sharded = stage.ingestion()._sharded
    assert sharded is not None
    assert sharded.discover().listed == 10
    stage.clock.advance(5)
    assert sharded.discover(fresh_s=10).listed == 0
    assert sharded.discover(fresh_s=4).listed == 10


@pytest.mark.rule("CLU-22")
def test_a_crash_in_a_shared_listing_loses_and_doubles_nothing(tmp_path: Path) -> None:
    steps = [
        f"sources.{step}.{when}"
        for step in ("cut-shards", "take-shard", "finish-shard")
        for when in ("before", "after")
    ]
    for number, point in enumerate(steps):
        stage = SourceStage(tmp_path / f"s{number}", settle_s=0, listing_shards=3, max_files=2)
        for file_number in range(6):
            stage.put(f"{file_number}.json", file_number)
        with crash.armed(point), pytest.raises(Crashed):
            stage.run()
        stage.clock.advance(60)
        stage.run()
        assert ids(stage.published()) == list(range(6)), point
        assert len(stage.heard(WindowPublished)) == len(stage.stage.events(ORDERS)) == 3


def test_too_many_shards_are_refused() -> None:
    with pytest.raises(BadSource):
        folder("x/*.json", listing_shards=65)
