"""Graces: when lots have waited long enough for their last source, as a runner sees it (LOT-28).

No subscription is due at the end of a grace, because nothing was published: so a runner looks, in every turn,
at the lots of its arcs that have waited longest. It is one short read for each arc that has such a policy.
"""

from collections.abc import Callable, Iterable

from tidemill.arcs import asks, barriers
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.store import Store, Tx
from tidemill.triggers.terms import AfterGrace


class Graces:
    """The graces of some arcs: those that there are when somebody asks."""

    def __init__(self, store: Store, keys: ArcKeys, arcs: Callable[[], Iterable[ArcSpec]]) -> None:
        self._store = store
        self._keys = keys
        self._arcs = arcs

    @property
    def _specs(self) -> list[ArcSpec]:
        return [one for one in self._arcs() if one.after_grace is not AfterGrace.WAIT]

    def over(self) -> list[tuple[ArcSpec, str]]:
        """Lots for which something is to be done now, as many of each arc as there is room for."""
        specs = self._specs
        if not specs:
            return []

        def read(tx: Tx) -> list[tuple[ArcSpec, str]]:
            return [
                (spec, lot)
                for spec in specs
                if not asks.parked(tx, self._keys, spec.id)
                for lot in barriers.due(tx, self._keys, spec, spec.max_concurrent)
            ]

        return self._store.run(read)

    def left_us(self) -> dict[str, int]:
        """By arc, how long it is until the next of its graces is over; those for which nothing waits, or that
        are not run, are not in it.
        """
        specs = self._specs
        if not specs:
            return {}

        def read(tx: Tx) -> dict[str, int]:
            found = {
                spec.id: barriers.next_at(tx, self._keys, spec)
                for spec in specs
                if not asks.parked(tx, self._keys, spec.id)
            }
            return {arc: at - tx.now() for arc, at in found.items() if at is not None}

        return self._store.run(read)
