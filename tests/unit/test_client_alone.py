"""The client on an in-memory store without workers: addresses, batches, lineage, handles."""

import io
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.futures_stage import BIG, SECOND_US
from tidemill import Client, Future
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import FutureTimeout, FutureUnknown, UnsatisfiableError, UsageError
from tidemill.futures.client.connection import Connection
from tidemill.futures.client.lineage import DEEPEST, Lineage
from tidemill.futures.client.options import Options
from tidemill.futures.client.submission import _QueuedSubmission
from tidemill.futures.home import ClusterAddress
from tidemill.futures.protocol import claim
from tidemill.futures.values.result_storage import ResultStorage
from tidemill.futures.values.signatures import ClusterKey, Signer
from tidemill.objects.memory import MemoryObjects
from tidemill.store import open_store
from tidemill.testing import FakeClock

KEY = ClusterKey(b"k" * 32)
TTL_US = 15 * SECOND_US


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def client(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(Connection, "_run", lambda self: None)  # its thread would move the fake clock on
    place = ClusterAddress(store="memory://", objects="memory://", key=KEY)
    store, objects = open_store("memory://", clock=clock), MemoryObjects(clock)
    values = ResultStorage(Signer(KEY), objects=objects)
    link = Connection(place, store, objects, "me", values, own=False, clock=clock, chance=random.Random(3))
    client = Client(link)
    yield client
    link._closed.set()
    store.close()


def double(x: Any) -> Any:
    return x * 2


def join(client: Client, name: str) -> Node:
    node = Node(id=name, epoch=0, kind="worker", total=BIG.to_node(), free=BIG.to_node())
    return client._link.store.run(lambda tx: nodes.join(tx, client._link.cluster, node, TTL_US))


# --- without a leader


@pytest.mark.rule("FUT-49")
def test_without_a_leader_a_waiting_client_releases_the_claim_of_a_dead_worker(
    client: Client, clock: FakeClock
) -> None:
    future = client.submit(double, 1)
    worker = join(client, "w")
    link = client._link

    def take(tx: Any) -> Any:
        lanes = claim.read_lanes(tx, link.keys)
        return claim.claim(tx, link.keys, link.cluster, worker, lanes, BIG, 1)

    assert len(link.store.run(take, mode="take")) == 1
    assert future.state == "claimed"
    clock.advance(16)
    with pytest.raises(FutureTimeout):
        future.result(timeout=10)
    assert future.state == "unclaimed"


# --- batches


def test_a_refused_submission_does_not_affect_others_of_its_batch(client: Client) -> None:
    link = client._link
    join(client, "w")
    stranger = Future[Any](client, b"\x00" * 16)
    code = link.submissions.code(double)
    plain = Options.of({})
    bad = _QueuedSubmission(link.submissions.make(code, (stranger,), {}, plain))
    huge = _QueuedSubmission(link.submissions.make(code, (1,), {}, Options.of({"cpu": 1_000})))
    fine = [_QueuedSubmission(link.submissions.make(code, (n,), {}, plain)) for n in range(3)]
    link.submission_writer._queue.extend([fine[0], bad, fine[1], huge, fine[2]])
    assert link.submission_writer.write(link.submissions.make(code, (5,), {}, plain))
    assert isinstance(bad.error, FutureUnknown)
    assert isinstance(huge.error, UnsatisfiableError)
    assert all(queued.id and queued.error is None for queued in fine)


def test_large_arguments_make_smaller_pages(client: Client) -> None:
    futures = client.map(double, [bytes(15_000)] * 200)  # in their specs: 3 MB, and a transaction has 1
    assert {future.state for future in futures[:5]} == {"unclaimed"}
    large = client.map(double, [bytes(50_000)] * 3)  # objects
    assert len(large) == 3


def test_the_ids_of_a_batch_are_in_order(client: Client) -> None:
    futures = client.map(double, range(250))
    ids = [future.id for future in futures]
    assert ids[:100] == sorted(ids[:100])
    assert len(set(ids)) == 250


# --- lineage


def lines(tree: Lineage) -> list[str]:
    return [line.partition(" [")[0].strip("└├│─ ") for line in str(tree).splitlines()]


@pytest.mark.rule("FUT-58")
def test_lineage_is_a_tree_that_shows_the_inputs_of_a_shared_future_once(client: Client) -> None:
    base = client.put(1)
    left, right = client.submit(double, base), client.submit(double, base)
    again = client.submit(double, left)
    top = client.submit(max, left, [right, again])
    tree = top.lineage()
    assert [future.name.rpartition(".")[2] for future in tree] == [
        *("max", "double", "put", "double", "put", "double", "double")
    ]
    assert str(tree).count("(above)") == 1  # `left`, below `again`
    assert tree.children[2].children[0].again
    assert not tree.children[0].again
    assert tree._repr_html_().startswith("<pre>max [blocked]")
    shown = io.StringIO()
    Console(file=shown, width=150).print(tree)
    assert shown.getvalue().count("double") == 4
    assert tree.to_json()["inputs"][0]["name"].endswith("double")  # type: ignore[index]


def test_a_long_chain_and_a_wide_fan_are_cut(client: Client) -> None:
    future = client.submit(double, 1)
    for _ in range(DEEPEST + 5):
        future = client.submit(double, future)
    tree = future.lineage()
    assert len(list(tree)) == DEEPEST
    assert str(tree).endswith("… 1 more")
    wide = client.submit(max, *client.map(double, range(250)))
    assert len(wide.lineage().children) == 250


# --- cluster addresses


def test_an_address_is_pickled_without_its_secrets() -> None:
    place = ClusterAddress(store="postgresql://ann:tide@db/shop", objects="s3://KEY:SECRET@bucket/x", key=KEY)
    stream = pickle.dumps(place)
    assert b"tide@" not in stream
    assert b"SECRET" not in stream
    assert KEY.secret not in stream
    arrived = pickle.loads(stream)
    assert arrived == place
    assert not arrived.can_be_opened
    assert "ann:***@db" in repr(place)


def test_a_home_contains_the_store_and_the_key(tmp_path: Path) -> None:
    place = ClusterAddress.of_home(tmp_path / "a home?", cluster="c")
    assert place.store.endswith("/a%20home%3F/store.db")
    assert not (tmp_path / "a home?").exists()
    key = place.key
    assert (tmp_path / "a home?" / "cluster.key").stat().st_mode & 0o777 == 0o600
    arrived = pickle.loads(pickle.dumps(place))
    assert arrived.can_be_opened
    assert arrived.key.secret == key.secret
    assert ClusterAddress.of(home=tmp_path / "a home?", cluster="c") == place
    with open_store(place.store):
        assert (tmp_path / "a home?" / "store.db").exists()


def test_a_handle_from_a_cluster_with_a_password_asks_to_connect_first(client: Client) -> None:
    secret = ClusterAddress(store="postgresql://ann:tide@db/shop", objects="", key=KEY)
    client._link.place = secret
    stream = pickle.dumps(Future[Any](client, b"\x01" * 16))
    with pytest.raises(UsageError, match="not connected to") as caught:
        pickle.loads(stream)
    assert "ann:***@db" in str(caught.value)


@pytest.mark.rule("FUT-64")
def test_every_handle_counts_including_several_of_one_future(client: Client) -> None:
    first = client.submit(double, 1, key="one")
    mapped = client.map(double, [1, 2], key="some") + client.map(double, [1, 2], key="some")
    again = [client.submit(double, 1, key="one") for _ in range(3)]
    client.handles.tick()
    assert len(client.handles) == 3
    del again, mapped
    client.handles.tick()
    assert len(client.handles) == 1
    copy = pickle.loads(pickle.dumps(first)) if client.place.can_be_opened else client.future(first.id)
    del first
    client.handles.tick()
    assert len(client.handles) == 1
    del copy
    client.handles.tick()
    assert len(client.handles) == 1  # pickled: it may be on its way
    client._link.clock.sleep(601)
    client.handles.tick()
    assert len(client.handles) == 0
