"""Write events as JSON lines, for log collectors: one object per line, with time, severity and fields."""

import threading
from datetime import UTC, datetime
from typing import IO

import msgspec

from tidemill.clock import SYSTEM, Clock
from tidemill.events import Event
from tidemill.obs.lines import line_of
from tidemill.store.secrets import redact_text


class JsonLog:
    """Writes each event as one JSON object. Any thread may pass events to it.

    >>> import sys
    >>> from tidemill.cluster.events import NodeLeft
    >>> JsonLog(sys.stdout, pipeline="shop")(NodeLeft(node="n1"))  # doctest: +ELLIPSIS
    {"at":"...","pipeline":"shop","event":"NodeLeft","severity":"detail","node":"n1"}

    Args:
        file: where to write; each line is flushed.
        pipeline: the pipeline that the events belong to.
        clock: the source of time.
    """

    def __init__(self, file: IO[str], *, pipeline: str, clock: Clock = SYSTEM) -> None:
        self._file = file
        self._pipeline = pipeline
        self._clock = clock
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        fields = msgspec.to_builtins(event)
        kind = fields.pop("type", type(event).__name__)
        line = line_of(event)
        head: dict[str, object] = {
            "at": datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="milliseconds"),
            "pipeline": self._pipeline,
            "event": kind,
            "severity": "detail" if line is None else line.severity.value,
        }
        if line is not None:
            head |= {"about": line.about, "message": line.text}
        body = redact_text(msgspec.json.encode(head | {**fields, **head}).decode())
        with self._lock:
            self._file.write(body + "\n")
            self._file.flush()
