"""Two nodes at one folder, on every backend: each file in exactly one lot."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sources_stage import BAD, ORDERS, SOURCE, SourceStage, ids, taken_page
from tidemill.errors import LeaseLost
from tidemill.publish.parts import PartTask
from tidemill.store import Store, Tx, open_store
from tidemill.store.memory import MemoryStore
from tidemill.testing.threads import together

FILES = 60


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_url"))
    else:
        url = f"sqlite:///{tmp_path}/s.db"
    with MemoryStore() if request.param == "memory" else open_store(url) as store:
        yield store


@pytest.mark.rule("CLU-21")
@pytest.mark.rule("CLU-22")
def test_each_file_is_taken_once_by_nodes_that_race(store: Store, tmp_path: Path) -> None:
    stage = SourceStage(tmp_path / "in", store, max_files=7, settle_s=0)
    for number in range(FILES):
        stage.put(f"{number % 3}/{number}.json", body=f'{{"id":{number}}}\nbad {number}\n')

    def worker(name: str) -> int:
        work = stage.ingestion(name)
        ended = 0
        for round_ in range(3):
            stage.put(f"late/{name}-{round_}.json", body=f'{{"id":{1000 + len(name) * 10 + round_}}}\n')
            work.discover()
            ended += work.ingest()
        return ended

    ended = together(lambda: worker("a"), lambda: worker("bb"), lambda: worker("ccc"))
    last = stage.ingestion("last")
    last.discover()
    last.ingest()
    late = [1000 + size * 10 + round_ for size in (1, 2, 3) for round_ in range(3)]
    assert ids(stage.published()) == [*range(FILES), *late]
    assert sorted(row[2] for row in stage.published(BAD)) == sorted(f"bad {n}" for n in range(FILES))
    assert stage.open_windows() == []
    assert sum(ended) <= len(stage.stage.events(ORDERS))
    stage.stage.check()


@pytest.mark.rule("CLU-22")
def test_nodes_that_die_and_others_that_go_on_take_each_file_once(store: Store, tmp_path: Path) -> None:
    """Every second task ends with its node's entry gone from the list, and the node a zombie that goes on."""
    stage = SourceStage(tmp_path / "in", store, max_files=3, settle_s=0)
    for number in range(FILES // 2):
        stage.put(f"{number}.json", number)

    def worker(name: str) -> int:
        dice = random.Random(name)
        lost = 0
        for life in range(8):
            node = stage.node(name)

            def die(task: PartTask, life: int = life, node: object = node) -> None:
                if life < 7 and dice.random() < 0.5:
                    stage.stage.kill(node)  # type: ignore[arg-type]

            work = stage.ingestion(node, before=die)
            try:
                work.discover()
                work.ingest()
            except LeaseLost:
                lost += 1
        return lost

    lost = together(lambda: worker("a"), lambda: worker("b"))
    assert sum(lost) > 0
    stage.run("last")
    assert ids(stage.published()) == list(range(FILES // 2))
    stage.stage.check()


@pytest.mark.rule("LOT-43")
def test_a_look_at_many_old_files_reads_in_pages_and_writes_nothing(tmp_path: Path) -> None:
    """Three thousand files that were taken: a read for each thousand, and one window for what is new."""
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        stage = SourceStage(tmp_path / "in", store, settle_s=0)
        for number in range(3_000):
            path = stage.root / f"{number:05}.json"
            path.write_bytes(b'{"id":1}\n')
        work = stage.ingestion()
        looked = work.discover()
        assert looked is not None
        assert (looked.taken, len(looked.windows)) == (3_000, 6)
        stage.put("new.json", 7)
        transactions: list[int] = []
        genuine = store.run

        def counted(fn, *, mode="serial"):  # type: ignore[no-untyped-def]
            def inner(tx: Tx) -> object:
                answer = fn(tx)
                transactions.append(tx.writes)
                return answer

            return genuine(inner, mode=mode)

        store.run = counted  # type: ignore[method-assign]
        looked = work.discover()
        assert looked is not None
        assert (looked.listed, looked.taken) == (3_001, 1)
        assert len(transactions) < 12  # a read for each thousand or so, and one window
        assert sum(1 for writes in transactions if writes) == 1
        transactions.clear()
        work.discover()
        assert len(transactions) == 1  # of the page that had the new file; the others are as they were
        first = store.run(lambda tx: taken_page(tx, stage.keys, SOURCE, limit=1))
        assert first[0][0] == "00000.json"
