"""Backups: consistent while the cluster is in use, complete or refused, restored only to an empty place."""

import json
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tests import shop
from tidemill import crash
from tidemill.cli import main
from tidemill.errors import BackupRefused, CopyIncomplete
from tidemill.futures.home import ClusterAddress
from tidemill.pipeline import backups
from tidemill.store.copy import copy_store

POINTS = ["backup.object", "store.copy.page", "backup.between", "backup.before_report"]


def append(home: Path, *ids: int) -> int:
    with tm.Pipeline("p", home=home) as pipeline:
        return pipeline.dataset("orders", "id BIGINT").append([(number,) for number in ids]).position


def contents(home: Path) -> list[Any]:
    with tm.Pipeline("p", home=home) as pipeline:
        pipeline.dataset("orders", "id BIGINT")
        return sorted(shop.table(pipeline, "orders"))


def place(home: Path) -> ClusterAddress:
    return ClusterAddress.of_home(home)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    append(tmp_path / "home", 1, 2)
    append(tmp_path / "home", 3)
    return tmp_path / "home"


@pytest.mark.rule("STO-11")
def test_a_restored_home_has_the_tables_and_continues_at_the_next_position(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", str(tmp_path / "b"), "--home", str(home), "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["rows"] > 0
    assert report["objects"] > 0
    append(home, 4)
    assert main(["restore", str(tmp_path / "b"), "--home", str(tmp_path / "r"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == report["rows"]
    assert contents(tmp_path / "r") == [(1,), (2,), (3,)]
    assert append(tmp_path / "r", 5) == 3
    assert contents(tmp_path / "r") == [(1,), (2,), (3,), (5,)]
    assert contents(home) == [(1,), (2,), (3,), (4,)]
    assert place(tmp_path / "r").key.secret == place(home).key.secret
    assert contents(tmp_path / "b") == [(1,), (2,), (3,)], "a backup has the layout of a home"


@pytest.mark.rule("STO-11")
@pytest.mark.parametrize("point", POINTS)
def test_a_backup_that_was_killed_is_refused_until_it_is_repeated(
    home: Path, tmp_path: Path, point: str
) -> None:
    folder = tmp_path / "b"
    with crash.armed(point), pytest.raises(crash.Crashed):
        backups.back_up(place(home), folder)
    with pytest.raises(BackupRefused, match="is incomplete"):
        backups.restore(folder, place(tmp_path / "r"))
    append(home, 4)
    backups.back_up(place(home), folder)
    backups.restore(folder, place(tmp_path / "r"))
    assert contents(tmp_path / "r") == [(1,), (2,), (3,), (4,)]


@pytest.mark.rule("STO-11")
@pytest.mark.parametrize("point", ["backup.object", "restore.between", "store.copy.begun", "store.copy.page"])
def test_a_restore_that_was_killed_is_no_cluster_until_it_is_repeated(
    home: Path, tmp_path: Path, point: str
) -> None:
    backups.back_up(place(home), tmp_path / "b")
    with crash.armed(point), pytest.raises(crash.Crashed):
        backups.restore(tmp_path / "b", place(tmp_path / "r"))
    if point.startswith("store."):
        with pytest.raises(CopyIncomplete):
            append(tmp_path / "r", 9)
    backups.restore(tmp_path / "b", place(tmp_path / "r"))
    assert contents(tmp_path / "r") == [(1,), (2,), (3,)]


@pytest.mark.rule("STO-11")
@pytest.mark.parametrize("when", ["backup.object", "store.copy.begun", "store.copy.page", "backup.between"])
def test_a_backup_of_a_home_in_use_has_every_object_that_its_store_names(
    home: Path, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lots are published, and objects that no lot names are deleted, while the backup runs."""
    published: list[int] = []

    def publish() -> None:
        if len(published) < 3:
            published.append(append(home, 10 + len(published)))

    monkeypatch.setitem(crash._armed, when, publish)
    backups.back_up(place(home), tmp_path / "b")
    monkeypatch.delitem(crash._armed, when)
    assert published
    backups.restore(tmp_path / "b", place(tmp_path / "r"))
    rows = contents(tmp_path / "r")
    assert rows[:3] == [(1,), (2,), (3,)]
    assert rows == contents(home)[: len(rows)], "the first lots, without gaps"


@pytest.mark.rule("STO-11")
def test_a_backup_that_takes_longer_than_the_grace_copies_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    notes: list[str] = []

    def counted(*stores: Any, **options: Any) -> int:
        copies.append(1)
        return copy_store(*stores, **options)

    monkeypatch.setattr(backups, "copy_store", counted)
    backups.back_up(place(home), tmp_path / "a", say=notes.append)
    assert (copies, notes) == ([1], [])
    with pytest.raises(BackupRefused, match="changes faster"):
        backups.back_up(place(home), tmp_path / "b", say=notes.append, grace_s=0)
    assert len(copies) == 1 + backups.ROUNDS
    assert len(notes) == backups.ROUNDS


@pytest.mark.rule("STO-11")
def test_a_store_is_not_restored_below_objects_that_are_newer(home: Path, tmp_path: Path) -> None:
    backups.back_up(place(home), tmp_path / "b")
    append(home, 4)
    (home / "store.db").rename(tmp_path / "lost.db")
    for rest in home.glob("store.db*"):
        rest.unlink()
    before = sorted(path for path in (home / "objects").rglob("*") if path.is_file())
    with pytest.raises(BackupRefused, match="objects that the backup does not have") as refused:
        backups.restore(tmp_path / "b", place(home))
    assert "empty object storage" in refused.value.hint
    assert sorted(path for path in (home / "objects").rglob("*") if path.is_file()) == before
    assert not (home / "store.db").exists()


def test_a_backup_is_never_written_over_something_else(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupRefused, match="not empty"):
        backups.back_up(place(home), home)
    assert contents(home) == [(1,), (2,), (3,)]
    backups.back_up(place(home), tmp_path / "b")
    with pytest.raises(BackupRefused, match="already has a backup"):
        backups.back_up(place(home), tmp_path / "b")


def test_what_is_not_a_backup_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupRefused, match="is not a backup"):
        backups.restore(home, place(tmp_path / "r"))
    backups.back_up(place(home), tmp_path / "b")
    with pytest.raises(BackupRefused, match="cluster 'default', not 'other'"):
        backups.restore(tmp_path / "b", ClusterAddress.of_home(tmp_path / "r", "other"))
    report = tmp_path / "b" / backups.REPORT
    body = report.read_bytes()
    report.write_bytes(body.replace(b'"format":1', b'"format":2'))
    with pytest.raises(BackupRefused, match="format 2"):
        backups.restore(tmp_path / "b", place(tmp_path / "r"))
    report.write_bytes(body[:-5])
    with pytest.raises(BackupRefused, match="is damaged"):
        backups.restore(tmp_path / "b", place(tmp_path / "r"))
    report.write_bytes(body)
    (tmp_path / "b" / "store.db").unlink()
    with pytest.raises(BackupRefused, match=r"no store\.db"):
        backups.restore(tmp_path / "b", place(tmp_path / "r"))
    assert not (tmp_path / "r" / "store.db").exists()


def test_the_commands_say_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["backup", str(tmp_path / "b"), "--store", "sqlite:///x.db"],
        ["restore", str(tmp_path / "b")],
        ["backup", str(tmp_path / "b"), "--home", str(tmp_path / "nothing")],
    ):
        assert main([*arguments, "--json"]) == 2
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["error"]["code"] == "usage"
