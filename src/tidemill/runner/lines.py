"""Lines: the threads in which a runner's runs take place, each from its start to its end.

A run spends its time waiting: for parts that hands make, for Spark. So lines are many and cheap; how much is
computed at once is decided by the hands and by Spark.
"""

import queue
import threading
from collections.abc import Callable

from tidemill.clock import SYSTEM

Job = Callable[[], None]


class Lines:
    """Runs jobs in threads, each under a name that only one of them has at a time.

    A job that raises is taken for the death of the process (jobs catch what they can deal with): nothing new
    is begun, and `check` raises it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[str, Job] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._broken: BaseException | None = None
        self.ended = threading.Event()  # set when a job has ended; cleared by whoever waits for it

    def begin(self, name: str, job: Job, *, spare: int = 0) -> bool:
        """Run a job; False if one of that name runs, or no more than `spare` lines are free."""
        with self._lock:
            if name in self._names or len(self._names) >= self._most - spare or self._broken is not None:
                return False
            self._names.add(name)
            if len(self._threads) < len(self._names):
                thread = threading.Thread(target=self._serve, name=f"line-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._work.put((name, job))
        return True

    @property
    def busy(self) -> frozenset[str]:
        """What runs now."""
        with self._lock:
            return frozenset(self._names)

    def check(self) -> None:
        """Raise what a job raised."""
        if self._broken is not None:
            raise self._broken

    def end(self, timeout_s: float = 30.0) -> bool:
        """Begin nothing any more and wait for what runs; False if something still does."""
        with self._lock:
            self._most = 0
        for _ in self._threads:
            self._work.put(None)
        by = SYSTEM.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, by - SYSTEM.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            name, job = item
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - told by `check`
                self._broken = self._broken or error
            finally:
                with self._lock:  # both at once: who finds it gone from `busy` is told that it has ended
                    self._names.discard(name)
                    self.ended.set()
