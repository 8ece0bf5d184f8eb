"""Test `snapshot`: it yields the rows of one moment, while other transactions continue."""

import pytest

from tidemill.errors import UsageError
from tidemill.store import Row, Store
from tidemill.store.copy import copy_store
from tidemill.store.memory import MemoryStore
from tidemill.testing.store_tests.model import StoreTests, contents, fill

ROWS = 2_500  # more than one page of every backend


class SnapshotTests(StoreTests):
    """Test that a copy of a store in use has the rows of one moment."""

    @pytest.mark.rule("STO-11")
    def test_a_snapshot_has_the_rows_of_one_moment(self, store: Store) -> None:
        if not self.has_snapshots:
            with pytest.raises(UsageError, match="one moment"):
                list(store.snapshot())
            return
        for low in range(0, ROWS, 500):
            fill(store, {b"%06d" % n: b"old" for n in range(low, low + 500)})
        snapshot = store.snapshot()
        assert next(snapshot) == Row(b"000000", b"old")
        fill(store, {b"%06d" % n: b"new" for n in range(ROWS - 400, ROWS)})
        store.run(lambda tx: tx.clear_range(b"000100", b"000200"))
        store.run(lambda tx: tx.set(b"z", b"new"))
        assert list(snapshot) == [Row(b"%06d" % n, b"old") for n in range(1, ROWS)]
        assert len(contents(store)) == ROWS - 100 + 1

    @pytest.mark.rule("STO-11")
    def test_a_snapshot_that_is_not_read_to_its_end_holds_nothing(self, store: Store) -> None:
        if not self.has_snapshots:
            return
        fill(store, {b"%06d" % n: b"x" for n in range(100)})
        for _ in range(40):
            snapshot = store.snapshot()
            next(snapshot)
            snapshot.close()  # type: ignore[attr-defined] # a generator
        fill(store, {b"a": b"y"})
        assert len(list(store.snapshot())) == 101

    @pytest.mark.rule("STO-11")
    def test_a_copy_has_all_rows_and_keeps_the_order_of_versioned_rows(self, store: Store) -> None:
        source = MemoryStore()
        for n in range(30):
            source.run(lambda tx, n=n: tx.set_versioned(b"\x02log\x00", b"%02d" % n))  # type: ignore[misc]
        fill(source, {b"%06d" % n: b"x" * 500 for n in range(900)})
        assert copy_store(source, store) == 930
        store.run(lambda tx: tx.set_versioned(b"\x02log\x00", b"later"))
        rows = contents(store)
        log = [row.value for row in rows if row.key.startswith(b"\x02log")]
        assert log == [*(b"%02d" % n for n in range(30)), b"later"]
        assert [row for row in rows if row.value[:1] == b"x"] == contents(source)[-900:]
        if self.has_snapshots:
            back = MemoryStore()
            assert copy_store(store, back) == 931
            assert [row.value for row in contents(back)] == [row.value for row in rows]
