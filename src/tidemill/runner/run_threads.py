"""The thread pool of a runner. Each run has one thread from its start to its end.

A run mostly waits for Spark, and for workers that process its parts. So a thread per run is cheap. The
workers and Spark limit how much is computed at the same time.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.clock import SYSTEM


@dataclass(frozen=True)
class RunJob:
    """Something to run in a thread.

    Args:
        name: no two jobs with the same name run at the same time.
        run: does the work.
        spare: start the job only if more than this many threads are free.
    """

    name: str
    run: Callable[[], None]
    spare: int = 0


class RunThreads:
    """Runs jobs in threads. No two jobs with the same name run at the same time.

    Jobs catch the errors that they can handle. If a job raises any other error, the process counts as dead:
    no new job starts, and `check` raises the error.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._broken: BaseException | None = None
        self.wakeup = threading.Event()  # set when a job has ended; the waiting loop clears it

    def start(self, name: str, job: Callable[[], None], *, spare: int = 0) -> bool:
        """Start a job.

        Return False if a job with that name is running, or if no more than `spare` threads are free.
        """
        with self._lock:
            if name in self._names or len(self._names) >= self._most - spare or self._broken is not None:
                return False
            self._names.add(name)
            if len(self._threads) < len(self._names):
                thread = threading.Thread(target=self._serve, name=f"run-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._jobs.put((name, job))
        return True

    @property
    def busy(self) -> frozenset[str]:
        """The names of the jobs that are running now."""
        with self._lock:
            return frozenset(self._names)

    def check(self) -> None:
        """Raise the error that a job raised, if there is one."""
        if self._broken is not None:
            raise self._broken

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Start no more jobs, and wait for the running ones. Return False if some are still running."""
        with self._lock:
            self._most = 0
        for _ in self._threads:
            self._jobs.put(None)
        deadline = SYSTEM.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - SYSTEM.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (item := self._jobs.get()) is not None:
            name, job = item
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - raised by `check`
                error.add_note(f"in the thread of {name}")
                self._broken = self._broken or error
            finally:
                with self._lock:  # both under one lock: once a name is not busy, the wakeup is set
                    self._names.discard(name)
                    self.wakeup.set()
