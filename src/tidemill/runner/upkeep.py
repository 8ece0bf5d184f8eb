"""Upkeep: what a runner does now and then beside its work. Leftovers are removed, small files made one."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from tidemill.clock import Clock
from tidemill.errors import LeaseLost, StoreError
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.runner.compacting import Compactor
from tidemill.runner.lines import Lines
from tidemill.runner.part_futures import PartFutures
from tidemill.store import Store

if TYPE_CHECKING:
    from tidemill.runner.life import Life

CLEAN_EVERY_S = 30.0
COLLECT_EVERY_S = 300.0
"""Listing what there is costs requests, and nothing is collected before its grace is over."""

COMPACT_EVERY_S = 10.0
NAMES = frozenset({"clean", "compact"})
"""The lines of upkeep: nobody who catches up waits for them."""

Tell = Callable[[str, Exception, float], None]
"""Told of what failed, why, and in how many seconds it is tried again."""


class Upkeep:
    """One runner's upkeep.

    Args:
        datasets: those whose lots are compacted.
        spare: lines that are left to what arrives.
        stops: asked between two lots: whoever ends does not wait for all of them.
    """

    def __init__(
        self,
        store: Store,
        keys: LotKeys,
        datasets: Callable[[], Iterable[DatasetId]],
        parts: PartFutures,
        lines: Lines,
        *,
        spare: int,
        stops: Callable[[], bool],
        tell: Tell,
        clock: Clock,
    ) -> None:
        self._store = store
        self._keys = keys
        self._datasets = datasets
        self._parts = parts
        self._lines = lines
        self._spare = spare
        self._stops = stops
        self._tell = tell
        self._clock = clock
        self._clean_at = self._compact_at = self._collect_at = 0.0

    def turn(self, life: "Life") -> None:
        """Begin what is due. Lots of many small files come when nothing else is to be done for a moment."""
        now = self._clock.monotonic()
        if now >= self._clean_at:
            self._clean_at = now + CLEAN_EVERY_S
            self._lines.begin("clean", partial(self.clean, life))
        if life.compactor is not None and now >= self._compact_at:
            self._compact_at = now + COMPACT_EVERY_S
            self._lines.begin("compact", partial(self.compact, life.compactor), spare=self._spare)

    def clean(self, life: "Life") -> None:
        """Remove what ended attempts left, with the futures of their parts, and what steps have replaced."""
        try:
            while life.cleaner.clean():
                pass
            if self._clock.monotonic() >= self._collect_at:
                more = life.collector.collect()
                self._collect_at = self._clock.monotonic() + (CLEAN_EVERY_S if more else COLLECT_EVERY_S)
            self._parts.forget_ended()
        except LeaseLost:
            return
        except Exception as error:  # noqa: BLE001 - told, and tried again
            self._tell("clean", error, CLEAN_EVERY_S)

    def compact(self, compactor: Compactor) -> None:
        """All that is marked now. One that fails is left for the next time: its lot is whole as it is."""
        for dataset in self._datasets():
            try:
                marked = self._store.run(partial(lots.crumbled, keys=self._keys, dataset=dataset))
            except StoreError as error:
                self._tell("compact", error, COMPACT_EVERY_S)
                return
            for lot in marked:
                if self._stops():
                    return
                try:
                    compactor.compact(dataset, lot)
                except LeaseLost:
                    return
                except Exception as error:  # noqa: BLE001 - told, and tried again
                    self._tell(f"compact {dataset} {lot}", error, COMPACT_EVERY_S)
