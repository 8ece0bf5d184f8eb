"""What an ended attempt has beside its objects: the futures of its parts, and the names that show its lots.

Names are written right after a publication, by whoever published; one who dies in between leaves names that
are behind, such as `running.arc` for a lot that is complete. The cleaner comes by every ended attempt at
least once, so they are looked at there again: what is behind is brought up to date, for lots of arcs, sources
and producers alike (LOT-22, LOT-23).
"""

from functools import partial

from tidemill.arcs import declarations, standings
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.errors import ArcUnknown
from tidemill.publish.attempts import Draft
from tidemill.publish.projections import Projections
from tidemill.runner.part_futures import PartFutures
from tidemill.store import Store, Tx


class Leftovers:
    """Lets go of what an ended attempt has; for a cleaner. May be repeated."""

    def __init__(
        self, store: Store, keys: ArcKeys, parts: PartFutures, projections: Projections | None
    ) -> None:
        self._store = store
        self._keys = keys
        self._parts = parts
        self._projections = projections

    def __call__(self, draft: Draft) -> None:
        self._parts.forget(draft.id)
        if self._projections is None:
            return
        for target in draft.targets:
            self._projections.mend_lot(target.dataset, target.lot)
        spec = self._arc(draft.author)
        if spec is not None:
            read = partial(_state, keys=self._keys, arc=spec.id, lot=draft.lot)
            self._projections.mend_arc(spec.pipeline, spec.version, spec.name, draft.lot, read)

    def _arc(self, author: str) -> ArcSpec | None:
        if not author.startswith("arc:"):
            return None
        try:
            return self._store.run(lambda tx: declarations.read(tx, self._keys, author))
        except ArcUnknown:
            return None


def _state(tx: Tx, keys: ArcKeys, arc: str, lot: str) -> str:
    return standings.standing(tx, keys, arc, lot).state.value
