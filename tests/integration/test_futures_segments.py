"""Segments as their users see them: several processes of one host, some of them killed."""

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.integration.processes import Process
from tests.integration.segment_child import SECRET
from tidemill.errors import CopyCorrupt, CopyGone, SegmentsFull, UsageError
from tidemill.futures.protocol.rows import Result
from tidemill.futures.values import layout, pickling
from tidemill.futures.values.result_storage import ResultStorage
from tidemill.futures.values.segment_writer import LEDGER, QUOTA, ByteCounters, SegmentDraft, SegmentWriter
from tidemill.futures.values.segments import Segments, default_root, host_id, map_segment, sweep
from tidemill.futures.values.signatures import ClusterKey, Signer

CHILD = "tests.integration.segment_child"
MEGABYTE = 1_000_000
ID = b"i" * 16


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "segments"


@pytest.fixture
def segments(root: Path) -> Iterator[Segments]:
    with Segments.open("boot", quota_bytes=10 * MEGABYTE, root=root) as segments:
        yield segments


def image(size: int) -> layout.ValueLayout:
    return layout.plan(pickling.dump(b"x" * size))


def run(*arguments: object, crash: str = "") -> Process:
    return Process(CHILD, *arguments, crash=crash)


@pytest.mark.rule("FUT-29")
def test_a_result_outlives_its_process_and_is_read_by_others_without_a_copy(
    root: Path, segments: Segments
) -> None:
    with run("store", segments.folder, 4 * MEGABYTE) as child:
        stored = child.hear()
        assert child.end() == 0
    segments.keep(msgspec.json.decode(stored["result"], type=Result).location.name)
    assert segments.child_gone(stored["pid"]) == 0
    with run("load", root, stored["result"]) as reader:
        seen = reader.hear()
    assert seen["sum"] == sum(range(MEGABYTE // 2))
    (name,) = segments.names()
    assert seen["mapped"].endswith(str(segments.folder / name)), "the array's memory is the segment"
    assert seen["mapped"].split()[1] == "r--s"
    assert (seen["writeable"], seen["own"], seen["aligned"]) == (False, False, True)
    assert not [path for path in seen["descriptors"] if str(root) in path], "no descriptor per mapping"


@pytest.mark.rule("FUT-29")
def test_a_segment_is_named_by_its_boot_and_sealed(segments: Segments) -> None:
    result = ResultStorage(Signer(ClusterKey(SECRET)), writer=segments.writer()).store(
        np.arange(9_999), ID, 3
    )
    boot, _, name = result.location.name.partition("/")
    assert (boot, result.location.host) == ("boot", host_id())
    assert segments.names() == {name}
    path = segments.folder / name
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert stat.S_IMODE(segments.folder.stat().st_mode) == 0o700


def test_nobody_sees_a_draft(segments: Segments, root: Path) -> None:
    with segments.writer().begin("ab", 1, 100) as draft:
        draft.write([memoryview(bytes(60))])
        assert segments.names() == set()
        for name in (draft.name, draft.name + ".draft"):
            with pytest.raises(CopyGone):
                map_segment(f"boot/{name}", root)
        with pytest.raises(CopyCorrupt, match="60 of 100 bytes were written"):
            draft.seal()
        with pytest.raises(CopyCorrupt, match="more than"):
            draft.write([memoryview(bytes(41))])
        draft.write([memoryview(bytes(40))])
        assert draft.seal() == draft.name
    assert segments.names() == {draft.name}
    assert len(map_segment(f"boot/{draft.name}", root)) == 100


@pytest.mark.parametrize("point", ["before_seal", "after_seal"])
def test_what_a_killed_child_told_nobody_of_is_removed(segments: Segments, point: str) -> None:
    with run("store", segments.folder, MEGABYTE, crash=f"segments.{point}") as child:
        assert child.end() == -signal.SIGKILL
        assert segments.used_bytes > MEGABYTE
        assert segments.child_gone(child.pid) == 1
    assert segments.used_bytes == 0
    assert [path.name for path in segments.folder.iterdir() if path.is_file()] == ["lock"]


def test_what_a_child_told_of_stays_when_it_is_gone_and_is_counted(segments: Segments) -> None:
    names = []
    for number in range(3):
        with run("store", segments.folder, MEGABYTE) as child:
            stored = child.hear()
            child.end()
            name = msgspec.json.decode(stored["result"], type=Result).location.name
            if number:
                segments.keep(name)
                names.append(name)
            segments.child_gone(stored["pid"])
    assert len(segments.names()) == 2
    each = segments.used_bytes // 2
    assert MEGABYTE < each < 1.01 * MEGABYTE
    assert segments.delete(names[0])
    assert segments.used_bytes == each
    assert not segments.delete(names[0])
    segments.child_gone(stored["pid"])  # reported twice: counted once
    assert segments.used_bytes == each
    assert not [path for path in (segments.folder / "ledger").iterdir() if path.name.isdigit()]
    assert segments.delete(names[1])
    assert segments.used_bytes == 0


def test_a_process_number_that_comes_back_is_another_child(segments: Segments) -> None:
    writer = segments.writer()
    first = writer.write("ab", 1, image(1000))
    segments.keep(f"boot/{first}")
    each = segments.used_bytes
    segments.child_gone(os.getpid())
    second, third = (writer.write("ab", n, image(1000)) for n in (2, 3))  # "another child", with our number
    assert segments.used_bytes == 3 * each
    segments.delete(f"boot/{second}")
    segments.delete(f"boot/{first}")
    assert segments.used_bytes == each
    assert segments.child_gone(os.getpid()) == 1
    assert segments.names() == set() != {third}
    assert segments.used_bytes == 0


@pytest.mark.rule("FUT-29")
@pytest.mark.parametrize("times", [20, pytest.param(100, marks=pytest.mark.crash)])
def test_many_kills_leave_nothing_behind(tmp_path: Path, times: int) -> None:
    with run("kills", tmp_path / "root", times) as killer:
        seen = killer.hear()
    assert seen["most"] <= 2, "each start sweeps what the one before it left"
    assert seen["swept"] == 1
    assert seen["left"] == []


def test_a_living_supervisor_is_never_swept(root: Path) -> None:
    with run("supervise", root, "one") as first_child, run("supervise", root, "two") as second_child:
        first, second = first_child.hear(), second_child.hear()
        assert sweep(root) == 0
        with Segments.open("three", quota_bytes=1, root=root):
            assert {path.name for path in root.iterdir()} == {"one", "two", "three"}
        assert len(map_segment(f"one/{first['name']}", root)) > 100_000
        os.kill(second_child.pid, signal.SIGKILL)
        second_child.end()
        assert sweep(root) == 1
        with pytest.raises(CopyGone):
            map_segment(f"two/{second['name']}", root)
        assert len(map_segment(f"one/{first['name']}", root)) > 100_000
        first_child.end()  # in order: it removes its own
        assert list(root.iterdir()) == []


def test_folders_that_were_left_half_made_or_half_removed_are_swept(root: Path) -> None:
    for name in (".boot.0", "boot", "empty", ".empty.3"):
        (root / name).mkdir(parents=True)
    for name in (".boot.0", "boot"):
        (root / name / "lock").touch()
    for late in ("1.2.draft", "ledger/12"):  # written by a child, behind the supervisor that removed all
        (root / "written" / late).parent.mkdir(exist_ok=True)
        (root / "written" / late).touch()
    (root / "not ours").mkdir()
    (root / "file").touch()
    root.chmod(0o700)
    assert sweep(root) == 2
    assert {path.name for path in root.iterdir()} == {"not ours", "file"}
    with Segments.open("boot", quota_bytes=1, root=root) as segments:
        with pytest.raises(UsageError, match="in use"):
            Segments.open("boot", quota_bytes=1, root=root)
        assert segments.folder.is_dir()
    assert sweep(root / "nowhere") == 0


def test_a_folder_that_others_could_write_to_is_refused(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o777)
    with pytest.raises(UsageError, match="other users can access"):
        Segments.open("boot", quota_bytes=1, root=wide)
    link = tmp_path / "link"
    link.symlink_to(wide)
    with pytest.raises(UsageError, match="other users can access"):
        Segments.open("boot", quota_bytes=1, root=link)


@pytest.mark.parametrize("boot", ["", "a/b", "..", ".", "a b", "x" * 65, "ä"])
def test_a_boot_id_is_never_a_path(root: Path, boot: str) -> None:
    with pytest.raises(UsageError, match="invalid node id"):
        Segments.open(boot, quota_bytes=1, root=root)


@pytest.mark.parametrize(
    "name",
    ["", "boot", "boot/", "boot/lock", "boot/../boot/lock", "../x", "/etc/passwd", "boot/ledger/quota"],
)
def test_a_name_leads_nowhere_else(segments: Segments, root: Path, name: str) -> None:
    with pytest.raises(CopyGone):
        map_segment(name, root)
    with pytest.raises(CopyGone):
        segments.map(name)
    with pytest.raises(CopyGone):
        segments.delete(name)


def test_a_symbolic_link_in_the_place_of_a_segment_is_not_followed(segments: Segments, root: Path) -> None:
    (segments.folder / "ab.1.1.1").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        map_segment("boot/ab.1.1.1", root)


def test_a_copy_of_an_earlier_boot_is_gone(root: Path) -> None:
    with Segments.open("first", quota_bytes=MEGABYTE, root=root) as first:
        name = f"first/{first.writer().write('ab', 1, image(1000))}"
        assert len(first.map(name)) > 1000
    with Segments.open("second", quota_bytes=MEGABYTE, root=root) as second:
        with pytest.raises(CopyGone, match="written by another node"):
            second.map(name)
        with pytest.raises(CopyGone):
            map_segment(name, root)


def test_past_the_quota_it_is_refused_and_freed_room_can_be_used(segments: Segments) -> None:
    writer = segments.writer()
    names = [writer.write("ab", n, image(3 * MEGABYTE)) for n in range(3)]
    with pytest.raises(SegmentsFull, match="no memory for a result of 3,000,") as caught:
        writer.write("ab", 9, image(3 * MEGABYTE))
    assert "9,000," in caught.value.message
    assert segments.names() == set(names), "nothing is left of what was refused"
    used = segments.used_bytes
    segments.delete(f"boot/{names[0]}")
    assert segments.used_bytes < used
    writer.write("ab", 10, image(3 * MEGABYTE))
    ByteCounters(segments.folder / LEDGER).write(QUOTA, 0)
    with pytest.raises(SegmentsFull):
        writer.write("ab", 11, image(1))


def test_what_memory_has_no_room_for_goes_to_disk(tmp_path: Path, root: Path) -> None:
    spill = tmp_path / "disk"
    signer = Signer(ClusterKey(SECRET))
    with Segments.open("boot", quota_bytes=MEGABYTE, root=root, spill=spill) as segments:
        values = ResultStorage(signer, writer=segments.writer())
        arrays = [np.full(100_000, n) for n in range(3)]
        results = [values.store(array, ID, n) for n, array in enumerate(arrays)]
        assert len(list((spill / "boot").glob("*.*.*.*"))) == 2
        assert len(segments.names()) == 3
        assert segments.used_bytes < MEGABYTE
        for array, result in zip(arrays, results, strict=True):
            back = values.load(result, ID)
            assert (back == array).all()
            assert not back.flags.owndata
            assert segments.delete(result.location.name)
        assert segments.used_bytes == 0
        assert segments.names() == set()
        with run("store", segments.folder, 2 * MEGABYTE, crash="segments.before_seal") as child:
            child.end()
            assert segments.child_gone(child.pid) == 1
    assert list(spill.iterdir()) == list(root.iterdir()) == []


def test_a_dead_supervisor_s_disk_is_swept_too(tmp_path: Path, root: Path) -> None:
    spill = tmp_path / "disk"
    (spill / "dead").mkdir(parents=True, mode=0o700)
    spill.chmod(0o700)
    (spill / "dead" / "lock").touch()
    (spill / "dead" / "ab.1.1.1").touch()
    with Segments.open("boot", quota_bytes=1, root=root, spill=spill):
        assert [path.name for path in spill.iterdir()] == ["boot"]


def test_processes_that_reserve_at_once_never_get_more_than_there_is(segments: Segments) -> None:
    ByteCounters(segments.folder / LEDGER).write(QUOTA, 100)
    racers = [run("reserve", segments.folder, 1, 60) for _ in range(4)]
    for racer in racers:
        racer.tell("go")
    granted = sum(racer.hear()["granted"] for racer in racers)
    for racer in racers:
        assert racer.end() == 0
    assert granted <= 100
    assert granted == segments.used_bytes
    assert granted > 90, "only the last few may have been refused for one another"


def test_who_has_a_segment_mapped_keeps_it_when_it_is_unlinked(segments: Segments, root: Path) -> None:
    name = segments.writer().write("ab", 1, image(300_000))
    with run("touch", root, f"boot/{name}") as reader:
        expected = sum(map_segment(f"boot/{name}", root)) % 1_000_003
        reader.hear()
        assert segments.delete(f"boot/{name}")
        assert segments.names() == set()
        reader.tell("go")
        assert reader.hear()["sum"] == expected


def test_a_full_disk_is_a_typed_error_and_leaves_nothing(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(SegmentsFull):
        segments.writer().write("ab", 1, image(1000))
    assert segments.used_bytes == 0
    assert not list(segments.folder.glob("*.draft"))


def test_a_child_whose_node_has_ended_is_told(root: Path) -> None:
    with Segments.open("boot", quota_bytes=MEGABYTE, root=root) as segments:
        writer = SegmentWriter(segments.folder)
    with pytest.raises(SegmentsFull, match="its worker has ended"):
        writer.write("ab", 1, image(1000))


def test_a_segment_of_many_small_parts_is_written_whole(segments: Segments, root: Path) -> None:
    value = [np.full(n % 7, n) for n in range(3_000)]
    plan = layout.plan(pickling.dump(value))
    name = segments.writer().write("ab", 1, plan)
    view = map_segment(f"boot/{name}", root)
    assert bytes(view) == bytes(layout.joined(plan))
    back = layout.load(view, lambda head: None, subject="it")
    assert all(
        (written == loaded).all() and written.shape == loaded.shape
        for written, loaded in zip(value, back, strict=True)
    )


def test_a_short_write_goes_on_where_it_stopped(segments: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def hesitant(fd: int, pieces: list[memoryview], offset: int) -> int:
        return real(fd, [pieces[0][:1000]], offset)

    monkeypatch.setattr(os, "pwritev", hesitant)
    plan = layout.plan(pickling.dump([b"x" * 70_000, np.arange(999), b"y" * 70_000]))
    name = segments.writer().write("ab", 1, plan)
    assert (segments.folder / name).read_bytes() == bytes(layout.joined(plan))


def test_an_abandoned_draft_leaves_nothing(segments: Segments) -> None:
    draft = segments.writer().begin("ab", 1, 1000)
    assert isinstance(draft, SegmentDraft)
    draft.abandon()
    draft.abandon()
    assert segments.used_bytes == 0
    assert not list(segments.folder.glob("*.draft"))


def test_every_process_of_a_user_looks_in_the_same_place() -> None:
    assert default_root().name == f"tidemill-{os.geteuid()}"
    assert default_root().parent.is_dir()
    assert host_id() == host_id() != ""
