"""Trouble: what failed in a loop. It is told, put off for a while, and given up on for this catching up."""

import contextlib
import random
from collections.abc import Callable

from tidemill.clock import backoff
from tidemill.errors import LeaseLost, StoreError, TidemillError
from tidemill.events import Emit
from tidemill.runner.tally import Tally
from tidemill.store import Store
from tidemill.triggers import runs
from tidemill.triggers.events import RunFailed
from tidemill.triggers.runs import Ticket
from tidemill.views.steps.keys import StepKeys

PATIENCE = 3
"""How often a run may fail in one catching up before it is left for later. Who watches never gives up."""

MOST_SAID = 20
"""Failures in a row that are remembered of one thing: somebody may watch for months."""

LET_GO_US = 200_000


class Trouble:
    """One loop's trouble, by the name of what failed.

    Args:
        tally: remembers what failed, and how often in a row.
        watching: does the loop stay for what arrives?
        dead: is the loop taken for killed? Then nothing is written any more.
    """

    def __init__(
        self,
        store: Store,
        keys: StepKeys,
        tally: Tally,
        *,
        watching: Callable[[], bool],
        dead: Callable[[], bool],
        chance: random.Random,
        emit: Emit,
    ) -> None:
        self._store = store
        self._keys = keys
        self._tally = tally
        self._watching = watching
        self._dead = dead
        self._chance = chance
        self._emit = emit

    def is_patient(self, name: str) -> bool:
        """Is it tried again in this run of the loop?"""
        return self._watching() or len(self._tally.failures.get(name, ())) < PATIENCE

    def failed(self, name: str, error: Exception, ticket: Ticket | None = None) -> float:
        """Tell, and put the run off; for how many seconds."""
        said = self._tally.failures.setdefault(name, [])
        said.append(_told(error))
        del said[:-MOST_SAID]
        pause_s = backoff(len(said), self._chance, first_s=0.2, most_s=60.0)
        if ticket is not None:
            with contextlib.suppress(LeaseLost, StoreError):  # then it runs out with our lease
                self._store.run(
                    lambda tx: runs.fail(
                        tx,
                        self._keys.triggers,
                        self._keys.cluster,
                        ticket,
                        backoff_us=int(pause_s * 1e6),
                        why=_told(error),
                    )
                )
        self.tell(name, error, pause_s, len(said))
        return pause_s

    def let_go(self, ticket: Ticket | None) -> None:
        """What we worked with is ours no more. If the run still is, it must not stay ours with nobody at it:
        whoever comes next goes on, at once.
        """
        if ticket is None or self._dead():
            return
        keys = self._keys
        with contextlib.suppress(LeaseLost, StoreError):  # then whoever has it now goes on
            self._store.run(
                lambda tx: runs.fail(
                    tx, keys.triggers, keys.cluster, ticket, backoff_us=LET_GO_US, counted=False
                )
            )

    def tell(self, name: str, error: Exception, pause_s: float, failures: int = 1) -> None:
        """Say what failed, and in how many seconds it is tried again."""
        self._emit(
            RunFailed(
                name=name,
                code=getattr(error, "code", type(error).__name__),
                message=_told(error),
                backoff_s=pause_s,
                failures=failures,
            )
        )


def _told(error: Exception) -> str:
    return error.message if isinstance(error, TidemillError) else f"{type(error).__name__}: {error}"
