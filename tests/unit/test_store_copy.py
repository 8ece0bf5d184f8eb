"""Copies of a store: complete or refused, whatever the moment at which the process dies."""

import json
from pathlib import Path

import pytest

from tidemill import crash
from tidemill.cli import main
from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.errors import CopyIncomplete, UsageError
from tidemill.store import Store, open_store, pack
from tidemill.store.copy import check_complete, copy_store
from tidemill.store.memory import MemoryStore
from tidemill.testing.store_tests.model import contents, fill

LOG = pack(("log",))
POINTS = ["store.copy.begun", "store.copy.page", "store.copy.ended"]


def source_of(rows: int) -> MemoryStore:
    store = MemoryStore()
    for low in range(0, rows, 500):
        fill(store, {b"%06d" % n: b"x" * 900 for n in range(low, min(rows, low + 500))})
    return store


@pytest.mark.rule("STO-11")
@pytest.mark.parametrize("point", POINTS)
def test_a_copy_that_was_killed_is_refused_until_it_is_repeated(point: str) -> None:
    source, target = source_of(1_500), MemoryStore()
    with crash.armed(point), pytest.raises(crash.Crashed):
        copy_store(source, target)
    if point != "store.copy.ended":
        with pytest.raises(CopyIncomplete, match="incomplete copy of memory://"):
            target.run(check_complete)
        node = Node(id="n1", epoch=0, kind="client", address="here", slots=0)
        with pytest.raises(CopyIncomplete):
            target.run(lambda tx: nodes.join(tx, ClusterKeys("c"), node, 1_000_000))
        with pytest.raises(UsageError, match="source is an incomplete copy"):
            copy_store(target, MemoryStore())
        source.run(lambda tx: tx.clear_range(b"000000", b"000100"))
        assert copy_store(source, target) == 1_400, "rows of the first try are removed"
    target.run(check_complete)
    assert contents(target) == contents(source)


@pytest.mark.rule("STO-11")
def test_a_copy_never_mixes_with_other_rows() -> None:
    source = source_of(10)
    target = MemoryStore()
    fill(target, {b"mine": b"1"})
    with pytest.raises(UsageError, match="not empty"):
        copy_store(source, target)
    assert [row.key for row in contents(target)] == [b"mine"]
    assert copy_store(source, target, replace=True) == 10
    assert contents(target) == contents(source)


def test_progress_is_reported_by_page() -> None:
    seen: list[int] = []
    copy_store(source_of(1_200), MemoryStore(), seen.append)
    assert seen[-1] == 1_200
    assert len(seen) > 2


@pytest.mark.rule("STO-11")
def test_the_command_copies_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(str(tmp_path / "a.db")) as store:
        fill(store, {b"%03d" % n: b"v" for n in range(40)})
    assert main(["store", "copy", str(tmp_path / "a.db"), str(tmp_path / "b.db"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == 40
    assert _rows(tmp_path / "a.db") == _rows(tmp_path / "b.db")
    assert main(["store", "copy", str(tmp_path / "a.db"), str(tmp_path / "b.db"), "--json"]) != 0
    assert "not empty" in json.loads(capsys.readouterr().out.splitlines()[-1])["error"]["message"]


def _rows(path: Path) -> list[tuple[bytes, bytes]]:
    with open_store(str(path)) as store:
        return [tuple(row) for row in contents(store)]


@pytest.mark.rule("STO-11")
def test_a_sqlite_store_is_copied_to_postgresql_and_back(tmp_path: Path, postgres_url: str) -> None:
    with open_store(str(tmp_path / "a.db")) as source, open_store(postgres_url) as server:
        fill(source, {b"%05d" % n: b"v" * (n % 700) for n in range(900)})
        source.run(lambda tx: tx.set_versioned(LOG, b"first"))
        assert copy_store(source, server) == 901
        server.run(lambda tx: tx.set_versioned(LOG, b"second"))
        with open_store(str(tmp_path / "b.db")) as back:
            assert copy_store(server, back) == 902
            back.run(lambda tx: tx.set_versioned(LOG, b"third"))
            assert _log(back) == [b"first", b"second", b"third"]
            rows = [row for row in contents(source) if not row.key.startswith(LOG)]
            assert [row for row in contents(back) if not row.key.startswith(LOG)] == rows


def _log(store: Store) -> list[bytes]:
    return [row.value for row in contents(store) if row.key.startswith(LOG)]
