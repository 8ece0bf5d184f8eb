"""Real processes on a real S3 server: four writers, three runners, killed and paused at random."""

import os
import random
import signal
import sys
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path

import msgspec
import pytest

from tests.acceptance import heap_process as program
from tests.acceptance.heap_process import DATASETS, KEYS, LOTS, STARTS
from tests.kill_samples import SEED, tenth_and_all
from tests.servers.process import Child, wait_until
from tests.servers.s3 import S3Server
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.lots import datasets, events
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.store import Store, Tx, open_store
from tidemill.testing.threads import STUCK_S
from tidemill.triggers import attach, subscriptions, templates
from tidemill.triggers.due import NEVER
from tidemill.triggers.heap import Heap
from tidemill.triggers.subscriptions import AnyRow, Terms, Waiting
from tidemill.triggers.templates import Template

SECOND_US = 1_000_000
RAW_A, RAW_B, OTHER = DATASETS
NAMES = {"quick", "slow", "both", "calm", "each[raw_a]", "each[raw_b]"}
PAUSED_EACH = 4
"""Of so many hits one is a pause."""


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
        self.chance = random.Random(SEED)
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

    def harass(self, hits: int, starts: Callable[[], int]) -> None:
        """Kill whoever it hits, or pause a runner beyond its lease; the dead are followed by others.

        After each hit work goes on before there is another: then that one may be in the middle of it too.
        """
        for number in range(hits):
            SYSTEM.sleep(self.chance.random() / 2)  # at any moment of what they do
            before = starts()
            role = self.chance.choice(["writer", "runner", "runner"])
            if number % PAUSED_EACH == 0:
                paused = self.chance.choice(self.children["runner"])
                os.kill(paused.pid, signal.SIGSTOP)
                SYSTEM.sleep(2.0)  # longer than its lease
                os.kill(paused.pid, signal.SIGCONT)
            else:
                child = self.chance.choice(self.children[role])
                child.end(signal.SIGKILL)
                self.children[role].remove(child)
                self.start(role)
            assert wait_until(lambda before=before: starts() > before, timeout_s=STUCK_S), self.logs()

    def end(self) -> None:
        for children in self.children.values():
            for child in children:
                child.end(signal.SIGKILL)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))


def set_up(store: Store, heap: Heap) -> None:
    for dataset in DATASETS:
        store.run(
            lambda tx, dataset=dataset: datasets.declare(
                tx, LOTS, DatasetRow(name=dataset.name, schema="id INT")
            )
        )
    terms = {
        "quick": Terms(sources=(OTHER,), backoff_us=1000, most_failures=0),
        "slow": Terms(sources=(RAW_A,), cadence_us=SECOND_US, backoff_us=1000, most_failures=0),
        "both": Terms(sources=(RAW_A, RAW_B), cadence_us=300_000, backoff_us=1000, most_failures=0),
        "calm": Terms(
            sources=(OTHER,), debounce_us=200_000, max_wait_us=SECOND_US, backoff_us=1000, most_failures=0
        ),
    }
    for name, wanted in terms.items():
        attach.attach(store, KEYS, LOTS, heap, name, wanted)
    each = Terms(sources=(), cadence_us=500_000, backoff_us=1000, most_failures=0)
    store.run(lambda tx: templates.declare(tx, KEYS, Template(name="each", reads="raw_*", terms=each)))


def rows(store: Store) -> dict[str, AnyRow]:
    stored = store.run(lambda tx: tx.range(*KEYS.subscription.all()))
    return {str(KEYS.subscription.unpack(row.key)[0]): subscriptions.decode(row.value) for row in stored}


def at_rest(store: Store) -> bool:
    heads = store.run(lambda tx: events.heads(tx, LOTS, DATASETS))
    current = rows(store).values()
    return all(isinstance(row, Waiting) and _seen(row, heads) for row in current)


def _seen(row: AnyRow, heads: dict[DatasetId, int]) -> bool:
    return all(position == heads[dataset] for dataset, position in row.tally.seen.items())


def run_through(hits: int, folder: Path, server: S3Server) -> None:
    fleet = Fleet(folder, server)
    with open_store(fleet.store_url) as store:
        heap = program.open_heap(fleet.heap_url)
        set_up(store, heap)
        try:
            for role in ["writer"] * 4 + ["runner"] * 3:
                fleet.start(role)
            assert wait_until(lambda: often(store, 1), timeout_s=STUCK_S), (rows(store), fleet.logs())
            fleet.harass(hits, lambda: sum(row.tally.fence for row in rows(store).values()))
            assert wait_until(lambda: often(store, 3), timeout_s=STUCK_S), (rows(store), fleet.logs())
            for writer in fleet.children["writer"]:
                writer.end(signal.SIGKILL)
            assert wait_until(lambda: at_rest(store), timeout_s=STUCK_S), (rows(store), fleet.logs())
            assert wait_until(lambda: not [*heap.listed(0, NEVER), *heap.parked()], timeout_s=STUCK_S), (
                "an item was left behind\n" + fleet.logs()
            )
        finally:
            fleet.end()
        judge(store)
    logs = fleet.logs()
    assert "Traceback" not in logs, logs


def often(store: Store, times: int) -> bool:
    """Whether every subscription, those of the template too, was started at least so many times."""
    by_name = rows(store)
    return set(by_name) == NAMES and all(row.tally.fence >= times for row in by_name.values())


def judge(store: Store) -> None:
    by_name = rows(store)
    assert set(by_name) == NAMES
    heads = store.run(lambda tx: events.heads(tx, LOTS, DATASETS))
    assert all(heads.values()), "something was written to each"
    for name, row in by_name.items():
        assert _seen(row, heads), f"HEAP-2: {name} has not seen all"
        noted = store.run(lambda tx, name=name: tx.range(*STARTS.under(name)))
        starts = [msgspec.msgpack.decode(note.value, type=int) for note in noted]
        assert len(starts) == row.tally.fence, "every start raised the fence"
        gaps = [after - before for before, after in pairwise(starts)]
        assert min(gaps) >= row.tally.terms.cadence_us, f"HEAP-1: {name}"


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
        store.run(lambda tx: datasets.declare(tx, LOTS, DatasetRow(name=OTHER.name, schema="id INT")))
        for first in range(0, many, 200):
            store.run(lambda tx, first=first: subscribe(tx, first))
        store.run(lambda tx: program.publish(tx, OTHER))
        for number, point in enumerate(["triggers.wake.after:20", "triggers.push.after:4", ""]):
            child = Child(
                [sys.executable, "-m", program.__name__, "bulk", str(number)],
                log=tmp_path / f"bulk-{number}.log",
                env={**os.environ, program.STORE: url, crash.ENVIRONMENT: point},
                cwd=Path(__file__).parents[2],
            )
            try:
                done = (lambda child=child: not child.running) if point else (lambda: at_rest(store))
                assert wait_until(done, timeout_s=STUCK_S), (tmp_path / f"bulk-{number}.log").read_text()
            finally:
                child.end(signal.SIGKILL)
            starts = store.run(lambda tx: len(tx.range(*STARTS.all())))
            assert (starts < many) == bool(point), "killed in the middle"
        assert all(row.tally.fence == 1 for row in rows(store).values()), "each ran once"


@pytest.mark.rule("HEAP-1", "HEAP-2")
@pytest.mark.parametrize("hits", tenth_and_all(100))
def test_through_deaths_and_pauses_no_write_is_unseen_no_cadence_broken_and_no_item_left(
    hits: int, tmp_path: Path, s3_server: S3Server
) -> None:
    run_through(hits, tmp_path, s3_server)
