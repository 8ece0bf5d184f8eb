"""Code, arguments and results that nothing refers to are deleted, however their process ended (FUT-34)."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.futures_stage import Stage
from tidemill import Client, Future, crash
from tidemill.errors import BlobMissing, FutureUnknown
from tidemill.futures.client.connection import Connection
from tidemill.futures.client.options import Options
from tidemill.futures.home import ClusterAddress
from tidemill.futures.protocol import code, drafts, finish, rows, submit, sweep
from tidemill.futures.protocol.keys import result_object
from tidemill.futures.protocol.leader_duties import COLLECT_EVERY_S
from tidemill.futures.protocol.rows import Realized
from tidemill.futures.values.blobs import IN_STORE_BYTES, REGISTERED_S, Blobs
from tidemill.futures.values.result_storage import ResultStorage
from tidemill.futures.values.signatures import ClusterKey, Signer
from tidemill.futures.worker.janitor import Janitor
from tidemill.objects.memory import MemoryObjects

DAY_S = 24 * 3600.0
KEY = ClusterKey(b"k" * 32)
DUTIES = ("reap futures", "release results", "sweep futures", "delete unused code", "delete drafts")


class Leftovers(Stage):
    """A stage with objects, a client and a janitor, but without processes."""

    def __init__(self) -> None:
        super().__init__(scan=False)
        self.objects = MemoryObjects(self.clock)
        self.signer = Signer(KEY)
        self.blobs = Blobs(self.store, self.keys, self.signer, self.objects, self.clock)
        self.values = ResultStorage(self.signer, objects=self.objects, announce=self.announce)

    def announce(self, name: str) -> None:
        self.store.run(lambda tx: drafts.announce(tx, self.keys, name))

    def names(self) -> list[str]:
        return [info.key for info in self.objects.list("futures/")]

    def lead(self, hours: float = 1.0) -> None:
        """Let time pass, with a leader that does its duties every hour."""
        for _ in range(int(hours)):
            self.clock.advance(COLLECT_EVERY_S + 1)
            for duty in DUTIES:
                self.round(duty)
            self.delete_garbage()

    def delete_garbage(self) -> None:
        names = [str(self.keys.garbage.unpack(row.key)[0]) for row in self.rows_in(self.keys.garbage)]
        self.objects.delete_many(names)
        self.store.run(lambda tx: Janitor._clear(_OnlyKeys(self.keys), tx, names))  # type: ignore[arg-type]

    def rows_in(self, *spaces: Any) -> list[Any]:
        return [row for space in spaces for row in self.store.run(lambda tx, s=space: tx.range(*s.all()))]

    def rows_of_code(self) -> list[Any]:
        return self.rows_in(self.keys.code, self.keys.code_state)

    def is_clean(self) -> bool:
        spaces = (self.keys.spec, self.keys.future, self.keys.draft, self.keys.garbage, self.keys.copy)
        return not (self.names() or self.rows_of_code() or self.rows_in(*spaces))

    def submit_code(self, digest: bytes, **fields: Any) -> bytes:
        spec = self.spec(code=digest, **fields)

        def step(tx: Any) -> bytes:
            code.need(tx, self.keys, [digest])
            return submit.submit(tx, self.keys, [spec])[0]

        return self.run(step)


class _OnlyKeys:
    def __init__(self, keys: Any) -> None:
        self._keys = keys


@pytest.fixture
def stage() -> Leftovers:
    return Leftovers()


@pytest.fixture
def client(stage: Leftovers, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(Connection, "_run", lambda self: None)  # its thread would move the fake clock on
    place = ClusterAddress(store="memory://", objects="memory://", key=KEY, cluster="c")
    link = Connection(
        place,
        stage.store,
        stage.objects,
        "me",
        stage.values,
        own=False,
        clock=stage.clock,
        chance=random.Random(3),
    )
    return Client(link)


SIZES = [100, IN_STORE_BYTES + 1]


# --- code


@pytest.mark.rule("FUT-34")
@pytest.mark.parametrize("size", SIZES)
def test_code_is_deleted_after_the_last_future_that_uses_it(stage: Leftovers, size: int) -> None:
    worker = stage.worker("w")
    digest = stage.blobs.store_code(bytes(size))
    futures = [stage.submit_code(digest) for _ in range(2)]
    stage.make(worker, futures[0])
    stage.lead(30)
    assert stage.blobs.load_code(digest) == bytes(size), "one future has not ended"
    worker = stage.worker("w")
    stage.make(worker, futures[1])
    stage.lead(23)
    assert stage.blobs.load_code(digest) == bytes(size), "its row is kept for a day"
    stage.lead(5)
    assert stage.is_clean()


@pytest.mark.parametrize("size", SIZES)
def test_a_submission_removes_the_mark_and_keeps_the_code(stage: Leftovers, size: int) -> None:
    digest = stage.blobs.store_code(bytes(size))
    stage.lead()  # marked
    stage.submit_code(digest)
    stage.lead(5)
    assert stage.blobs.load_code(digest) == bytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_a_future_of_deleted_code_is_refused_and_the_code_is_stored_again(
    stage: Leftovers, size: int
) -> None:
    digest = stage.blobs.store_code(bytes(size))
    stage.lead(4)
    assert stage.is_clean()
    with pytest.raises(BlobMissing, match="deleted"):
        stage.submit_code(digest)
    assert stage.clock.monotonic() > REGISTERED_S
    assert stage.blobs.store_code(bytes(size)) == digest
    stage.submit_code(digest)
    assert stage.blobs.load_code(digest) == bytes(size)


def test_a_name_of_deleted_code_is_not_used_again(stage: Leftovers) -> None:
    """A slow janitor may delete an object of this name at any time."""
    stage.blobs.store_code(bytes(100_000))
    names = stage.names()
    stage.lead(4)
    stage.blobs.store_code(bytes(100_000))
    assert len(stage.names()) == 1
    assert stage.names() != names


def test_code_that_an_earlier_release_stored_is_deleted_when_unused(stage: Leftovers) -> None:
    for digest in (b"used" * 8, b"free" * 8):
        stage.run(lambda tx, digest=digest: tx.set(stage.keys.code[digest], b"content"))
    stage.submit(code=b"used" * 8)
    stage.lead(4)
    assert [stage.keys.code.unpack(row.key)[0] for row in stage.rows_in(stage.keys.code)] == [b"used" * 8]


def test_code_that_was_marked_during_a_round_is_not_deleted_in_it() -> None:
    """Two leaders have read all specs when a future is submitted; one of them marks its code."""
    stage, digest = Leftovers(), b"d" * 32
    stage.run(code.register, stage.keys, digest, b"content")
    began = stage.store.run(lambda tx: tx.now())
    stage.submit_code(digest)
    for _ in range(2):
        assert stage.run(code.collect_page, stage.keys, frozenset(), began, b"")[0] == 0
    assert stage.run(code.read, stage.keys, digest) is not None


@pytest.mark.parametrize("seed", range(40))
def test_no_order_of_steps_deletes_code_that_a_future_needs(seed: int) -> None:
    """Clients, the sweep and the pages of rounds take turns; every future has its code at any time."""
    stage, chance = Leftovers(), random.Random(seed)
    digests = [bytes([n]) * 32 for n in range(3)]
    began: int | None = None
    used, after, all_read = set[bytes](), b"", False

    def store_or_submit() -> None:
        digest = chance.choice(digests)
        if chance.random() < 0.3:
            stage.run(code.register, stage.keys, digest, b"content")
        else:
            try:
                stage.submit_code(digest)
            except BlobMissing:
                return

    def end() -> None:
        stored = stage.rows_in(stage.keys.future)
        if stored:
            future_id = stage.keys.future.unpack(chance.choice(stored).key)[0]
            row = stage.row(future_id)
            stage.run(lambda tx: sweep.delete(tx, stage.keys, future_id, row))

    def collect() -> None:
        nonlocal began, used, after, all_read
        if began is None:
            began = stage.store.run(lambda tx: tx.now())
        if not all_read:
            page, after = stage.run(code.used_page, stage.keys, after, 1)
            used |= page
            all_read = not after
        else:
            _, after = stage.run(code.collect_page, stage.keys, used, began, after, 1)
            if not after:
                began, used, all_read = None, set(), False

    steps: list[Callable[[], None]] = [store_or_submit, end, collect, collect]
    for _ in range(150):
        chance.choice(steps)()
        stage.clock.advance(chance.choice([0.0, 1.0, 4000.0]))
        stored = {stage.keys.code.unpack(row.key)[0] for row in stage.rows_in(stage.keys.code)}
        specs = [rows.decode_spec(row.value) for row in stage.rows_in(stage.keys.spec)]
        needed = {spec.code for spec in specs}
        assert needed <= stored


# --- arguments and results


def plain(x: Any) -> Any:
    return x


@pytest.mark.rule("FUT-34")
@pytest.mark.parametrize("point", ["futures.blob.before", "futures.blob.after"])
@pytest.mark.parametrize("visit", [1, 2])
def test_a_client_that_dies_while_it_submits_leaves_nothing(
    stage: Leftovers, client: Client, point: str, visit: int
) -> None:
    big = bytes(100_000)
    with crash.armed(point, visit=visit), pytest.raises(crash.Crashed):
        client.submit(lambda x: (x, big), bytes(50_000))  # its code is an object, and so are its arguments
    stage.lead(1)
    assert stage.rows_in(stage.keys.draft, stage.keys.code_state), "the names are known"
    stage.lead(30)
    assert stage.is_clean()


def test_the_arguments_of_a_refused_submission_are_deleted(stage: Leftovers, client: Client) -> None:
    with pytest.raises(FutureUnknown):
        client.submit(plain, (bytes(50_000), Future[Any](client, b"\x00" * 16)))
    assert len(stage.names()) == 1
    stage.lead(30)
    assert stage.is_clean()


def test_the_arguments_of_a_repeated_submission_are_deleted_at_once(stage: Leftovers, client: Client) -> None:
    stage.worker("w")
    first = client.submit(plain, bytes(50_000), key="k")
    again = client.submit(plain, bytes(60_000), key="k")
    assert first == again
    assert len(stage.names()) == 2
    stage.delete_garbage()
    assert len(stage.names()) == 1
    assert stage.rows_in(stage.keys.draft) == []
    assert client._link.blobs.load_args(stage.spec_of(first.id))


def test_the_arguments_of_a_future_stay_as_long_as_it_does(stage: Leftovers, client: Client) -> None:
    stage.worker("w")
    future = client.submit(plain, bytes(50_000))
    stage.lead(60)
    assert client._link.blobs.load_args(stage.spec_of(future.id))


def test_arguments_that_were_stored_a_day_ago_are_refused(stage: Leftovers, client: Client) -> None:
    link = client._link
    digest = link.submissions.code(plain)
    late = link.submissions.make(digest, (bytes(50_000),), {}, Options.of({}))
    stage.lead(30)
    link.submissions.code(plain)
    with pytest.raises(BlobMissing, match="arguments"):
        link.submission_writer.write(late)


@pytest.mark.rule("FUT-34")
@pytest.mark.parametrize("deaths", [1, 3])
def test_the_durable_result_of_a_lost_claim_is_deleted(stage: Leftovers, deaths: int) -> None:
    digest = stage.blobs.store_code(b"f")
    future = stage.submit_code(digest, durable=True)
    for nth in range(deaths):
        worker = stage.worker(f"w{nth}")
        claimed = stage.claim_one(worker, future)
        stage.values.store(bytes(50_000), future, claimed.epoch, durable=True)
        stage.kill(worker)  # before it could realize the future
        stage.round("reap futures")
    assert len(stage.names()) == deaths
    worker = stage.worker("last")
    claimed = stage.claim_one(worker, future)
    result = stage.values.store(bytes(50_000), future, claimed.epoch, durable=True)
    item = finish.Completion(claimed, stage.spec_of(future), result)
    assert stage.there(finish.realize_many, worker, [item], mode="take") == [True]
    drafts_left = stage.rows_in(stage.keys.draft)
    assert len(drafts_left) == deaths, "the draft of the result is cleared"
    stage.here(lambda tx, keys: tx.set(keys.pin[future, "me"], b""))
    stage.lead(30)
    assert stage.names() == [result.location.name]
    row = stage.row(future)
    assert isinstance(row, Realized)
    assert len(stage.values.load(row.result, future)) == 50_000
    stage.here(lambda tx, keys: tx.clear(keys.pin[future, "me"]))
    stage.lead(30)
    assert stage.is_clean()


def test_the_result_of_a_claim_that_is_valid_stays_however_old_it_is(stage: Leftovers) -> None:
    digest = stage.blobs.store_code(b"f")
    future = stage.submit_code(digest, durable=True)
    worker = stage.worker("w", ttl_s=10**7)
    claimed = stage.claim_one(worker, future)
    stage.values.store(bytes(50_000), future, claimed.epoch, durable=True)
    stage.lead(60)
    assert stage.names() == [result_object(future, claimed.epoch)]


@pytest.mark.parametrize("point", ["futures.result.before", "futures.result.after"])
def test_a_client_that_dies_while_it_puts_a_value_leaves_nothing(
    stage: Leftovers, client: Client, point: str
) -> None:
    with crash.armed(point), pytest.raises(crash.Crashed):
        client.put(bytes(50_000))
    stage.lead(30)
    assert stage.is_clean()


def test_a_value_that_was_put_stays_while_it_is_held(stage: Leftovers, client: Client) -> None:
    stage.worker("me", ttl_s=10**7, kind="client")
    future = client.put(bytes(50_000))
    assert stage.rows_in(stage.keys.draft) == []
    stage.lead(60)
    assert len(future.result()) == 50_000
