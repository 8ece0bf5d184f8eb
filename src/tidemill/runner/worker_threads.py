"""The crew of a runner's hands: threads that take turns, and one that guards them.

The guard interrupts a turn by its tag when its end is wanted, again and again until it is over, even while
whoever gives out the turns is stuck in the store.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

from tidemill.clock import Clock
from tidemill.futures.worker.task import Outcome
from tidemill.runner.future_run import Turn, TurnRunner

GUARD_S = 0.1
INTERRUPT_EVERY_S = 1.0

Interrupt = Callable[[str], None]


class Crew:
    """Some threads, each with one turn at a time.

    Args:
        runner: runs a turn to its outcome.
        threads: how many turns at once.
        interrupt: ends the Spark jobs of a tag; called by the guard, and may raise.
        heard: called when a turn has ended.
        broke: called with what a turn must not raise: a crash point stands for the death of the process.
        is_lost: is the lease over under which the turns were claimed?
        lost: called by the guard when it is, after it has marked the turns.
    """

    def __init__(
        self,
        runner: TurnRunner,
        threads: int,
        *,
        interrupt: Interrupt,
        heard: Callable[[], None],
        broke: Callable[[BaseException], None],
        is_lost: Callable[[], bool],
        lost: Callable[[], None],
        clock: Clock,
    ) -> None:
        self.size = threads
        self._runner = runner
        self._interrupt = interrupt
        self._heard = heard
        self._broke = broke
        self._is_lost = is_lost
        self._lost = lost
        self._clock = clock
        self._threads: list[threading.Thread] = []
        self._work: queue.SimpleQueue[Turn | None] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[tuple[Turn, Outcome]] = queue.SimpleQueue()
        self._turns: dict[int, Turn] = {}  # in threads, whatever became of their claims
        self._quiet = threading.Event()  # nobody is left to be interrupted

    def start(self) -> None:
        """Begin to take turns."""
        for number in range(self.size):
            self._threads.append(threading.Thread(target=self._serve, name=f"hand-{number}", daemon=True))
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._guard, name="hands-guard", daemon=True).start()

    @property
    def turns(self) -> list[Turn]:
        """Those in threads now."""
        return list(self._turns.values())

    def __len__(self) -> int:
        return len(self._turns)

    def give(self, turn: Turn) -> None:
        """Have a turn run."""
        self._turns[id(turn)] = turn
        self._work.put(turn)

    def ended(self) -> Iterator[tuple[Turn, Outcome]]:
        """The turns that have ended since it was asked last."""
        while True:
            try:
                yield self._ends.get_nowait()
            except queue.Empty:
                return

    def mark_lost(self) -> None:
        """Nothing of the turns is written any more; they are interrupted."""
        for turn in self.turns:
            turn.over = turn.over or "lost"

    def dismiss(self) -> None:
        """Each thread ends when its turn has."""
        for _ in range(self.size):
            self._work.put(None)

    def end(self, by: float) -> None:
        """Wait for threads that are dismissed, until a moment of the monotonic clock, and guard no more."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, by - self._clock.monotonic()))
        self._quiet.set()

    def _serve(self) -> None:
        while (turn := self._work.get()) is not None:
            try:
                outcome = self._runner.take(turn)
            except BaseException as error:  # noqa: BLE001 - a crash point: see `broke`
                self._broke(error)
                return
            finally:
                self._turns.pop(id(turn), None)
            self._ends.put((turn, outcome))
            self._heard()

    def _guard(self) -> None:
        """Interrupt turns whose end is wanted, whatever the loop is doing."""
        while not self._clock.wait(self._quiet, GUARD_S):
            now = self._clock.monotonic()
            lost = self._is_lost()
            for turn in self.turns:
                if lost and not turn.over:
                    turn.over = "lost"
                if turn.over and now >= turn.interrupted_at + INTERRUPT_EVERY_S:
                    turn.interrupted_at = now
                    with contextlib.suppress(Exception):
                        self._interrupt(turn.tag)
            if lost:
                self._lost()
