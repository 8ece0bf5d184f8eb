"""HTTP push from here to nodes that are killed while they receive: what was answered is there, once."""

import http.client
import io
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.processes import Process
from tests.servers.process import wait_until
from tests.unit.push_stage import SOURCE, address, lines, post
from tidemill.clock import SYSTEM
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.objects import open_objects
from tidemill.publish.manifests import Manifests
from tidemill.sources.keys import SourceKeys
from tidemill.store import Store, open_store
from tidemill.testing.threads import STUCK_S

KEYS = SourceKeys("c")
NODE = "tests.integration.push_node"
SENDERS = 4


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[str, str, Store]]:
    url, objects = f"sqlite:///{tmp_path}/s.db", str(tmp_path / "objects")
    with open_store(url) as store:
        yield url, objects, store


def stored_ids(store: Store, objects_url: str) -> list[int]:
    objects = open_objects(objects_url, clock=SYSTEM)
    manifests = Manifests(objects, SYSTEM)
    ids: list[int] = []
    after = ""
    while page := store.run(
        lambda tx, after=after: lots.listed(tx, KEYS.publish.lots, DatasetId("orders"), after)
    ):
        after = page[-1].lot
        for row in page:
            for item in manifests.lot_objects(row.manifest):
                table = pq.read_table(io.BytesIO(objects.get(item.uri)[0]))
                ids += table.column("id").to_pylist()
    return ids


def run(place: tuple[str, str, Store], each: int) -> None:
    url, objects, store = place
    answered = [0] * SENDERS
    sent = SENDERS * each

    def sender(number: int) -> int:
        for seq in range(each):
            first = (number * each + seq) * 2
            while True:
                at = store.run(lambda tx: address(tx, KEYS, SOURCE))
                try:
                    assert at is not None
                    body = lines(first, first + 1)
                    status, _ = post(at, body, Tidemill_Producer=f"p{number}", Tidemill_Seq=str(seq))
                except (OSError, http.client.HTTPException):
                    status = 0
                if status == 200:
                    break
                assert status in (0, 429, 503), status
                SYSTEM.sleep(0.05)
            answered[number] += 1
        return each

    with ExitStack() as stack:
        running: dict[str, Process] = {}

        def start(name: str) -> None:
            running[name] = stack.enter_context(Process(NODE, url, objects, name))

        def kill_receiving() -> bool:
            """Kill the node whose address is in the store; False if it has not told us its address yet."""
            at = store.run(lambda tx: address(tx, KEYS, SOURCE))
            names = [name for name, announced in list(where.items()) if announced == at]
            for name in names:
                running[name].process.send_signal(signal.SIGKILL)
            return bool(names)

        def killer() -> int:
            """Kill the node that receives, when a third and two thirds are answered."""
            for death in (1, 2):
                assert wait_until(lambda death=death: sum(answered) >= sent * death // 3, timeout_s=STUCK_S)
                assert wait_until(kill_receiving, timeout_s=STUCK_S)
                start(f"again{death}")
                listen(f"again{death}")
            return 2

        where: dict[str, str | None] = {}

        def listen(name: str) -> None:
            def hear() -> None:
                process = running[name].process
                assert process.stdout is not None
                for line in process.stdout:
                    where[name] = line.partition('"url": "')[2].partition('"')[0] or None

            threading.Thread(target=hear, daemon=True).start()

        for name in ("one", "two"):
            start(name)
            listen(name)
        assert wait_until(lambda: any(where.values()), timeout_s=STUCK_S)
        with ThreadPoolExecutor(SENDERS + 1) as pool:
            ends = [pool.submit(killer), *(pool.submit(sender, number) for number in range(SENDERS))]
            assert [end.result(STUCK_S * 2) for end in ends] == [2, *[each] * SENDERS]
    assert sorted(stored_ids(store, objects)) == list(range(sent * 2))


@pytest.mark.rule("LOT-35")
@pytest.mark.rule("CLU-19")
def test_every_answered_row_is_there_once_although_the_receiving_node_is_killed_twice(
    place: tuple[str, str, Store],
) -> None:
    run(place, each=75)


@pytest.mark.crash
def test_thousands_of_requests_survive_two_kills(place: tuple[str, str, Store]) -> None:
    run(place, each=1000)
