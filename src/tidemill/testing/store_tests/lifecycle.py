"""Test how a store runs functions: errors, nested calls, closed stores, and several processes.

If processes can share the store, tests also check which rows other processes see, even after a process is
killed.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidemill.clock import poll
from tidemill.errors import UsageError
from tidemill.store import Mode, Row, Store, Tx, Versionstamp
from tidemill.store.port import read_counter, write_counter
from tidemill.testing.store_tests.model import END, FIRST, StoreTests, contents, fill, value_of
from tidemill.testing.threads import STUCK_S, Racer, together


class Interrupted(BaseException):
    """An error that is no `Exception`, like KeyboardInterrupt and a lost lease."""


class LifecycleTests(StoreTests):
    """Test that a function commits all its writes or none."""

    @pytest.mark.rule("STO-1")
    @pytest.mark.parametrize("mode", ["serial", "take"])
    @pytest.mark.parametrize("error", [ValueError("no"), Interrupted("stop")])
    def test_a_function_that_raises_leaves_nothing(
        self, store: Store, error: BaseException, mode: Mode
    ) -> None:
        fill(store, {b"a": b"1", b"b": b"1", b"q": b"1"})
        before = contents(store)
        calls = 0

        def fn(tx: Tx) -> None:
            nonlocal calls
            calls += 1
            tx.set(b"a", b"2")
            tx.clear(b"b")
            tx.add(b"n", 1)
            tx.swap(b"new", None, b"2")
            tx.take(b"q", b"r", 1)
            tx.set_versioned(b"log", b"2")
            tx.clear_range(b"a", b"b")
            raise error

        with pytest.raises(type(error)) as raised:
            store.run(fn, mode=mode)
        assert raised.value is error
        assert calls <= 2, "an error that the function raises is not a conflict, so it is not retried"
        assert contents(store) == before
        assert store.run(lambda tx: tx.take(b"q", b"r", 1))[0].value == b"1"

    def test_an_error_that_the_function_catches_does_not_end_its_transaction(self, store: Store) -> None:
        def fn(tx: Tx) -> bool:
            tx.set(b"k", b"1")
            try:
                tx.set(b"", b"")
            except UsageError:
                tx.set(b"caught", b"")
            return tx.swap(b"k", b"1", b"2")

        assert store.run(fn) is True
        assert dict(contents(store)) == {b"caught": b"", b"k": b"2"}

    @pytest.mark.parametrize(
        "value", [None, 0, "text", (1, [2]), Versionstamp(1, 2), ValueError("as a value")]
    )
    def test_any_value_is_returned_unchanged(self, store: Store, value: object) -> None:
        assert store.run(lambda tx: value) is value

        def fn(tx: Tx) -> object:
            tx.set(b"k", b"")
            return value

        assert store.run(fn) is value

    @pytest.mark.parametrize("inner", ["serial", "take"])
    @pytest.mark.parametrize("outer", ["serial", "take"])
    def test_a_nested_run_is_refused_and_the_store_stays_usable(
        self, store: Store, outer: Mode, inner: Mode
    ) -> None:
        def nested(tx: Tx) -> None:
            tx.set(b"outer", b"")
            store.run(lambda tx: tx.set(b"inner", b""), mode=inner)

        with pytest.raises(UsageError):
            store.run(nested, mode=outer)
        assert contents(store) == []
        fill(store, {b"k": b"1"})
        assert value_of(store, b"k") == b"1"

    def test_a_refused_nested_run_does_not_affect_the_outer_one(self, store: Store) -> None:
        def fn(tx: Tx) -> None:
            tx.set(b"outer", b"")
            with pytest.raises(UsageError):
                store.run(lambda tx: tx.set(b"inner", b""))
            tx.set(b"outer 2", b"")

        store.run(fn)
        assert [row.key for row in contents(store)] == [b"outer", b"outer 2"]

    def test_a_transaction_cannot_be_used_after_its_function_has_returned(self, store: Store) -> None:
        fill(store, {b"k": b"1"})
        acts: list[Callable[[Tx], object]] = [
            lambda tx: tx.get(b"k"),
            lambda tx: tx.range(FIRST, END),
            lambda tx: tx.set(b"k", b"2"),
            lambda tx: tx.set_many([(b"k", b"2")]),
            lambda tx: tx.clear(b"k"),
            lambda tx: tx.clear_range(FIRST, END),
            lambda tx: tx.add(b"n", 1),
            lambda tx: tx.take(FIRST, END, 1),
            lambda tx: tx.swap(b"k", b"1", b"2"),
            lambda tx: tx.set_versioned(b"log", b"2"),
        ]
        ended: list[Tx] = []

        def keep(tx: Tx) -> None:
            ended.append(tx)
            tx.set(b"k2", b"")

        store.run(ended.append)
        store.run(keep)
        for tx in ended:
            for act in acts:
                with pytest.raises(UsageError):
                    act(tx)
        assert dict(contents(store)) == {b"k": b"1", b"k2": b""}

    def test_a_store_is_shared_by_threads(self, store: Store) -> None:
        def work(me: int) -> None:
            for n in range(6):
                fill(store, {b"%d/%d" % (me, n): b""})

        together(*[lambda me=me: work(me) for me in range(4)])
        assert len(contents(store)) == 24

    def test_a_second_handle_sees_what_the_first_one_committed(self, store: Store) -> None:
        second = self.reopen(store)
        if second is None:
            pytest.skip("a store of one handle")
        with second:
            fill(store, {b"a": b"1"})
            assert value_of(second, b"a") == b"1"
            assert second.run(lambda tx: tx.swap(b"a", b"1", b"2"))
            assert value_of(store, b"a") == b"2"
        fill(store, {b"b": b"1"})
        assert dict(contents(store)) == {b"a": b"2", b"b": b"1"}

    @pytest.mark.rule("STO-1")
    def test_handles_are_serialisable_with_each_other(self, store: Store) -> None:
        second = self.reopen(store)
        if second is None:
            pytest.skip("a store of one handle")

        def work(handle: Store) -> None:
            for _ in range(8):
                handle.run(lambda tx: tx.set(b"n", b"%d" % (int(tx.get(b"n") or b"0") + 1)))

        with second:
            together(lambda: work(store), lambda: work(second))
            assert value_of(store, b"n") == b"16"

    def test_closing_twice_is_harmless_and_leaves_the_data_and_the_other_handle(self, store: Store) -> None:
        second = self.reopen(store)
        fill(store, {b"k": b"1"})
        watch = store.watch([b"k"])
        store.close()
        store.close()
        watch.close()
        if second is not None:
            with second:
                assert value_of(second, b"k") == b"1"
                fill(second, {b"k": b"2"})
                third = self.reopen(second)
                assert third is not None
                with third:
                    assert value_of(third, b"k") == b"2"

    def test_closing_the_store_ends_a_waiting_watch(self, store: Store) -> None:
        watch = store.watch([b"k"])
        waiting = Racer(lambda: watch.wait(0.1))
        waiting.start()
        store.close()
        assert waiting.outcome() in (False, True)

    def test_a_store_has_a_url(self, store: Store) -> None:
        assert "://" in store.url
        assert store.url in repr(store)


DIE = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def _increment(tx: Tx) -> None:
    tx.set(b"n", write_counter(read_counter(tx.get(b"n")) + 1))


class StoreProcessTests(StoreTests):
    """Test a store that several processes share, some of which are killed."""

    @contextmanager
    def child(self, store: Store, program: str) -> Iterator["subprocess.Popen[str]"]:
        """Start another process that opens the same data as `store`."""
        opening = self.opens_elsewhere(store)
        if opening is None:
            pytest.skip("a store of one process")
        process = subprocess.Popen(
            [sys.executable, "-c", f"{opening}\n{program}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def says(self, process: "subprocess.Popen[str]") -> str:
        """Return the next line that the child prints."""
        assert process.stdout is not None
        return process.stdout.readline().strip()

    @pytest.mark.rule("STO-4")
    @pytest.mark.parametrize("mode", ["take", "serial"])
    def test_rows_that_a_killed_process_took_are_available_again(self, store: Store, mode: Mode) -> None:
        rows = {b"q/1": b"one", b"q/2": b"two", b"q/3": b"three"}
        fill(store, rows)
        program = f"""
