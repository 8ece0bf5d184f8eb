"""Test a store that several processes share: what one commits or takes, and what it leaves when it dies."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidemill.clock import poll
from tidemill.store import Mode, Row, Store, Tx
from tidemill.store.port import read_counter, write_counter
from tidemill.testing.store_laws.laws import StoreLaws, contents, fill, value_of
from tidemill.testing.threads import STUCK_S

DIE = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def _increment(tx: Tx) -> None:
    tx.set(b"n", write_counter(read_counter(tx.get(b"n")) + 1))


class StoreProcessLaws(StoreLaws):
    """Other processes are like other threads, but for their way of ending."""

    @contextmanager
    def child(self, store: Store, program: str) -> Iterator["subprocess.Popen[str]"]:
        """Another process with the same data as its `store`."""
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
        """What the child prints next."""
        assert process.stdout is not None
        return process.stdout.readline().strip()

    @pytest.mark.rule("STO-4")
    @pytest.mark.parametrize("mode", ["take", "serial"])
    def test_what_a_process_took_is_there_again_when_it_was_killed(self, store: Store, mode: Mode) -> None:
        rows = {b"q/1": b"one", b"q/2": b"two", b"q/3": b"three"}
        fill(store, rows)
        program = f"""
def fn(tx):
    for row in tx.take(b"q/", b"q0", 2):
        tx.set(b"claim/" + row.key, row.value)
    tx.range(b"claim/", b"claim0", snapshot=True)  # whatever was held back has been sent now
    {DIE}
store.run(fn, mode="{mode}")
"""
        with self.child(store, program) as process:
            assert process.wait(STUCK_S) == -signal.SIGKILL
        taken: list[Row] = []

        def all_taken() -> bool:
            taken.extend(store.run(lambda tx: tx.take(b"q/", b"q0", 9), mode="take"))
            return len(taken) >= len(rows)

        # A server may need a moment to see that its client is dead.
        assert poll(all_taken, store.clock, every_s=0.01, timeout_s=STUCK_S)
        assert sorted(taken) == [Row(key, value) for key, value in rows.items()]
        assert contents(store) == []

    @pytest.mark.rule("STO-1")
    def test_processes_count_together_without_losing_one(self, store: Store) -> None:
        program = """
from tidemill.testing.store_laws.processes import _increment
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
                there = int(self.says(process))
                assert before <= there <= store.run(lambda tx: tx.now())

    @pytest.mark.rule("STO-8")
    def test_a_change_by_another_process_is_told(self, store: Store) -> None:
        program = """
with store:  # what is left to tell is told when it is closed
    store.run(lambda tx: tx.set(b"k", b"1"))
"""

        def told() -> bool:
            return watch.wait(1.0) and value_of(store, b"k") == b"1"

        with store.watch([b"k"]) as watch, self.child(store, program):
            assert poll(told, store.clock, every_s=0.01, timeout_s=STUCK_S)
