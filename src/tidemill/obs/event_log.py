"""The event log: what happened in a cluster, in the store, for as long as the pipeline keeps it.

Each runner writes the events that `obs.lines` describes, in batches, from a separate thread. No work waits
for the log. If the store does not answer, events wait in memory, and the oldest are dropped when there are
too many. So the log may lack events, and no decision of a pipeline depends on it. Rows are in the order of
their commits: a reader that continues after a row misses nothing.
"""

from contextlib import suppress
from functools import partial

import msgspec

from tidemill.clock import SYSTEM, Clock
from tidemill.errors import StoreError
from tidemill.events import Emit, Event
from tidemill.obs.keys import ObservationKeys
from tidemill.obs.lines import Severity, line_of
from tidemill.obs.waiting_events import WaitingEvents
from tidemill.store import Store, Tx
from tidemill.store.port import Row, read_counter
from tidemill.store.secrets import redact_text

KEEP_S = 14 * 86_400.0
"""How long events are kept unless the pipeline says otherwise."""

MOST_EVENTS = 200_000
"""The maximum number of events in the log; the oldest are removed first."""

EXPIRE_S = 60.0
BATCH = 100
MOST_TEXT = 2_000
MOST_DETAILS = 8_000
_LOT_FIELDS = ("lot", "step")


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of the log.

    - at: seconds since 1970.
    - kind: the name of the event's class, like `ArcLotComplete`.
    - about: what the event is about: an arc, a source, a view group or a node.
    - lot: the lot or the step, if the event is about one.
    - details: the fields of the event, as JSON.
    """

    at: float
    kind: str
    severity: Severity
    about: str
    text: str
    pipeline: str = ""
    node: str = ""
    lot: str = ""
    details: str = ""


class LogRow(msgspec.Struct, frozen=True):
    """An event with its key, which is also the cursor for reading on."""

    key: bytes
    event: LoggedEvent


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to read; an empty field matches every event.

    - severity: this severity or a worse one.
    - about, kind, lot, pipeline: exactly this.
    - text: a part of the text.
    """

    severity: Severity | None = None
    about: str = ""
    kind: str = ""
    lot: str = ""
    pipeline: str = ""
    text: str = ""

    def matches(self, event: LoggedEvent) -> bool:
        return (
            (self.severity is None or RANK[event.severity] >= RANK[self.severity])
            and self.about in ("", event.about)
            and self.kind in ("", event.kind)
            and self.lot in ("", event.lot)
            and self.pipeline in ("", event.pipeline)
            and self.text.lower() in event.text.lower()
        )


RANK = {severity: number for number, severity in enumerate(Severity)}
"""Severities from least to most important."""

_decoder = msgspec.msgpack.Decoder(LoggedEvent)


def logged(event: Event, at: float, pipeline: str, node: str) -> LoggedEvent | None:
    """Return the row of an event; None if it has no description for users."""
    line = line_of(event)
    if line is None:
        return None
    fields = msgspec.to_builtins(event)
    kind = fields.pop("type", type(event).__name__)
    lot = next((str(fields[name]) for name in _LOT_FIELDS if fields.get(name)), "")
    details = redact_text(msgspec.json.encode(fields).decode())
    return LoggedEvent(
        at=at,
        kind=kind,
        severity=line.severity,
        about=line.about,
        text=redact_text(line.text)[:MOST_TEXT],
        pipeline=pipeline,
        node=node,
        lot=lot,
        details=details if len(details) <= MOST_DETAILS else "",
    )


def append(tx: Tx, keys: ObservationKeys, events: list[LoggedEvent]) -> None:
    """Add events to the log."""
    for event in events:
        tx.set_versioned(keys.log.prefix, msgspec.msgpack.encode(event))
    tx.add(keys.log_count, len(events))


def read(tx: Tx, keys: ObservationKeys, after: bytes = b"", limit: int = 500) -> list[LogRow]:
    """Return events after a cursor, oldest first."""
    lo, hi = keys.log.all()
    return _rows(tx.range(after + b"\x00" if after else lo, hi, limit=limit, snapshot=True))