def fn(tx):
    for row in tx.take(b"q/", b"q0", 2):
        tx.set(b"claim/" + row.key, row.value)
    tx.range(b"claim/", b"claim0", snapshot=True)  # buffered writes are sent now
    {DIE}
store.run(fn, mode="{mode}")
"""
        with self.child(store, program) as process:
            assert process.wait(STUCK_S) == -signal.SIGKILL
        returned: list[Row] = []

        def all_taken() -> bool:
            returned.extend(store.run(lambda tx: tx.take(b"q/", b"q0", 9), mode="take"))
            return len(returned) >= len(rows)

        # A server may need a moment to notice that its client is dead.
        assert poll(all_taken, store.clock, every_s=0.01, timeout_s=STUCK_S)
        assert sorted(returned) == [Row(key, value) for key, value in rows.items()]
        assert contents(store) == []

    @pytest.mark.rule("STO-1")
    def test_processes_count_together_without_losing_one(self, store: Store) -> None:
        program = """
from tidemill.testing.store_tests.lifecycle import _increment
print("ready", flush=True)
input()
for _ in range(15):
    store.run(_increment)
print("done", flush=True)
"""
        with self.child(store, program) as process:
            assert self.says(process) == "ready"
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            for _ in range(15):
                store.run(_increment)
            assert self.says(process) == "done"
        assert read_counter(value_of(store, b"n")) == 30

    @pytest.mark.rule("STO-6")
    def test_lease_time_is_the_same_for_all_processes(self, store: Store) -> None:
        program = """
for _ in range(3):
    input()
    print(store.run(lambda tx: tx.now()), flush=True)
"""
        with self.child(store, program) as process:
            assert process.stdin is not None
            for _ in range(3):
                before = store.run(lambda tx: tx.now())
                process.stdin.write("\n")
                process.stdin.flush()
                other = int(self.says(process))
                assert before <= other <= store.run(lambda tx: tx.now())

    @pytest.mark.rule("STO-8")
    def test_a_change_by_another_process_fires_a_watch(self, store: Store) -> None:
        program = """
with store:  # closing sends the remaining notifications
    store.run(lambda tx: tx.set(b"k", b"1"))
"""

        def is_seen() -> bool:
            return watch.wait(1.0) and value_of(store, b"k") == b"1"

        with store.watch([b"k"]) as watch, self.child(store, program):
            assert poll(is_seen, store.clock, every_s=0.01, timeout_s=STUCK_S)
