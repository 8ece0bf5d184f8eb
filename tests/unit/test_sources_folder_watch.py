"""A change of a watched folder makes the next poll of its source due now."""

import os
import threading
from pathlib import Path

import pytest

from tests.unit.test_runner_job_deaths import Scene
from tidemill.clock import SYSTEM
from tidemill.sources.folder_watch import FolderWatch
from tidemill.sources.source import PollResult
from tidemill.testing.threads import STUCK_S


class Folders:
    """Folders whose times are set by the test: the clock of a file system may tick slowly."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tick = 1_000_000_000

    def put(self, path: str) -> None:
        """Create a file, and the folders above it."""
        target = self.root / path
        missing = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("{}")
        for folder in {target.parent, *missing, *(folder.parent for folder in missing)}:
            self._tick += 1_000_000_000
            os.utime(folder, ns=(self._tick, self._tick))


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path / "landing")
    made.put("old.json")
    return made


def test_files_in_new_and_old_folders_are_noticed_once(folders: Folders) -> None:
    watch = FolderWatch(folders.root, lambda: None, SYSTEM)
    assert not watch.look()
    for path in ("a.json", "2026/01/b.json", "2026/01/c.json", "2026/02/d.json"):
        folders.put(path)
        assert watch.look(), path
        assert not watch.look(), path


def test_a_folder_may_be_missing_or_disappear(folders: Folders, tmp_path: Path) -> None:
    missing = FolderWatch(tmp_path / "other", lambda: None, SYSTEM)
    assert not missing.look()
    Folders(tmp_path / "other").put("a.json")
    assert missing.look()
    folders.put("sub/a.json")
    watch = FolderWatch(folders.root, lambda: None, SYSTEM)
    (folders.root / "sub" / "a.json").unlink()
    (folders.root / "sub").rmdir()
    assert watch.look()
    assert not watch.look()


def test_the_thread_tells_that_a_folder_has_changed(folders: Folders) -> None:
    changed = threading.Event()
    watch = FolderWatch(folders.root, changed.set, SYSTEM)
    watch.start()
    watch.start()  # a poll starts it each time
    folders.put("a.json")
    assert changed.wait(STUCK_S)
    watch.stop()


def test_an_arrival_makes_the_next_poll_due_now() -> None:
    scene = Scene(orders=lambda: PollResult(wait_s=3600.0))
    work = scene.work()
    name = "source:shop/orders"

    def due() -> list[str]:
        return [job.name for job in work._source_polls()]

    work._poll(name)
    assert due() == []
    work._arrived(name)
    assert due() == [name]


def test_an_arrival_during_a_poll_is_not_missed() -> None:
    arrives: list[str] = []

    def poll() -> PollResult:
        if not arrives:
            arrives.append("a file, after the folder was listed")
            work._arrived("source:shop/orders")
        return PollResult(wait_s=3600.0)

    scene = Scene(orders=poll)
    work = scene.work()
    work._poll("source:shop/orders")
    assert [job.name for job in work._source_polls()] == ["source:shop/orders"]
    work._poll("source:shop/orders")
    assert list(work._source_polls()) == []
