"""Samples the pipeline and the steady runner during the faults, and notes recoveries."""

import contextlib
import os
import threading
from collections.abc import Callable

import tidemill as tm
from tests.soak import holdings
from tests.soak.faults import Fault
from tests.soak.holdings import Holdings, Progress
from tests.soak.nodes import SoakNode
from tests.soak.report import Sample
from tidemill.clock import SYSTEM
from tidemill.errors import StoreError

EVERY_S = 1.0
MEMORY_EVERY = 5
NONE = Holdings({}, {}, known=False)


class Monitor:
    """A thread that reads the store about once per second, and the memory of the steady runner less often.

    - processes: the lasting processes of the steady runner, in every sample; all samples must be the same.
    - loads: the load averages of the machine. Other work on it makes them high.

    A pipeline has recovered from a fault when the target is in the node list again, and a lot or a step was
    published after the fault had ended.
    """

    def __init__(self, pipeline: tm.Pipeline, steady: SoakNode, now: Callable[[], float]) -> None:
        self._context = pipeline.context
        self._steady = steady
        self._now = now
        self._lock = threading.Lock()
        self._watched: list[tuple[Fault, Progress]] = []
        self.samples: list[Sample] = []
        self.processes: set[tuple[int, ...]] = set()
        self.loads: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._thread.start()

    def holdings(self) -> Holdings:
        """Return which node holds what now; nothing while the store does not answer."""
        with contextlib.suppress(StoreError):
            return self._context.store.run(lambda tx: holdings.read(tx, self._context.place.cluster))
        return NONE

    def watch(self, fault: Fault) -> None:
        """Note when the pipeline has recovered from a fault that has ended."""
        with contextlib.suppress(StoreError):
            progress = self._progress()
            with self._lock:
                self._watched.append((fault, progress))
            return
        with self._lock:
            last = self.samples[-1]
            self._watched.append((fault, Progress(last.lots, last.steps)))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _progress(self) -> Progress:
        return self._context.store.run(lambda tx: holdings.progress(tx, self._context))

    def _run(self) -> None:
        rounds, memory = 0, self._steady.memory()
        while not self._stop.is_set():
            if rounds % MEMORY_EVERY == 0:
                memory = self._steady.memory()
                self.processes.add(memory.lasting)
                self.loads.append(os.getloadavg()[0])
            rounds += 1
            with contextlib.suppress(StoreError):
                progress = self._progress()
                size = memory.python + memory.java
                self.samples.append(Sample(round(self._now(), 1), *progress, size, memory.java))
                self._note_recoveries(progress)
            SYSTEM.wait(self._stop, EVERY_S)

    def _note_recoveries(self, progress: Progress) -> None:
        with self._lock:
            watched = list(self._watched)
        if not watched:
            return
        holdings = self.holdings()
        for fault, before in watched:
            node = fault.node
            back = node is None or holdings.entry(node.threads, node.started_at_us) is not None
            if back and progress != before:
                fault.recovered_s = self._now()
                with self._lock:
                    self._watched.remove((fault, before))
