"""Test `set_versioned`: a reader that continues after the last key it has read misses no row."""

import threading

import pytest

from tidemill.store import Mode, Row, Store, Tx, Versionstamp, pack, unpack
from tidemill.store.keys import after
from tidemill.testing.store_tests.model import StoreTests, contents, fill
from tidemill.testing.threads import Interloper, together

LOG, OTHER = pack(("log",)), pack(("log 2",))


def _log(store: Store, prefix: bytes = LOG) -> list[bytes]:
    return [row.value for row in store.run(lambda tx: tx.range(prefix, after(prefix)))]


class VersionTests(StoreTests):
    """Test that versions sort in the order of the commits."""

    @pytest.mark.rule("STO-2")
    def test_keys_are_the_prefix_and_a_version_and_sort_as_the_commits(self, store: Store) -> None:
        for n in range(5):
            store.run(lambda tx, n=n: tx.set_versioned(LOG, b"%d" % n))  # type: ignore[misc]
        rows = contents(store)
        assert [row.value for row in rows] == [b"0", b"1", b"2", b"3", b"4"]
        versions = [unpack(row.key[len(LOG) :]) for row in rows]
        assert all(row.key.startswith(LOG) for row in rows)
        assert all(len(parts) == 1 and isinstance(parts[0], Versionstamp) for parts in versions)
        assert [pack(parts) for parts in versions] == [row.key[len(LOG) :] for row in rows]
        assert len({*versions}) == 5

    @pytest.mark.rule("STO-2")
    def test_rows_of_one_transaction_keep_their_order_within_each_prefix(self, store: Store) -> None:
        def fn(tx: Tx) -> None:
            for n in range(20):
                tx.set_versioned(LOG if n % 3 else OTHER, b"%02d" % n)

        store.run(fn)
        store.run(fn)
        assert _log(store) == [b"%02d" % n for n in range(20) if n % 3] * 2
        assert _log(store, OTHER) == [b"%02d" % n for n in range(20) if not n % 3] * 2

    def test_a_prefix_may_be_any_key_and_its_rows_are_ordinary_rows(self, store: Store) -> None:
        store.run(lambda tx: tx.set_versioned(b"\x00", b"a"))
        store.run(lambda tx: tx.set_versioned(b"\xfd\xff", b"b"))
        first, last = contents(store)
        assert (first.value, last.value) == (b"a", b"b")
        store.run(lambda tx: tx.clear(first.key))
        assert store.run(lambda tx: tx.swap(last.key, b"b", b"c"))
        assert store.run(lambda tx: tx.take(last.key, last.key + b"\x00", 1)) == [Row(last.key, b"c")]
        assert contents(store) == []

    def test_a_versioned_row_appears_with_the_commit_and_not_before(self, store: Store) -> None:
        def fn(tx: Tx) -> list[Row]:
            tx.set_versioned(LOG, b"mine")
            return tx.range(LOG, after(LOG))

        assert store.run(fn) == []
        assert _log(store) == [b"mine"]

    def test_a_versioned_row_of_a_function_that_raised_never_appears(self, store: Store) -> None:
        def fn(tx: Tx) -> None:
            tx.set_versioned(LOG, b"never")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.run(fn)
        store.run(lambda tx: tx.set_versioned(LOG, b"next"))
        assert _log(store) == [b"next"]

    @pytest.mark.rule("STO-2")
    @pytest.mark.parametrize("mode", ["serial", "take"])
    def test_a_transaction_that_began_first_and_commits_last_comes_last(
        self, store: Store, mode: Mode
    ) -> None:
        def append(tx: Tx, name: bytes) -> None:
            tx.set_versioned(LOG, name)
            tx.add(b"appended", 1)

        other = Interloper(lambda: store.run(lambda tx: append(tx, b"other")))

        def fn(tx: Tx) -> None:
            append(tx, b"mine")
            other.steps_in()

        store.run(fn, mode=mode)
        other.outcome()
        assert sorted(_log(store)) == [b"mine", b"other"]
        store.run(lambda tx: append(tx, b"third"))
        assert _log(store)[-1] == b"third"

    @pytest.mark.rule("STO-2")
    def test_a_pager_misses_nothing_while_many_append(self, store: Store) -> None:
        all_written = threading.Event()
        writers, each = 4, 10

        def write(me: int) -> None:
            for n in range(each):

                def fn(tx: Tx, n: int = n) -> None:
                    tx.set_versioned(LOG, b"%d %d" % (me, n))
                    if n % 2:
                        tx.set_versioned(OTHER, b"%d %d" % (me, n))

                store.run(fn, mode="take" if me % 2 else "serial")

        def write_all() -> list[bytes]:
            try:
                together(*[lambda me=me: write(me) for me in range(writers)])
            finally:
                all_written.set()
            return []

        def page() -> list[bytes]:
            entries: list[bytes] = []
            cursor, last = LOG, False
            while not last:
                last = all_written.is_set()  # read once more after the last write, so that no row is missed
                rows = store.run(lambda tx, cursor=cursor: tx.range(cursor, after(LOG), limit=7))  # type: ignore[misc]
                entries += [row.value for row in rows]
                if rows:
                    cursor, last = rows[-1].key + b"\x00", False
            return entries

        _, entries = together(write_all, page)
        assert entries == _log(store)
        assert len(entries) == writers * each
        for me in range(writers):
            expected = [b"%d %d" % (me, n) for n in range(each)]
            assert [value for value in entries if value.startswith(b"%d " % me)] == expected
            assert [value for value in _log(store, OTHER) if value.startswith(b"%d " % me)] == expected[1::2]

    @pytest.mark.rule("STO-2")
    def test_a_transaction_that_read_a_row_appends_after_it(self, store: Store) -> None:
        fill(store, {b"turn": b"0"})

        def append(me: int) -> None:
            for _ in range(5):

                def fn(tx: Tx) -> None:
                    count = len(tx.range(LOG, after(LOG)))
                    tx.set_versioned(LOG, b"%d" % count)

                store.run(fn)

        together(*[lambda me=me: append(me) for me in range(3)])
        assert _log(store) == [b"%d" % n for n in range(15)]
