"""Restarts, killed backends, connections cut at the COMMIT, full disks: nothing is lost or done twice."""

import os
import threading

import pytest

from tests.integration.store_postgres.stage import base_of, claim, contents, execute, work_through
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_proxy import Loss, PostgresProxy
from tidemill import crash
from tidemill.errors import (
    StoreBusy,
    StoreFull,
    StoreUnavailable,
)
from tidemill.store import Tx
from tidemill.store.postgres import PostgresStore
from tidemill.store.postgres import connection as postgres_link
from tidemill.testing.threads import STUCK_S, Racer


class TestTrouble:
    @pytest.mark.rule("STO-5", "STO-9")
    def test_a_restart_in_the_middle_of_work_loses_and_doubles_nothing(
        self, postgres_server: PostgresServer, url: str
    ) -> None:
        with (
            PostgresStore(url, patience_s=STUCK_S) as first,
            PostgresStore(url, patience_s=STUCK_S) as second,
        ):
            work_through([first, second], 900, postgres_server.restart_immediate)

    @pytest.mark.rule("STO-5", "STO-9")
    def test_killed_backends_lose_and_double_nothing(self, postgres_server: PostgresServer, url: str) -> None:
        killed = 0

        def kill() -> None:
            nonlocal killed
            for _ in range(6):
                killed += postgres_server.cut_connections(base_of(url))

        with (
            PostgresStore(url, patience_s=STUCK_S) as first,
            PostgresStore(url, patience_s=STUCK_S) as second,
        ):
            work_through([first, second], 600, kill)
        assert killed > 0

    @pytest.mark.rule("STO-5")
    @pytest.mark.parametrize("mode", ["serial", "take"])
    @pytest.mark.parametrize("losses", [["answer"], ["request"], ["late"], ["request", "answer", "late"]])
    def test_a_connection_cut_at_the_commit_commits_exactly_once(
        self, postgres_server: PostgresServer, url: str, losses: list[Loss], mode: str
    ) -> None:
        results = iter(range(100))

        def fn(tx: Tx) -> int:
            tx.add(b"n", 1)
            tx.set_versioned(b"log", b"")
            return next(results)

        with (
            PostgresProxy(postgres_server.port) as proxy,
            PostgresStore(proxy.through(url)) as store,
        ):
            store.run(lambda tx: tx.now())
            proxy.lose(*losses)
            returned = store.run(fn, mode="take" if mode == "take" else "serial")
            assert proxy.happened == losses
            assert store.run(lambda tx: tx.counter(b"n")) == 1
            proxy.deliver()  # what was still on its way arrives, and must find itself fenced
            assert store.run(lambda tx: tx.counter(b"n")) == 1
            assert len(store.run(lambda tx: tx.range(b"log", b"loh"))) == 1
            if losses == ["answer"]:
                assert returned == 0, "the attempt that was committed is the one whose result is returned"

    @pytest.mark.rule("STO-5")
    def test_a_connection_that_falls_silent_at_the_commit_is_given_up_and_settled(
        self, postgres_server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with (
            PostgresProxy(postgres_server.port) as proxy,
            PostgresStore(proxy.through(url), patience_s=STUCK_S) as store,
        ):
            store.run(lambda tx: tx.set(b"k", b""))
            monkeypatch.setattr(postgres_link, "SILENCE_S", 0.5)
            proxy.lose("silence")
            store.run(lambda tx: tx.add(b"n", 1))
            assert proxy.happened == ["silence"]
            assert store.run(lambda tx: tx.counter(b"n")) == 1

    def test_a_connection_cut_before_the_commit_is_tried_again(
        self, postgres_server: PostgresServer, url: str
    ) -> None:
        with (
            PostgresProxy(postgres_server.port) as proxy,
            PostgresStore(proxy.through(url)) as store,
        ):
            calls = 0

            def fn(tx: Tx) -> int:
                nonlocal calls
                calls += 1
                value = int(tx.get(b"n") or b"0") + 1
                if calls == 1:
                    proxy.cut()
                tx.set(b"n", b"%d" % value)
                return value

            assert store.run(fn) == 1
            assert calls == 2
            assert contents(store) == {b"n": b"1"}

    def test_a_function_that_swallows_the_loss_of_its_connection_does_not_commit(
        self, postgres_server: PostgresServer, url: str
    ) -> None:
        with (
            PostgresProxy(postgres_server.port) as proxy,
            PostgresStore(proxy.through(url)) as store,
        ):
            calls = 0

            def fn(tx: Tx) -> None:
                nonlocal calls
                calls += 1
                tx.set(b"a%d" % calls, b"")
                if calls == 1:
                    tx.get(b"x")
                    proxy.cut()
                    with pytest.raises(Exception):  # noqa: B017, PT011 - as careless as user code may be
                        tx.get(b"y")

            store.run(fn)
            assert contents(store) == {b"a2": b""}

    def test_a_server_that_stays_away_is_an_error_with_a_hint(
        self, postgres_server: PostgresServer, url: str
    ) -> None:
        with PostgresStore(url) as store:
            store.run(lambda tx: tx.set(b"k", b"1"))
            postgres_server.kill()
            store.patience_s = 0.2
            with pytest.raises(StoreUnavailable) as raised:
                store.run(lambda tx: tx.set(b"k", b"2"))
            assert raised.value.hint
            with pytest.raises(StoreUnavailable):
                PostgresStore(url, patience_s=0.1)
            postgres_server.start()
            store.patience_s = STUCK_S
            assert contents(store) == {b"k": b"1"}

    @pytest.mark.rule("STO-4")
    def test_a_crash_before_the_commit_gives_taken_rows_back_and_after_it_does_not(
        self, store: PostgresStore
    ) -> None:
        store.run(lambda tx: [tx.set(b"q/1", b""), tx.set(b"q/2", b"")])
        with crash.recorded() as points:
            store.run(lambda tx: tx.set(b"k", b""))
        assert points == {"store.postgres.before_commit", "store.postgres.after_commit"}
        with crash.armed("store.postgres.before_commit"), pytest.raises(crash.Crashed):
            store.run(lambda tx: claim(tx, b"me"), mode="take")
        assert [key for key in contents(store) if key.startswith(b"q/")] == [b"q/1", b"q/2"]
        with crash.armed("store.postgres.after_commit"), pytest.raises(crash.Crashed):
            store.run(lambda tx: claim(tx, b"me"), mode="take")
        assert not [key for key in contents(store) if key.startswith(b"q/")]
        assert store.run(lambda tx: tx.counter(b"claims/1")) == 1

    def test_a_full_disk_is_a_typed_error_and_loses_nothing(self, store: PostgresStore, url: str) -> None:
        store.run(lambda tx: tx.set(b"k", b"1"))
        execute(
            url,
            """CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'could not extend file: No space left' USING ERRCODE = '53100'; END $$;
            CREATE TRIGGER full_disk BEFORE INSERT ON tidemill_kv EXECUTE FUNCTION full_disk()""",
        )
        with pytest.raises(StoreFull) as raised:
            store.run(lambda tx: tx.set(b"new", b"2"))
        assert raised.value.hint
        execute(url, "DROP TRIGGER full_disk ON tidemill_kv")
        assert contents(store) == {b"k": b"1"}
        store.run(lambda tx: tx.set(b"new", b"2"))

    def test_transactions_that_fail_leave_no_connections_behind(self, store: PostgresStore, url: str) -> None:
        def fail(tx: Tx) -> None:
            tx.set(b"k", b"")
            tx.get(b"j", lock=True)
            raise KeyboardInterrupt

        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                store.run(fail)
        assert contents(store) == {}
        (row,) = execute(
            url,
            """SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in transaction%%')
            FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tidemill'""",
        )
        assert row == (1, 0), "one connection, and nothing left open on it"

    def test_no_more_connections_than_allowed(self, url: str) -> None:
        with PostgresStore(url, connections=2, patience_s=0.05) as store:
            gate = threading.Event()
            inside = threading.Semaphore(0)

            def hold(tx: Tx) -> bool:
                inside.release()
                return gate.wait(STUCK_S)

            holders = [Racer(lambda: store.run(hold)) for _ in range(2)]
            for holder in holders:
                holder.start()
            for _ in holders:
                assert inside.acquire(timeout=STUCK_S)
            try:
                with pytest.raises(StoreBusy):
                    store.run(lambda tx: None)
            finally:
                gate.set()
            assert [holder.outcome() for holder in holders] == [True, True]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    def test_a_forked_child_has_its_own_connections(self, store: PostgresStore) -> None:
        store.run(lambda tx: tx.add(b"n", 1))
        child = os.fork()
        if child == 0:
            done = 1
            try:
                for _ in range(5):
                    store.run(lambda tx: tx.add(b"n", 1))
                store.close()
                done = 0
            finally:
                os._exit(done)
        for _ in range(5):
            store.run(lambda tx: tx.add(b"n", 1))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.run(lambda tx: tx.counter(b"n")) == 11
