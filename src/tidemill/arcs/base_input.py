"""The base lot of a table as the input of an arc that is newer than the lots in it (LOT-39).

An arc makes an output lot from each input lot. A new arc cannot do that with lots that have expired into a
base lot. So before all other lots, it makes one output lot from the whole base lot. This lot has the id of
the last lot that has expired: no later event of the input can have that id. Its row and its manifests name
the input `base_lot.LOT`.

The arc makes this lot once: it is new as long as its tables have no events, and after that the row of the lot
says from what it was made. Until the lot is finished, no other lot of the input expires
(`runner.retention.lower_bound`), so the rows stay the same. A merge may replace their files, as a compaction
may replace those of any lot.

An arc that reads several tables makes a lot from lots with the same id, so it does not read base lots.
"""

from tidemill.arcs import rows
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import CompleteLot, MissingLot
from tidemill.lots import base_lot, events, expiry, lots
from tidemill.lots.events import LotEvent
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot
from tidemill.lots.states import LotState
from tidemill.store import Tx


def first_event(tx: Tx, keys: ArcKeys, spec: ArcSpec, after: int) -> LotEvent | None:
    """Return an event for the base lot of an arc's input; None if the arc does not need the base lot.

    - after: the position up to which the arc has seen its input.
    """
    lot = base_lot.read(tx, keys.publish.lots, spec.reads[0]).last
    expired = expiry.read(tx, keys.publish.lots, spec.reads[0])
    if after >= expired.position or not lot or not is_input(tx, keys, spec, lot):
        return None
    return LotEvent(expired.position, lot, 0, LotState.COMPLETE, attempt="", at=0, wall_at=0)


def is_input(tx: Tx, keys: ArcKeys, spec: ArcSpec, lot: str) -> bool:
    """Return whether an arc makes this lot from the base lot of its input."""
    if len(spec.reads) != 1:
        return False
    lot_keys, source = keys.publish.lots, spec.reads[0]
    if base_lot.read(tx, lot_keys, source).last != lot or not expiry.is_complete(tx, lot_keys, source):
        return False
    last = rows.newest(tx, keys, spec.id, lot)
    if last is None:
        is_current = lots.current(tx, lot_keys, source, lot) is not None
        sinks = [sink.dataset for sink in spec.sinks]
        return not is_current and not any(events.heads(tx, lot_keys, sinks).values())
    if isinstance(last[1], CompleteLot):
        return last[1].inputs == (input_lot(source),)
    return not (isinstance(last[1], MissingLot) and last[1].skipped)


def input_lot(source: DatasetId) -> InputLot:
    """Return the base lot as it is named among the inputs of a lot."""
    return InputLot(dataset=source.name, version=source.version, lot=base_lot.LOT, generation=0)


def lot_rows(tx: Tx, keys: ArcKeys, source: DatasetId) -> list[LotRow]:
    """Return the base lot and the expired lots that are not merged yet, as rows that name their manifests."""
    base = base_lot.read(tx, keys.publish.lots, source)
    manifests = [base.manifest] if base.manifest else []
    after = base.position
    while page := base_lot.parts(tx, keys.publish.lots, source, after):
        manifests += [part.manifest for part in page]
        after = page[-1].position
    state = LotState.COMPLETE if manifests else LotState.EMPTY
    return [
        LotRow(dataset=source, lot=base_lot.LOT, state=state, manifest=manifest, attempt="")
        for manifest in manifests or [""]
    ]
