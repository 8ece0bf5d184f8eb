"""Wakeups between processes that share a SQLite file."""

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


def hide_commits(store, monkeypatch):
    commit = store._watches._seen
    monkeypatch.setattr(store._watches, "_look", lambda: commit)


@pytest.mark.rule("STO-8")
def test_a_commit_of_another_process_wakes_a_watch_that_cannot_see_it_in_the_header(store, monkeypatch):
    with store.watch([SPACE["wanted"]]) as watch:
        hide_commits(store, monkeypatch)
        commit_elsewhere(store.path, "wanted")
        assert watch.wait(STUCK_S)


def test_a_wakeup_for_other_keys_fires_no_watch_and_the_next_one_does(store):
    with store.watch([SPACE["wanted"]]) as watch:
        commit = store._watches._seen
        store._watches.received(WakeupMessage(commit + 1, frozenset({checksum(SPACE["other"])})))
        assert not watch.event.is_set()
        store._watches.received(WakeupMessage(commit + 2, frozenset({checksum(SPACE["wanted"])})))
        assert watch.event.is_set()


@pytest.mark.rule("STO-8")
def test_a_lost_wakeup_is_noticed_by_the_next_one(store):
    with store.watch([SPACE["wanted"]]) as watch:
        commit = store._watches._seen
        store._watches.received(WakeupMessage(commit + 2, frozenset({checksum(SPACE["other"])})))
        assert watch.event.is_set()


def test_a_wakeup_without_keys_fires_every_watch(store):
    with store.watch([SPACE["wanted"]]) as watch:
        store._watches.received(WakeupMessage(store._watches._seen + 1, None))
        assert watch.event.is_set()


def test_a_quiet_commit_names_no_key_and_leaves_no_gap(store, tmp_path):
    """Its number is sent, so the next wakeup is the next number and fires only the watches it names."""
    received: list[WakeupMessage] = []
    with SqliteStore(tmp_path / "store.db") as other:
        receiver = WakeupReceiver(other._watches._sender.folder, other.chance)

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
            received.append(receiver.receive())
        receiver.close()
    assert [message.commit - received[0].commit for message in received] == [0, 1, 2, 3]
    watched = checksum(SPACE["wanted"])
    assert [message.sums is not None and watched in message.sums for message in received] == [
        False,
        False,
        False,
        True,
    ]
    assert all(checksum(SPACE["two"]) not in message.sums for message in received)


def test_the_next_sender_removes_the_name_of_a_dead_process(store):
    names = store._watches._sender.folder
    names.mkdir(exist_ok=True)
    (names / "1-dead").touch()
    store.run(lambda tx: tx.set(SPACE["a"], b"x"))
    assert not (names / "1-dead").exists()


def test_a_receiver_that_is_being_closed_does_not_fail_a_commit(store, tmp_path):
    with SqliteStore(tmp_path / "store.db") as other:
        receiver = WakeupReceiver(other._watches._sender.folder, other.chance)
        receiver._socket.shutdown(socket.SHUT_RDWR)  # its name still exists, and the sender gets EPIPE
        store.run(lambda tx: tx.set(SPACE["a"], b"x"))
        assert store.run(lambda tx: tx.get(SPACE["a"])) == b"x"
        receiver.close()


def test_closing_removes_the_name(tmp_path):
    with SqliteStore(tmp_path / "s.db") as store:
        watch = store.watch([SPACE["a"]])
        folder = store._watches._sender.folder
        assert len(list(folder.iterdir())) == 1
        watch.close()
    assert list(folder.iterdir()) == []
