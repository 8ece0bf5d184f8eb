"""Bells between processes that share a SQLite file; where a head is deaf, only a bell can wake."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.store.keys import Space
from tidemill.store.sqlite import SqliteStore
from tidemill.store.sqlite.wakeups import WakeupMessage, WakeupReceiver, checksum
from tidemill.testing.threads import STUCK_S

SPACE = Space("bells")


def commit_elsewhere(path: Path, key: str) -> None:
    code = (
        "from tidemill.store.sqlite import SqliteStore; from tidemill.store.keys import Space\n"
        f"with SqliteStore({str(path)!r}) as store:\n"
        f"    store.run(lambda tx: tx.set(Space('bells')[{key!r}], b'x'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=STUCK_S)


@pytest.fixture
def store(tmp_path, monkeypatch):
    with SqliteStore(tmp_path / "store.db") as store:
        yield store


def deafen_head(store, monkeypatch):
    seen = store._watches._seen
    monkeypatch.setattr(store._watches, "_look", lambda: seen)


@pytest.mark.rule("STO-8")
def test_a_commit_of_another_process_rings_at_a_watch_that_could_not_find_out_otherwise(store, monkeypatch):
    with store.watch([SPACE["wanted"]]) as watch:
        deafen_head(store, monkeypatch)
        commit_elsewhere(store.path, "wanted")
        assert watch.wait(STUCK_S)


def test_a_bell_for_other_keys_wakes_nobody_and_the_next_one_still_does(store):
    with store.watch([SPACE["wanted"]]) as watch:
        seen = store._watches._seen
        store._watches.received(WakeupMessage(seen + 1, frozenset({checksum(SPACE["other"])})))
        assert not watch.event.is_set()
        store._watches.received(WakeupMessage(seen + 2, frozenset({checksum(SPACE["wanted"])})))
        assert watch.event.is_set()


@pytest.mark.rule("STO-8")
def test_a_bell_that_was_lost_is_noticed_by_the_next_one(store):
    with store.watch([SPACE["wanted"]]) as watch:
        seen = store._watches._seen
        store._watches.received(WakeupMessage(seen + 2, frozenset({checksum(SPACE["other"])})))
        assert watch.event.is_set()


def test_a_bell_with_too_many_keys_to_name_wakes_everybody(store):
    with store.watch([SPACE["wanted"]]) as watch:
        store._watches.received(WakeupMessage(store._watches._seen + 1, None))
        assert watch.event.is_set()


def test_a_quiet_commit_rings_for_nobody_and_leaves_no_gap(store, tmp_path):
    """Its number is told, so that the next bell is the very next one and wakes only whom it names."""
    heard: list[WakeupMessage] = []
    with SqliteStore(tmp_path / "store.db") as other:
        ear = WakeupReceiver(other._watches._bells.folder, other.chance)

        def quietly(tx):
            tx.set(SPACE["wanted"], b"1", quiet=True)
            tx.set_many([(SPACE["two"], b"2")], quiet=True)

        for fn in (
            quietly,
            lambda tx: tx.clear(SPACE["two"], quiet=True),
            lambda tx: tx.take(SPACE["wanted"], SPACE["wanted"] + b"\x00", 1, quiet=True),
            lambda tx: tx.set(SPACE["wanted"], b"2"),
        ):
            store.run(fn)
            heard.append(ear.hear())
        ear.close()
    assert [bell.commit - heard[0].commit for bell in heard] == [0, 1, 2, 3]
    wanted = checksum(SPACE["wanted"])
    assert [bell.sums is not None and wanted in bell.sums for bell in heard] == [False, False, False, True]
    assert all(checksum(SPACE["two"]) not in bell.sums for bell in heard)


def test_the_name_of_a_dead_process_is_removed_by_whoever_rings_next(store):
    names = store._watches._bells.folder
    names.mkdir(exist_ok=True)
    (names / "1-dead").touch()
    store.run(lambda tx: tx.set(SPACE["a"], b"x"))
    assert not (names / "1-dead").exists()


def test_an_ear_that_is_just_being_closed_does_not_fail_a_commit(store, tmp_path):
    with SqliteStore(tmp_path / "store.db") as other:
        ear = WakeupReceiver(other._watches._bells.folder, other.chance)
        ear._socket.shutdown(socket.SHUT_RDWR)  # its name is still there, and whoever rings gets EPIPE
        store.run(lambda tx: tx.set(SPACE["a"], b"x"))
        assert store.run(lambda tx: tx.get(SPACE["a"])) == b"x"
        ear.close()


def test_closing_takes_the_name_away(tmp_path):
    with SqliteStore(tmp_path / "s.db") as store:
        watch = store.watch([SPACE["a"]])
        folder = store._watches._bells.folder
        assert len(list(folder.iterdir())) == 1
        watch.close()
    assert list(folder.iterdir()) == []
