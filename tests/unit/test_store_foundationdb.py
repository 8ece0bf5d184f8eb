"""The FoundationDB backend, as far as it can be tested without a cluster: keys, and our side of the binding.

The conformance tests run here with a double of the documented binding. Only
tests/conformance/test_store_foundationdb.py, with a real cluster, can show that the double is right.
"""

from collections.abc import Iterator

import pytest

from tests.clocks import JumpingClock
from tests.doubles.foundationdb import Binding, Database, FDBError
from tidemill import crash
from tidemill.errors import BadUrl, StoreCorrupt, StoreError, StoreFormat, UsageError
from tidemill.store import Store, Tx, Versionstamp, pack, unpack
from tidemill.store.foundationdb import FoundationStore, Mapping
from tidemill.store.retry import Conflict, Unknown, Unreached
from tidemill.testing import StoreConformance

PREFIX = pack(("mill",))


@pytest.fixture
def binding() -> Binding:
    return Binding()


@pytest.fixture
def store(binding: Binding) -> Iterator[FoundationStore]:
    with FoundationStore("/fdb.cluster", prefix=PREFIX, clock=JumpingClock(), binding=binding) as store:
        yield store


@pytest.fixture
def database(store: FoundationStore, binding: Binding) -> Database:
    return binding.open("/fdb.cluster")


class TestLawsOverTheDouble(StoreConformance):
    has_snapshots = False

    @pytest.fixture
    def store(self, binding: Binding) -> Iterator[Store]:
        self.binding = binding
        with FoundationStore("/fdb.cluster", clock=JumpingClock(), binding=binding) as store:
            yield store

    def reopen(self, store: Store) -> Store:
        return FoundationStore("/fdb.cluster", clock=JumpingClock(), binding=self.binding)

    def age(self, store: Store, seconds: float) -> None:
        assert isinstance(store.clock, JumpingClock)
        store.clock.skip(seconds)


@pytest.mark.parametrize(("side", "there"), [("before", None), ("after", b"v")])
def test_a_crash_before_the_commit_leaves_nothing_and_after_it_everything(
    store: FoundationStore, database: Database, side: str, there: bytes | None
) -> None:
    key = pack(("node", 7))
    with crash.armed(f"store.foundationdb.{side}_commit"), pytest.raises(crash.Crashed):
        store.run(lambda tx: tx.set(key, b"v"))
    assert database.now.get(PREFIX + key) == there
    assert store.run(lambda tx: tx.get(key)) == there


class TestKeys:
    def test_a_key_is_the_prefix_and_the_ports_key(self, store: FoundationStore, database: Database) -> None:
        key = pack(("node", 7, ("a", None)))
        store.run(lambda tx: tx.set(key, b"v"))
        assert database.now[PREFIX + key] == b"v"
        assert unpack(PREFIX + key) == ("mill", "node", 7, ("a", None))
        mapping = Mapping(PREFIX)
        assert mapping.own(mapping.raw(key)) == key

    def test_a_versionstamped_key_is_what_the_tuple_layer_writes(self) -> None:
        prefix = pack(("log",))
        parameter = Mapping(PREFIX).versionstamped(prefix, 3)
        place = int.from_bytes(parameter[-4:], "little")
        stamp = bytes(range(1, 11))
        key = parameter[:place] + stamp + parameter[place + 10 : -4]
        assert key == PREFIX + prefix + pack((Versionstamp(int.from_bytes(stamp, "big"), 3),))

    def test_rows_of_one_batch_of_the_cluster_stay_apart(self, store: FoundationStore) -> None:
        store.run(lambda tx: [tx.set_versioned(b"log", b"1"), tx.set_versioned(b"log", b"2")])
        keys = [row.key for row in store.run(lambda tx: tx.range(b"log", b"loh"))]
        versions = [unpack(key[3:])[0] for key in keys]
        assert all(isinstance(version, Versionstamp) for version in versions)
        assert [pack((version,)) for version in versions] == [key[3:] for key in keys]
        assert versions[0] < versions[1]  # type: ignore[operator]

    @pytest.mark.parametrize("prefix", [b"", b"\xff", b"\xff\x02x"])
    def test_a_prefix_must_be_ours_to_use(self, prefix: bytes) -> None:
        with pytest.raises(BadUrl):
            Mapping(prefix)

    def test_stores_under_different_prefixes_do_not_see_each_other(self, binding: Binding) -> None:
        first, second = (
            FoundationStore("/c", prefix=pack((name,)), clock=JumpingClock(), binding=binding)
            for name in "ab"
        )
        first.run(lambda tx: tx.set(b"k", b"1"))
        assert second.run(lambda tx: tx.range(b"\x00", b"\xfe")) == []


class TestDoubt:
    @pytest.mark.parametrize("lost", ["before", "after"])
    def test_a_commit_of_unknown_outcome_is_applied_once(
        self, store: FoundationStore, database: Database, lost: str
    ) -> None:
        results = iter(range(9))

        def fn(tx: Tx) -> int:
            tx.add(b"n", 1)
            database.lose_next_commit = lost if not returned else None
            returned.append(next(results))
            return returned[-1]

        returned: list[int] = []
        assert store.run(fn) == (0 if lost == "after" else 1)
        assert store.run(lambda tx: tx.counter(b"n")) == 1

    def test_a_fence_that_is_written_meanwhile_makes_the_late_commit_a_conflict(
        self, store: FoundationStore
    ) -> None:
        from tidemill.store.foundationdb import FoundationTx
        from tidemill.store.retry import RetriedCall

        operation = RetriedCall(lambda tx: None, "serial", store.chance)
        operation.attempt = 1
        late = FoundationTx(store, "serial", 1)
        late.set(b"k", b"late")
        operation.key(late.now())
        assert store._fence(operation) == 0
        with pytest.raises(Conflict):
            late.commit(operation)
        assert store.run(lambda tx: tx.get(b"k")) is None
        assert store._fence(operation) == 0

    @pytest.mark.parametrize(
        ("code", "committing", "meaning"),
        [
            (1020, True, Conflict),
            (1007, False, Conflict),
            (1021, True, Unknown),
            (1039, True, Unknown),
            (1031, True, Unknown),
            (1031, False, Unreached),
            (1037, False, Unreached),
            (2000, False, StoreError),
        ],
    )
    def test_errors_of_the_cluster_are_distinguished(
        self, store: FoundationStore, code: int, committing: bool, meaning: type[Exception]
    ) -> None:
        def fail() -> None:
            raise FDBError(code)

        with pytest.raises(meaning):
            store.call(fail, committing=committing)


class TestOpening:
    def test_takers_conflict_only_over_the_same_row(self, store: FoundationStore) -> None:
        store.run(lambda tx: [tx.set(b"q/%d" % n, b"") for n in range(9)])
        first = store.run(lambda tx: tx.take(b"q/", b"q0", 3), mode="take")
        assert [row.key for row in first] == [b"q/0", b"q/1", b"q/2"]
        assert store.conflicts == 0

    @pytest.mark.rule("STO-10")
    def test_a_newer_format_is_refused(
        self, store: FoundationStore, database: Database, binding: Binding
    ) -> None:
        (key,) = [key for key in database.now if key.endswith(b"format")]
        database.now[key] = pack((2,))
        with pytest.raises(StoreFormat, match="upgrade"):
            FoundationStore("/fdb.cluster", prefix=PREFIX, clock=JumpingClock(), binding=binding)
        database.now[key] = b"nonsense"
        with pytest.raises(StoreCorrupt):
            FoundationStore("/fdb.cluster", prefix=PREFIX, clock=JumpingClock(), binding=binding)

    def test_a_child_after_a_fork_is_refused(
        self, store: FoundationStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("os.getpid", lambda: -1)
        with pytest.raises(UsageError, match="fork"):
            store.run(lambda tx: tx.get(b"k"))
