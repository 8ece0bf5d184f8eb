"""Objects as files: what survives a crash, a full disk and hostile folders."""

import errno
import fcntl
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.errors import BadKey, ObjectMissing, ObjectUnavailable
from tidemill.objects import Objects, Put, durable_files, open_objects
from tidemill.objects.durable_files import sweep
from tidemill.objects.local import LocalObjects
from tidemill.testing.fake_clock import FakeClock
from tidemill.testing.objects_tests.bodies import keys, nonce
from tidemill.testing.objects_writer import URL, whole
from tidemill.testing.threads import STUCK_S

POINTS = ["before_link", "after_link", "before_rename", "after_rename"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def objects(root: Path) -> LocalObjects:
    return LocalObjects(root, SYSTEM, random.Random(1))


def scratch(root: Path) -> list[Path]:
    return list((root / ".tidemill" / "scratch").iterdir())


class Steps:
    """The file system calls that matter, as they are made: the real ones, written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        for name in ("fsync", "link", "rename", "replace", "mkdir", "unlink"):
            monkeypatch.setattr(os, name, self._noting(name, getattr(os, name)))

    def _noting(self, name: str, real: object) -> object:
        def note(*args: object, **options: object) -> object:
            if name == "fsync":
                at = Path(f"/proc/self/fd/{args[0]}").readlink()
            else:
                at = Path(str(args[0 if name == "mkdir" else -1]))
            self.made.append(f"{name} {'scratch' if 'scratch' in at.parts else at.name}")
            return real(*args, **options)  # type: ignore[operator]

        return note


@pytest.mark.rule("STO-12")
def test_a_create_is_synced_before_and_after_it_is_linked(
    objects: LocalObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "ONE_JOURNAL", frozenset())
    objects.put("first", b"")  # makes the root, and what we keep for ourselves
    steps = Steps(monkeypatch)
    objects.put_if_absent("a/b/c", mark := nonce(), mark)
    order = [step for step in steps.made if not step.startswith("mkdir")]
    # the data, then the name, then the folder of the name, then the folders that are new
    assert order == ["fsync scratch", "link c", "unlink scratch", "fsync b", "fsync a", "fsync root"]
    steps.made.clear()
    objects.put_if_absent("a/b/d", mark, mark)
    assert steps.made[-1] == "fsync b"  # the others are known to be on the disk


@pytest.mark.rule("STO-12")
def test_a_put_is_synced_before_and_after_it_is_renamed(
    objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "ONE_JOURNAL", frozenset())
    objects.put("first", b"")
    steps = Steps(monkeypatch)
    etag = objects.put("a/c", b"x").etag
    objects.put_if_match("a/c", b"y", etag)
    order = [step for step in steps.made if not step.startswith("mkdir")]
    assert order == [
        "fsync scratch",
        "replace c",
        "fsync a",
        "fsync root",
        "fsync scratch",
        "replace c",
        "fsync a",
    ]


def test_an_answer_of_mine_or_other_is_synced_too(
    objects: LocalObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, other_mark = nonce(), nonce()
    objects.put_if_absent("a/c", mark, mark)
    steps = Steps(monkeypatch)
    for body in (mark, other_mark):
        objects.put_if_absent("a/c", body, body)
        assert steps.made == ["fsync c", "fsync a"]  # its writer may have died before it did that
        steps.made.clear()


@pytest.mark.rule("STO-12")
def test_a_folder_created_again_is_synced_again(
    objects: LocalObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "ONE_JOURNAL", frozenset())
    objects.put("a/b/c", b"")
    objects.put("keep", b"")
    objects.delete("a/b/c")
    assert not (root / "a").exists()
    steps = Steps(monkeypatch)
    objects.put("a/b/c", b"")
    assert steps.made[-3:] == ["fsync b", "fsync a", "fsync root"]


@pytest.mark.rule("STO-12")
def test_where_all_changes_go_through_one_journal_the_last_folder_brings_the_others_along(
    objects: LocalObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.put("first", b"")
    monkeypatch.setattr(durable_files, "ONE_JOURNAL", frozenset({durable_files.file_system(root)}))
    steps = Steps(monkeypatch)
    objects.put("a/b/c", b"x")
    order = [step for step in steps.made if not step.startswith("mkdir")]
    assert order == ["fsync scratch", "replace c", "fsync b"]


def crashed(objects: Objects, point: str, mark: bytes) -> None:
    links = point.endswith("link")
    with crash.armed(f"objects.local.{point}"), pytest.raises(crash.Crashed):
        objects.put_if_absent("a/k", mark, mark) if links else objects.put("a/k", mark)


@pytest.mark.rule("STO-12")
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_leaves_the_object_whole_or_absent(objects: LocalObjects, root: Path, point: str) -> None:
    mark, other = nonce(), nonce()
    crashed(objects, point, mark)
    landed = point.startswith("after")
    assert keys(objects) == (["a/k"] if landed else [])
    if landed:
        assert objects.get("a/k")[0] == mark
    after = LocalObjects(root, SYSTEM, random.Random(2))  # the next process
    assert after.put_if_absent("a/k", other, other) is (Put.OTHER if landed else Put.CREATED)
    assert after.put_if_absent("a/k", mark, mark) is (Put.MINE if landed else Put.OTHER)
    after.put("x", b"")
    assert scratch(root) == []  # what the dead one left is swept by the next writer


@pytest.mark.rule("STO-12")
@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_a_crash_point_leaves_nothing_torn(root: Path, point: str) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tidemill.testing.objects_writer", "write", "w"],
        env={**os.environ, URL: str(root), crash.ENVIRONMENT: f"objects.local.{point}:3"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert child.returncode == -9
    objects = open_objects(str(root), clock=SYSTEM)
    answered = set(child.stdout.split())
    assert answered
    assert answered <= set(keys(objects))
    assert all(whole(objects.get(key)[0]) for key in keys(objects))
    assert scratch(root) == [] or point in ("before_link", "after_link", "before_rename")
    objects.put("x", b"")
    assert scratch(root) == []


def test_crash_points_surround_every_durable_step(objects: LocalObjects) -> None:
    with crash.recorded() as points:
        etag = objects.put("k", b"x").etag
        assert points == {"objects.local.before_rename", "objects.local.after_rename"}
        objects.put_if_match("k", b"y", etag)
        objects.put_if_absent("n", mark := nonce(), mark)
    assert points == {f"objects.local.{point}" for point in POINTS}


def test_the_scratch_of_a_living_writer_is_not_swept(objects: LocalObjects, root: Path) -> None:
    objects.put("x", b"")
    folder = root / ".tidemill" / "scratch"
    orphan, owned = folder / "1-dead", folder / "1-alive"
    orphan.touch()
    with owned.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        LocalObjects(root, SYSTEM, random.Random(2)).put("y", b"")
        assert scratch(root) == [owned]
    LocalObjects(root, SYSTEM, random.Random(3)).put("z", b"")
    assert scratch(root) == []


def test_a_scratch_file_swept_before_its_owner_locks_it_is_created_again(
    objects: LocalObjects, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.put("x", b"")
    swept: list[int] = []
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if not swept and how == fcntl.LOCK_EX:
            swept.append(0)
            swept[0] = sweep(root / ".tidemill" / "scratch")  # comes between making and locking
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert objects.put_if_absent("k", mark := nonce(), mark) is Put.CREATED
    assert swept == [1]
    assert objects.get("k")[0] == mark


def test_our_own_files_are_in_no_listing(objects: LocalObjects, root: Path) -> None:
    objects.put("k", b"")
    assert (root / ".tidemill").is_dir()
    assert keys(objects) == keys(objects, after=".") == ["k"]
    assert keys(objects, ".") == keys(objects, ".tide") == []


def test_an_etag_differs_for_each_write_even_if_the_clock_stops(root: Path) -> None:
    objects = LocalObjects(root, FakeClock(), random.Random(1))
    etags = {objects.put("k", b"same").etag for _ in range(60)}
    for _ in range(60):
        objects.delete("k")
        objects.put_if_absent("k", b"same nonce", b"same nonce")
        etags.add(objects.head("k").etag)
    assert len(etags) == 120


def test_the_time_of_an_object_is_about_now(objects: LocalObjects) -> None:
    before = SYSTEM.wall()
    at = objects.put("k", b"").modified_at
    assert before - 2 < at <= SYSTEM.wall()


def test_waiting_for_a_lock_has_an_end(root: Path) -> None:
    clock = FakeClock()
    objects = LocalObjects(root, clock, random.Random(1), patience_s=5)
    objects.put("k", b"old")
    held = [path.open() for path in (root / ".tidemill" / "locks").iterdir()]
    began = clock.monotonic()
    try:
        for file in held:
            fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ObjectUnavailable, match="lock") as caught:
            objects.put("k", b"new")
    finally:
        for file in held:
            file.close()
    assert 5 <= clock.monotonic() - began < 6
    assert "suspended" in caught.value.hint
    assert objects.get("k")[0] == b"old"
    assert scratch(root) == []


def test_symbolic_links_are_no_objects_and_lead_nowhere(
    objects: LocalObjects, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"not ours")
    objects.put("k", b"x")
    (root / "door").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "loop").symlink_to(root)
    assert keys(objects) == ["k"]
    for key in ("door/secret", "door/new", "loop/k"):
        for ask in (objects.get, objects.head, objects.delete, lambda key: objects.put(key, b"x")):
            with pytest.raises(BadKey, match="symbolic link"):
                ask(key)
    with pytest.raises(ObjectMissing):
        objects.get("file")
    with pytest.raises(BadKey):
        objects.put_if_absent("file", mark := nonce(), mark)
    objects.delete("file")
    assert (root / "file").is_symlink()
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"not ours"


def test_a_root_that_is_a_link_is_the_folder_it_points_to(root: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    root.symlink_to(tmp_path / "real")
    objects = LocalObjects(root, SYSTEM, random.Random(1))
    objects.put("a/b", b"x")
    assert (tmp_path / "real" / "a" / "b").read_bytes() == b"x"


def test_only_plain_files_are_objects(objects: LocalObjects, root: Path) -> None:
    objects.put("k", b"")
    os.mkfifo(root / "pipe")
    (root / "back\\slash").write_bytes(b"")
    (root / os.fsdecode(b"bad\xff")).write_bytes(b"")
    assert keys(objects) == ["k"]
    with pytest.raises(ObjectMissing):
        objects.get("pipe")


def test_a_root_that_is_not_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    objects = LocalObjects(tmp_path / "file", SYSTEM, random.Random(1))
    for write in (lambda: objects.put("k", b""), lambda: objects.supports_if_match):
        with pytest.raises(ObjectUnavailable) as caught:
            write()
        assert caught.value.hint
    assert list(objects.list()) == []


def test_a_root_emptied_under_a_writer_is_created_again(objects: LocalObjects, root: Path) -> None:
    objects.put("a/k", b"1")
    shutil.rmtree(root)
    objects.put("a/k", b"2")
    assert objects.put_if_absent("b", mark := nonce(), mark) is Put.CREATED
    assert keys(objects) == ["a/k", "b"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_fails_while_syncing_leaves_nothing(
    objects: LocalObjects, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    objects.put("k", b"old")
    real = os.fsync

    def fails(fd: int) -> None:
        if "scratch" in Path(f"/proc/self/fd/{fd}").readlink().parts:
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fsync", fails)
    mark = nonce()
    for write in (lambda: objects.put("k", b"new"), lambda: objects.put_if_absent("new/n", mark, mark)):
        with pytest.raises(ObjectUnavailable if code == errno.EIO else Exception) as caught:
            write()
        assert caught.value.code == ("objects-unavailable" if code == errno.EIO else "objects-full")
    monkeypatch.undo()
    assert keys(objects) == ["k"]
    assert objects.get("k")[0] == b"old"
    assert scratch(root) == []
    assert not (root / "new").exists()


FULL_DISK = """
import os, random, sys
from pathlib import Path
from tidemill.clock import SYSTEM
from tidemill.errors import ObjectsFull, ObjectUnavailable
from tidemill.objects.durable_files import sweep
from tidemill.objects.local import LocalObjects
root = Path(sys.argv[1])
objects = LocalObjects(root, SYSTEM, random.Random(1))
small = objects.put("small", b"kept")
written = []
try:
    for number in range(100):
        objects.put(f"n/{number}", bytes(200_000))
        written.append(f"n/{number}")
except ObjectsFull as full:
    print("full", full.code, bool(full.hint))
try:
    objects.put_if_absent("big", bytes(900_000) + b"nonce-123", b"nonce-123")
except ObjectsFull as full:
    print("full", full.code)
try:
    objects.put_if_match("small", bytes(900_000), small.etag)
except ObjectsFull as full:
    print("full", full.code)
assert sorted(info.key for info in objects.list()) == sorted([*written, "small"]), list(objects.list())
assert objects.get("small")[0] == b"kept"
assert not list((root / ".tidemill" / "scratch").iterdir())
objects.delete(written[0])
objects.put("again", bytes(100_000))
print("goes on")
import subprocess
subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
for write in (lambda: objects.put("x", b""), lambda: objects.delete("small")):
    try:
        write()
    except ObjectUnavailable as error:
        print("read-only", error.code)
assert objects.get("small")[0] == b"kept"
"""


@pytest.fixture
def full_disk(tmp_path: Path) -> list[str]:
    """A command that runs Python with a file system of 1 MB of its own, gone when it ends."""
    script = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(tmp_path)]
    tried = subprocess.run([*command, sys.executable, "pass"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no file system of its own here: {tried.stderr.strip()}")
    return [*command, sys.executable]


@pytest.mark.rule("STO-12")
def test_a_full_disk_is_an_error_and_loses_nothing(full_disk: list[str]) -> None:
    ended = subprocess.run(
        [*full_disk, FULL_DISK], capture_output=True, text=True, timeout=STUCK_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n") == [
        "full objects-full True",
        "full objects-full",
        "full objects-full",
        "goes on",
        "read-only objects-unavailable",
        "read-only objects-unavailable",
        "",
    ]
