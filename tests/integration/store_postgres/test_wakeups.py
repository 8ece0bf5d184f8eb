"""NOTIFY and LISTEN, lost connections, and the cleaning by the notifier's thread."""

import pytest

from tests.integration.store_postgres.stage import base_of, claim, execute
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_proxy import PostgresProxy
from tidemill.clock import SYSTEM, poll
from tidemill.store import pack, unpack
from tidemill.store.postgres import PostgresStore
from tidemill.store.postgres import watch as postgres_watch
from tidemill.store.retry import MINUTE_US, OPERATION_TTL_US, OPERATIONS
from tidemill.testing.threads import STUCK_S, Racer


class TestWakeUps:
    @pytest.mark.rule("STO-8", "STO-9")
    def test_another_process_receives_a_notification(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres_watch, "POLL_S", 3600.0)  # so that it is not polling that wakes
        with (
            PostgresStore(url) as first,
            PostgresStore(url) as second,
            first.watch([b"k"]) as watch,
        ):
            assert poll(
                lambda: not first._local().notifier.must_poll, SYSTEM, every_s=0.01, timeout_s=STUCK_S
            )
            watch.wait(0)
            second.run(lambda tx: tx.set(b"k", b"1"))
            assert watch.wait(STUCK_S)
            second.run(lambda tx: tx.set_versioned(b"k", b"1"))
            assert watch.wait(STUCK_S)

    @pytest.mark.rule("STO-8")
    def test_a_lost_listener_reconnects_and_wakes_waiting_watches(
        self, postgres_server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_watch, "POLL_S", 3600.0)
        with (
            PostgresStore(url) as first,
            PostgresStore(url) as second,
            first.watch([b"k"]) as watch,
        ):
            notifier = first._local().notifier
            assert poll(lambda: not notifier.must_poll, SYSTEM, every_s=0.01, timeout_s=STUCK_S)
            watch.wait(0)
            waiting = Racer(lambda: watch.wait(STUCK_S))
            waiting.start()
            assert postgres_server.cut_connections(base_of(url)) > 0
            assert waiting.outcome() is True, "something may have been missed, and nobody was told"
            assert poll(lambda: not notifier.must_poll, SYSTEM, every_s=0.01, timeout_s=STUCK_S)
            watch.wait(0)
            second.run(lambda tx: tx.set(b"k", b"1"))
            assert watch.wait(STUCK_S)

    @pytest.mark.rule("STO-8")
    def test_with_a_pooler_everything_works_and_waiting_becomes_polling(
        self, postgres_server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_watch, "POLL_S", 0.05)
        with (
            PostgresProxy(postgres_server.port, poses_as_pooler=True) as proxy,
            PostgresStore(proxy.through(url)) as first,
            PostgresStore(url) as second,
            first.watch([b"k"]) as watch,
        ):
            first.run(lambda tx: [tx.set(b"q/%d" % n, b"") for n in range(5)])
            assert first.run(lambda tx: claim(tx, b"me"), mode="take") == 3
            assert first.run(lambda tx: tx.swap(b"owner/0", b"me", b"you"))
            prepared = execute(url, "SELECT 1 FROM pg_prepared_statements")
            assert prepared == []
            second.run(lambda tx: tx.set(b"k", b"1"))
            fired = False
            while not fired:
                assert watch.wait(STUCK_S), "waiting did not turn into polling"
                fired = first.run(lambda tx: tx.get(b"k")) == b"1"

    def test_a_process_that_ends_sends_the_remaining_notifications(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_watch, "POLL_S", 3600.0)
        with PostgresStore(url) as store, store.watch([b"k%d" % n for n in range(50)]) as watch:
            assert poll(
                lambda: not store._local().notifier.must_poll, SYSTEM, every_s=0.01, timeout_s=STUCK_S
            )
            watch.wait(0)
            with PostgresStore(url) as two:
                two.run(lambda tx: [tx.set(b"k%d" % n, b"") for n in range(50)])
            assert watch.wait(STUCK_S)

    def test_without_watches_no_connection_listens(self, store: PostgresStore) -> None:
        notifier = store._local().notifier
        store.run(lambda tx: tx.set(b"k", b""))
        assert notifier.must_poll
        with store.watch([b"k"]):
            assert poll(lambda: not notifier.must_poll, SYSTEM, every_s=0.01, timeout_s=STUCK_S)
        store.run(lambda tx: tx.set(b"k", b""))
        assert poll(lambda: notifier.must_poll, SYSTEM, every_s=0.01, timeout_s=STUCK_S)

    @pytest.mark.rule("STO-5")
    def test_expired_operations_are_removed_and_others_are_kept(self, store: PostgresStore, url: str) -> None:
        now = store.run(lambda tx: tx.now())
        minutes = {"old": now - OPERATION_TTL_US - 2 * MINUTE_US, "an hour": now - 60 * MINUTE_US}
        for name, at in minutes.items():
            key = OPERATIONS + pack((at // MINUTE_US, name))
            execute(url, "INSERT INTO tidemill_op VALUES (%s, '')", key)
        assert len(execute(url, "SELECT 1 FROM tidemill_op")) == 2
        store.run(lambda tx: tx.set(b"k", b""))

        def left() -> list[tuple[object, ...]]:
            return execute(url, "SELECT 1 FROM tidemill_op")

        assert poll(lambda: len(left()) == 2, SYSTEM, every_s=0.02, timeout_s=STUCK_S)
        remaining = execute(url, "SELECT k FROM tidemill_op ORDER BY k")
        names = [unpack(bytes(key)[len(OPERATIONS) :])[1] for (key,) in remaining]  # type: ignore[call-overload]
        assert names[0] == "an hour"
