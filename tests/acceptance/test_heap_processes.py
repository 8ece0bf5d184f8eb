"""Real processes on a real S3 server: four writers, three runners, killed and paused at random."""

import os
import random
import signal
import sys
from itertools import count, pairwise
from pathlib import Path

import msgspec
import pytest

from tests.acceptance import heap_process as program
from tests.acceptance.heap_process import DATASETS, KEYS, LOTS, STARTS
from tests.servers.process import Child, wait_until
from tests.servers.s3 import S3Server
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.lots import datasets, events
from tidemill.lots.datasets import Dataset
from tidemill.lots.keys import DatasetId
from tidemill.store import Store, Tx, open_store
from tidemill.triggers import attach, subscriptions, templates
from tidemill.triggers.due import NEVER
from tidemill.triggers.heap import Heap
from tidemill.triggers.subscriptions import AnyRow, Terms, Waiting
from tidemill.triggers.templates import Template

LONG_S = 90.0
SECOND_US = 1_000_000
RAW_A, RAW_B, OTHER = DATASETS


class Fleet:
    """The processes, the store and the heap of one run."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        bucket = server.new_bucket()
        self.heap_url = (
            f"s3://{server.access_key}:{server.secret_key}@{bucket}/root"
            f"?endpoint={server.endpoint}&region={server.region}&listing=flat"
        )
        self.store_url = f"sqlite://{folder}/store.db"
        self.folder = folder
        self.chance = random.Random(3)
        self.numbers = count()
        self.children: dict[str, list[Child]] = {"writer": [], "runner": []}

    def start(self, role: str) -> Child:
        environment = {**os.environ, program.STORE: self.store_url, program.HEAP: self.heap_url}
        number = next(self.numbers)
        child = Child(
            [sys.executable, "-m", program.__name__, role, str(number)],
            log=self.folder / f"{role}-{number}.log",
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        self.children[role].append(child)
        return child

    def harass(self, for_s: float) -> dict[str, int]:
        """Kill, and pause beyond their leases, whoever it hits; the dead are followed by others."""
        done = {"killed": 0, "paused": 0}
        end = SYSTEM.monotonic() + for_s
        while SYSTEM.monotonic() < end:
            SYSTEM.sleep(self.chance.random() * 1.5)
            role = self.chance.choice(["writer", "runner", "runner"])
            child = self.chance.choice(self.children[role])
            if role == "runner" and self.chance.random() < 0.3:
                os.kill(child.pid, signal.SIGSTOP)
                SYSTEM.sleep(2.0)  # longer than its lease
                os.kill(child.pid, signal.SIGCONT)
                done["paused"] += 1
            else:
                child.end(signal.SIGKILL)
                self.children[role].remove(child)
                self.start(role)
                done["killed"] += 1
        return done

    def end(self) -> None:
        for children in self.children.values():
            for child in children:
                child.end(signal.SIGKILL)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))


def set_up(store: Store, heap: Heap) -> None:
    for dataset in DATASETS:
        store.run(lambda tx, one=dataset: datasets.declare(tx, LOTS, Dataset(name=one.name, schema="id INT")))
    terms = {
        "quick": Terms(sources=(OTHER,), backoff_us=1000, most_failures=0),
        "slow": Terms(sources=(RAW_A,), cadence_us=SECOND_US, backoff_us=1000, most_failures=0),
        "both": Terms(sources=(RAW_A, RAW_B), cadence_us=300_000, backoff_us=1000, most_failures=0),
        "calm": Terms(
            sources=(OTHER,), debounce_us=200_000, max_wait_us=SECOND_US, backoff_us=1000, most_failures=0
        ),
    }
    for name, one in terms.items():
        attach.attach(store, KEYS, LOTS, heap, name, one)
    each = Terms(sources=(), cadence_us=500_000, backoff_us=1000, most_failures=0)
    store.run(lambda tx: templates.declare(tx, KEYS, Template(name="each", reads="raw_*", terms=each)))


def rows(store: Store) -> dict[str, AnyRow]:
    found = store.run(lambda tx: tx.range(*KEYS.subscription.all()))
    return {str(KEYS.subscription.unpack(row.key)[0]): subscriptions.decode(row.value) for row in found}


def at_rest(store: Store) -> bool:
    heads = store.run(lambda tx: events.heads(tx, LOTS, DATASETS))
    found = rows(store).values()
    return all(isinstance(row, Waiting) and _seen(row, heads) for row in found)


def _seen(row: AnyRow, heads: dict[DatasetId, int]) -> bool:
    return all(position == heads[one] for one, position in row.tally.seen.items())


def run_for(seconds: float, folder: Path, server: S3Server) -> None:
    fleet = Fleet(folder, server)
    with open_store(fleet.store_url) as store:
        heap = program.open_heap(fleet.heap_url)
        set_up(store, heap)
        try:
            for role in ["writer"] * 4 + ["runner"] * 3:
                fleet.start(role)
            done = fleet.harass(seconds)
            for writer in fleet.children["writer"]:
                writer.end(signal.SIGKILL)
            assert wait_until(lambda: at_rest(store), timeout_s=LONG_S), (rows(store), fleet.logs())
            assert wait_until(lambda: not [*heap.listed(0, NEVER), *heap.parked()], timeout_s=LONG_S), (
                "an item was left behind\n" + fleet.logs()
            )
        finally:
            fleet.end()
        judge(store, seconds)
    assert done["killed"] >= seconds / 4
    assert "Traceback" not in fleet.logs()


def judge(store: Store, seconds: float) -> None:
    found = rows(store)
    assert set(found) == {"quick", "slow", "both", "calm", "each[raw_a]", "each[raw_b]"}
    heads = store.run(lambda tx: events.heads(tx, LOTS, DATASETS))
    assert sum(heads.values()) > 5 * seconds
    total = 0
    for name, row in found.items():
        assert _seen(row, heads), f"HEAP-2: {name} has not seen all"
        noted = store.run(lambda tx, name=name: tx.range(*STARTS.under(name)))
        starts = [msgspec.msgpack.decode(one.value, type=int) for one in noted]
        total += len(starts)
        assert len(starts) == row.tally.fence, "every start raised the fence"
        gaps = [after - before for before, after in pairwise(starts)]
        assert min(gaps, default=NEVER) >= row.tally.terms.cadence_us, f"HEAP-1: {name}"
    assert total > seconds


@pytest.mark.rule("HEAP-1", "HEAP-2")
def test_in_twenty_seconds_of_deaths_no_write_is_unseen_no_cadence_broken_and_no_item_left(
    tmp_path: Path, s3_server: S3Server
) -> None:
    run_for(20.0, tmp_path, s3_server)


@pytest.mark.rule("HEAP-20", "HEAP-2")
def test_five_thousand_subscribers_all_run_although_their_runners_are_killed_in_the_fan_out(
    tmp_path: Path,
) -> None:
    url, many = f"sqlite://{tmp_path}/store.db", 5_000
    terms = Terms(sources=(OTHER,))

    def subscribe(tx: Tx, first: int) -> None:
        for number in range(first, first + 200):
            subscriptions.subscribe(tx, KEYS, LOTS, f"s{number:05}", terms)

    with open_store(url) as store:
        store.run(lambda tx: datasets.declare(tx, LOTS, Dataset(name=OTHER.name, schema="id INT")))
        for first in range(0, many, 200):
            store.run(lambda tx, first=first: subscribe(tx, first))
        store.run(lambda tx: program.publish(tx, OTHER))
        for number, point in enumerate(["tender.wake.after:20", "tender.push.after:4", ""]):
            child = Child(
                [sys.executable, "-m", program.__name__, "bulk", str(number)],
                log=tmp_path / f"bulk-{number}.log",
                env={**os.environ, program.STORE: url, crash.ENVIRONMENT: point},
                cwd=Path(__file__).parents[2],
            )
            try:
                done = (lambda child=child: not child.running) if point else (lambda: at_rest(store))
                assert wait_until(done, timeout_s=LONG_S), (tmp_path / f"bulk-{number}.log").read_text()
            finally:
                child.end(signal.SIGKILL)
            starts = store.run(lambda tx: len(tx.range(*STARTS.all())))
            assert (starts < many) == bool(point), "killed in the middle"
        assert all(row.tally.fence == 1 for row in rows(store).values()), "each ran once"


@pytest.mark.crash
@pytest.mark.rule("HEAP-1", "HEAP-2")
def test_nor_in_two_minutes(tmp_path: Path, s3_server: S3Server) -> None:
    run_for(120.0, tmp_path, s3_server)