def newest(tx: Tx, keys: ObservationKeys, before: bytes = b"", limit: int = 500) -> list[LogRow]:
    """Return events before a cursor, newest first."""
    lo, hi = keys.log.all()
    return _rows(tx.range(lo, before or hi, limit=limit, reverse=True, snapshot=True))


def _rows(rows: list[Row]) -> list[LogRow]:
    return [LogRow(row.key, _decoder.decode(row.value)) for row in rows]


def search(
    store: Store,
    keys: ObservationKeys,
    wanted: EventFilter,
    *,
    before: bytes = b"",
    limit: int = 100,
    most_read: int = 5_000,
    page: int = 500,
) -> tuple[list[LogRow], bytes]:
    """Return matching events, newest first, and the cursor for older ones; the cursor is empty at the end.

    At most `most_read` events are read, so a page may be short although older events match.
    """
    matching: list[LogRow] = []
    for _ in range(0, most_read, page):
        rows = store.run(partial(newest, keys=keys, before=before, limit=page))
        for row in rows:
            if wanted.matches(row.event):
                matching.append(row)
                if len(matching) == limit:
                    return matching, row.key
        if len(rows) < page:
            return matching, b""
        before = rows[-1].key
    return matching, before


def expire(tx: Tx, keys: ObservationKeys, until: float, most: int = MOST_EVENTS, limit: int = 500) -> int:
    """Remove up to `limit` of the oldest events: those before a time, and those above the maximum number."""
    excess = read_counter(tx.get(keys.log_count)) - most
    old = []
    # Not a snapshot: two runners that remove the same events must conflict, or both would count them.
    for number, row in enumerate(_rows(tx.range(*keys.log.all(), limit=limit))):
        if number >= excess and row.event.at >= until:
            break
        old.append(row.key)
    for key in old:
        tx.clear(key, quiet=True)
    if old:
        tx.add(keys.log_count, -len(old))
    return len(old)


class EventLog:
    """Writes events to the log from `start` until `close`. Any thread may pass events to it.

    Args:
        store: the store of the cluster.
        keys: the keys of the log.
        pipeline: the pipeline that the events belong to.
        node: the node that emits them.
        keep_s: how long events are kept.
        clock: the source of time.
    """

    def __init__(
        self,
        store: Store,
        keys: ObservationKeys,
        *,
        pipeline: str,
        node: str,
        keep_s: float = KEEP_S,
        clock: Clock = SYSTEM,
    ) -> None:
        self._store = store
        self._keys = keys
        self._pipeline = pipeline
        self._node = node
        self._keep_s = keep_s
        self._clock = clock
        self._expire_at = 0.0
        self._waiting = WaitingEvents("tidemill-event-log", BATCH, self._write, clock, self._expire_in_time)

    def __call__(self, event: Event) -> None:
        """Take an event; another thread writes it soon."""
        row = logged(event, self._clock.wall(), self._pipeline, self._node)
        if row is not None:
            self._waiting.add([row], soon=row.severity is Severity.ERROR)

    def __enter__(self) -> "EventLog":
        self._waiting.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write the waiting events, and end."""
        self._waiting.close()

    def flush(self) -> bool:
        """Write the waiting events; return False if the store did not take them."""
        return self._waiting.flush()

    def expire(self) -> int:
        """Remove events that are too old, or too many; return how many."""
        until = self._clock.wall() - self._keep_s
        removed = 0
        while count := self._store.run(partial(expire, keys=self._keys, until=until)):
            removed += count
        return removed

    def _write(self, batch: list[LoggedEvent], _waiting: int) -> bool:
        try:
            self._store.run(partial(append, keys=self._keys, events=batch))
        except StoreError:
            return False
        return True

    def _expire_in_time(self) -> None:
        if self._clock.monotonic() >= self._expire_at:
            self._expire_at = self._clock.monotonic() + EXPIRE_S
            with suppress(StoreError):
                self.expire()


def all_of(*sinks: Emit) -> Emit:
    """Return a receiver that passes each event to all of these receivers."""

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit
