"""SKIP LOCKED, row locks in both modes, and the order of versions."""

import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests.integration.store_postgres.stage import QUEUE, base_of, contents
from tidemill.clock import SYSTEM, poll
from tidemill.store import Tx, Versionstamp, pack, unpack
from tidemill.store.keys import after
from tidemill.store.postgres import PostgresStore, schema, statements
from tidemill.store.postgres.connection import Statement
from tidemill.store.postgres.schema import plain
from tidemill.testing.threads import STUCK_S, Interloper, Racer, together


@pytest.fixture
def store(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    """A store whose sessions wait for a lock, and for a client, as long as it takes.

    These tests count conflicts: on a starved machine the usual limits would add some.
    """
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
        monkeypatch.setitem(statements.SETTINGS, name, f"{STUCK_S:.0f}s")
    patient = Statement(b"", statements._settings(local=False).encode())
    monkeypatch.setattr(schema, "SESSION_SETTINGS", patient)
    with PostgresStore(url) as store:
        yield store


class TestLocks:
    @pytest.mark.rule("STO-2", "STO-3")
    def test_takers_never_share_a_row(self, url: str) -> None:
        rows = 300
        with PostgresStore(url) as first, PostgresStore(url) as second:
            first.run(lambda tx: [tx.set(b"q/%04d" % n, b"") for n in range(rows)])

            def taker(store: PostgresStore) -> list[bytes]:
                keys: list[bytes] = []
                while batch := store.run(lambda tx: tx.take(*QUEUE, 7), mode="take"):
                    keys += [row.key for row in batch]
                return keys

            all_keys = together(*[lambda s=s: taker(s) for s in (first, second) * 4])
        assert sorted(key for each in all_keys for key in each) == [b"q/%04d" % n for n in range(rows)]

    @pytest.mark.rule("STO-3")
    def test_a_taker_does_not_wait_for_rows_that_another_is_taking(self, store: PostgresStore) -> None:
        store.run(lambda tx: [tx.set(b"q/%d" % n, b"") for n in range(4)])
        other = Interloper(lambda: store.run(lambda tx: tx.take(*QUEUE, 9), mode="take"), within_s=STUCK_S)

        def fn(tx: Tx) -> list[bytes]:
            rows = tx.take(*QUEUE, 2)
            other.steps_in()  # comes back only when the other one has committed
            return [row.key for row in rows]

        assert store.run(fn, mode="take") == [b"q/0", b"q/1"]
        assert [row.key for row in other.outcome()] == [b"q/2", b"q/3"]
        assert store.conflicts == 0

    @pytest.mark.rule("STO-3")
    def test_a_locked_read_sees_what_take_mode_wrote_after_the_snapshot(self, store: PostgresStore) -> None:
        store.run(lambda tx: tx.set(b"future", b"running"))
        other = Interloper(
            lambda: store.run(lambda tx: tx.swap(b"future", b"running", b"done"), mode="take"),
            within_s=STUCK_S,
        )
        plainly: list[bytes | None] = []

        def fn(tx: Tx) -> bytes | None:
            tx.get(b"unrelated")  # the snapshot is from here
            other.steps_in()
            plainly.append(tx.get(b"future"))
            return tx.get(b"future", lock=True)

        assert store.run(fn) == b"done"
        assert other.outcome() is True
        assert plainly == [b"running", b"done"], (
            "a plain read is of the snapshot; the lock found it out of date"
        )
        assert store.conflicts == 1

    @pytest.mark.rule("STO-3")
    @pytest.mark.parametrize("mode", ["serial", "take"])
    def test_a_locked_read_of_nothing_keeps_others_from_inserting(
        self, store: PostgresStore, mode: str
    ) -> None:
        def insert(tx: Tx) -> bool:
            tx.set_versioned(b"log", b"inserted")
            return tx.swap(b"k", None, b"other")

        other = Interloper(lambda: store.run(insert, mode="take"))

        def fn(tx: Tx) -> bool:
            absent = tx.get(b"k", lock=True) is None
            tx.range(b"a", b"z", snapshot=True)  # sends what was queued: the placeholder is gone from here
            other.steps_in()
            tx.set_versioned(b"log", b"seen absent" if absent else b"seen")
            return absent

        assert store.run(fn, mode="take" if mode == "take" else "serial") is True
        assert other.outcome() is True
        assert [*contents(store).values()] == [b"other", b"seen absent", b"inserted"]
        assert store.conflicts == 0

    def test_a_locked_read_of_nothing_leaves_nothing(self, store: PostgresStore) -> None:
        assert store.run(lambda tx: tx.get(b"k", lock=True)) is None
        assert store.run(lambda tx: tx.get(b"k", lock=True), mode="take") is None
        assert contents(store) == {}

    @pytest.mark.rule("STO-3")
    @pytest.mark.parametrize("start", [b"theirs", None])
    @pytest.mark.parametrize("new", [b"mine too", None])
    def test_a_swap_that_fails_holds_for_the_rest_of_its_transaction(
        self, store: PostgresStore, start: bytes | None, new: bytes | None
    ) -> None:
        store.run(lambda tx: tx.swap(b"lease", None, start))

        def acquire(tx: Tx) -> bool:
            tx.set_versioned(b"log", b"acquired")
            return tx.swap(b"lease", start, b"mine")

        other = Interloper(lambda: store.run(acquire, mode="take"))

        def fn(tx: Tx) -> bool:
            held = tx.swap(b"lease", b"mine", new)
            assert tx.get(b"lease", lock=True) == start, "a swap that fails changes nothing"
            other.steps_in()
            tx.set_versioned(b"log", b"kept" if held else b"gave up")
            return held

        assert store.run(fn, mode="take") is False
        assert other.outcome() is True
        log = [row.value for row in store.run(lambda tx: tx.range(b"log", b"loh"))]
        assert log == [b"gave up", b"acquired"], "the other one has to wait for who decided on the row"

    @pytest.mark.parametrize("mode", ["serial", "take"])
    @pytest.mark.parametrize("there", ["none", "some", "all"])
    def test_many_rows_are_set_at_once_whether_they_exist_or_not(
        self, store: PostgresStore, there: str, mode: str
    ) -> None:
        keys = [b"k%02d" % n for n in range(40)]
        before = {"none": [], "some": keys[10:20], "all": keys}[there]
        store.run(lambda tx: tx.set_many([(key, b"old") for key in before]))
        store.run(
            lambda tx: tx.set_many([(key, b"new") for key in keys]),
            mode="take" if mode == "take" else "serial",
        )
        assert contents(store) == dict.fromkeys(keys, b"new")

    def test_many_rows_that_another_is_inserting_are_waited_for(self, store: PostgresStore) -> None:
        keys = [b"k%02d" % n for n in range(40)]
        other = Interloper(
            lambda: store.run(lambda tx: tx.set_many([(key, b"2") for key in keys]), mode="take")
        )

        def fn(tx: Tx) -> None:
            tx.set_many([(key, b"1") for key in keys[::3]])
            tx.range(b"k", b"l", snapshot=True)  # sends them
            other.steps_in()

        store.run(fn, mode="take")
        other.outcome()
        assert contents(store) == dict.fromkeys(keys, b"2")
        assert store.conflicts == 0

    def test_a_transaction_waits_for_rows_that_are_locked_for_long(self, url: str) -> None:
        with PostgresStore(url, patience_s=STUCK_S) as store, psycopg.connect(base_of(url)) as somebody:
            store.run(lambda tx: tx.set(b"n", b"1"))
            table = psycopg.sql.Identifier(store.sql.schema, "tidemill_kv")
            lock = psycopg.sql.SQL("SELECT v FROM {} WHERE k = 'n' FOR UPDATE")
            somebody.execute(lock.format(table))
            waiting = Racer(lambda: store.run(lambda tx: tx.swap(b"n", b"1", b"2")))
            waiting.start()
            assert poll(lambda: store.conflicts > 0, SYSTEM, every_s=0.02, timeout_s=STUCK_S)
            somebody.rollback()
            assert waiting.outcome() is True

    @pytest.mark.rule("STO-2")
    def test_a_reader_that_continues_after_the_last_version_misses_no_row(self, url: str) -> None:
        log, writers, each = pack(("log",)), 12, 15
        all_written = threading.Event()

        def write(store: PostgresStore, me: int) -> list[bytes]:
            for n in range(each):

                def append(tx: Tx, n: int = n) -> None:
                    if me % 3 == 0:
                        tx.get(b"row %d" % me)  # some hold a snapshot, some have written before
                    tx.set(b"row %d" % me, b"")
                    tx.set_versioned(log, b"%d/%d" % (me, n))

                store.run(append, mode="serial" if me % 3 == 0 else "take")
            return []

        def write_all(stores: list[PostgresStore]) -> list[bytes]:
            try:
                together(*[lambda me=me: write(stores[me % 2], me) for me in range(writers)])
            finally:
                all_written.set()
            return []

        def page(store: PostgresStore) -> list[bytes]:
            entries: list[bytes] = []
            cursor, last = log, False
            while not last:
                last = all_written.is_set()  # one more page after everything is written
                rows = store.run(lambda tx: tx.range(cursor, after(log)))  # noqa: B023
                entries += [row.value for row in rows]
                cursor = rows[-1].key + b"\x00" if rows else cursor
            return entries

        with PostgresStore(url) as store, PostgresStore(url) as other:
            _, first, second = together(
                lambda: write_all([store, other]), lambda: page(store), lambda: page(other)
            )
            rows = store.run(lambda tx: tx.range(log, after(log)))
        assert first == second == [row.value for row in rows]
        assert sorted(first) == sorted(b"%d/%d" % (me, n) for me in range(writers) for n in range(each))
        (version,) = unpack(rows[0].key[len(log) :])
        assert isinstance(version, Versionstamp)

    def test_statements_on_several_rows_are_index_look_ups_in_the_order_they_are_given(
        self, store: PostgresStore
    ) -> None:
        # Else a small table is scanned: rows are locked in any order, and SERIALIZABLE notes the whole table.
        store.run(lambda tx: [tx.set(b"k%d" % n, b"") for n in range(20)])
        rows = "ARRAY['a', 'b']::bytea[]"
        arguments = {
            "get": rows,
            "get_locked": rows,
            "clear": rows,
            "swap": f"{rows}, {rows}, {rows}",
            "swap_out": rows,
            "take": "'a', 'b', 9",
            "range": "'a', 'b', NULL",
        }
        link = store._local().pool.take(STUCK_S)
        try:
            for name, values in arguments.items():
                (plan,) = link.exchange([plain(f"EXPLAIN (COSTS off) EXECUTE tidemill_{name}({values})")])
                text = "\n".join((plan.get_value(n, 0) or b"").decode() for n in range(plan.ntuples))
                assert "Index Scan" in text, f"{name}\n{text}"
                assert not {"Seq Scan", "Hash", "Merge", "Sort"} & set(text.split()), f"{name}\n{text}"
        finally:
            store._local().pool.give(link)
