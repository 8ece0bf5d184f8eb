"""Formats, schemas, sessions: what happens when a store is opened."""

import pytest

from tests.integration.store_postgres.stage import contents, execute
from tidemill.errors import (
    StoreFormat,
)
from tidemill.store import open_store
from tidemill.store.postgres import PostgresStore
from tidemill.store.postgres.schema import plain
from tidemill.testing.threads import STUCK_S, together


class TestOpening:
    @pytest.mark.rule("STO-10")
    @pytest.mark.parametrize(("number", "hint"), [("2", "upgrade"), ("0", "release that wrote it")])
    def test_another_format_is_refused(self, url: str, number: str, hint: str) -> None:
        with PostgresStore(url) as store:
            store.run(lambda tx: tx.set(b"k", b"1"))
        execute(url, "UPDATE tidemill_meta SET value = %s", number)
        with pytest.raises(StoreFormat, match=hint):
            PostgresStore(url)
        execute(url, "UPDATE tidemill_meta SET value = '1'")
        with PostgresStore(url) as store:
            assert contents(store) == {b"k": b"1"}

    def test_schemas_are_separate_stores(self, url: str) -> None:
        with (
            open_store(f"{url}?schema=One") as first,
            open_store(f"{url}?schema=two x") as second,
        ):
            first.run(lambda tx: tx.set(b"k", b"1"))
            second.run(lambda tx: tx.add(b"n", 1))
            assert contents(first) == {b"k": b"1"}
            assert list(contents(second)) == [b"n"]
            assert first.url.endswith("One")

    def test_many_may_open_a_fresh_store_at_once(self, url: str) -> None:
        def open_and_add() -> int:
            with PostgresStore(url) as store:
                store.run(lambda tx: tx.add(b"n", 1))
            return 0

        together(*[open_and_add] * 6)
        with PostgresStore(url) as store:
            assert store.run(lambda tx: tx.counter(b"n")) == 6

    def test_the_session_has_our_time_limits_and_keeps_commits_durable(self, url: str) -> None:
        with PostgresStore(f"{url}&options=-c%20synchronous_commit%3Doff") as store:
            link = store._local().pool.take(STUCK_S)
            names = ["lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit"]
            queries = [plain(f"SELECT current_setting('{name}')") for name in names]
            settings = [result.get_value(0, 0) for result in link.exchange(queries)]
            store._local().pool.give(link)
        assert settings == [b"1500ms", b"3s", b"on"]

    @pytest.mark.rule("STO-9")
    def test_counters_wrap_as_they_do_everywhere(self, store: PostgresStore) -> None:
        for amounts in ([2**63 - 1, 1], [-(2**63), -1], [255, 1], [-1, 1], [2**32 - 1, 1], [-1, -1]):
            store.run(lambda tx: tx.clear(b"n"))
            for amount in amounts:
                store.run(lambda tx, amount=amount: tx.add(b"n", amount))  # type: ignore[misc]
            total = (sum(amounts) + 2**63) % 2**64 - 2**63
            assert store.run(lambda tx: tx.counter(b"n")) == total
