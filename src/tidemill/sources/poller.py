"""Asking a web address for what is new, as the one node that holds its lease (CLU-20).

What was taken is known by a mark, which moves in the transaction of the lot: the ETag and the content of the
last answer, or how many bytes of it were taken. An answer that cannot be trusted moves nothing: it is told,
and asked for again.
"""

import hashlib
import json
import re
from typing import Any

import msgspec

from tidemill.clock import Clock
from tidemill.errors import MarkGone, PollRefused, SourceUnavailable, TidemillError
from tidemill.events import Emit, ignore
from tidemill.sources import exchange
from tidemill.sources.drawing import Drawer, Drawn, Fence, Move
from tidemill.sources.events import MarkSkipped
from tidemill.sources.exchange import Answer, Limits
from tidemill.sources.polling import PollSpec
from tidemill.sources.records import Convert, Record

MARK = "poll"
_LINES = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines"}
)
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """The mark: what the last answer was known by, or how many bytes of it were taken."""

    etag: str = ""
    modified: str = ""
    digest: str = ""
    offset: int = 0


class Poller:
    """Asks once at a time.

    Args:
        spec: what is asked for.
        drawer: publishes what is new.
        convert: makes a table of dictionaries.
    """

    def __init__(
        self, spec: PollSpec, drawer: Drawer, convert: Convert, *, clock: Clock, emit: Emit = ignore
    ) -> None:
        self.spec = spec
        self._drawer = drawer
        self._convert = convert
        self._clock = clock
        self._emit = emit

    def poll(self, fence: Fence) -> Drawn:
        """Ask, and publish what is new, under the lease that `fence` stands for."""
        try:
            drawn = self._polled(fence)
        except TidemillError as error:
            self._drawer.tell({MARK: error.message})
            raise
        self._drawer.tell({MARK: ""})
        return drawn

    def _polled(self, fence: Fence) -> Drawn:
        (raw,) = self._drawer.marks([MARK])
        taken = Taken() if raw is None else msgspec.msgpack.decode(raw, type=Taken)
        answer = self._ask(taken)
        if self.spec.follow == "lines":
            records, mark = self._added(answer, taken)
        else:
            records, mark = self._version(answer, taken)
        if mark == taken:
            return Drawn("", 0, 0)
        sifted = self._drawer.sift(records, self._convert)
        return self._drawer.publish(sifted, [Move(MARK, raw, msgspec.msgpack.encode(mark))], fence)

    def _ask(self, taken: Taken) -> Answer:
        spec = self.spec
        headers = {"Accept": "application/json, application/x-ndjson", **spec.headers}
        if spec.follow == "lines":
            headers["Accept-Encoding"] = "identity"
            if taken.offset:
                headers["Range"] = f"bytes={taken.offset}-"
        elif taken.etag:
            headers["If-None-Match"] = taken.etag
        elif taken.modified:
            headers["If-Modified-Since"] = taken.modified
        answer = exchange.get(spec.url, headers, Limits(spec.timeout_s, spec.body_bytes), self._clock)
        if answer.status >= 500 or answer.status in (408, 425, 429):
            raise SourceUnavailable(
                f"{spec.shown} answers {answer.status}", hint="it is asked again by itself"
            )
        if answer.status not in (200, 206, 304, 416):
            raise PollRefused(f"{spec.shown} answers {answer.status}")
        return answer

    # --- versions

    def _version(self, answer: Answer, taken: Taken) -> tuple[list[Record], Taken]:
        if answer.status == 304:
            return [], taken
        if answer.status != 200:
            raise PollRefused(
                f"{self.spec.shown} answers {answer.status}, and nothing of the kind was asked for"
            )
        digest = hashlib.sha256(answer.body).hexdigest()[:32]
        mark = Taken(
            etag=answer.headers.get("etag", "")[:500],
            modified=answer.headers.get("last-modified", "")[:100],
            digest=digest,
        )
        if digest == taken.digest:
            return [], mark
        if self._format(answer) == "lines":
            return self._lines(answer.body, 0), mark
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise PollRefused(f"{self.spec.shown}: the body is no JSON: {error}"[:500]) from None
        items: list[Any] = found if isinstance(found, list) else [found]
        texts = [json.dumps(one, ensure_ascii=False).encode() for one in items]
        return [Record(self.spec.shown, number, text) for number, text in enumerate(texts, 1)], mark

    # --- lines

    def _added(self, answer: Answer, taken: Taken) -> tuple[list[Record], Taken]:
        at = taken.offset
        told = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if answer.status == 416:
            if told is not None and told[3] == str(at):
                return [], taken
            return self._gone(at, told[3] if told is not None else "fewer")
        if answer.status == 304:
            return [], taken
        self._format(answer)
        body = answer.body
        if answer.status == 206:
            if told is None or told[1] != str(at) or int(told[2]) - at + 1 != len(body):
                raise PollRefused(f"{self.spec.shown} answers with other bytes than those from {at:,} on")
        elif len(body) < at:
            return self._gone(at, f"{len(body):,}")
        else:  # it knows no ranges
            body = body[at:]
        whole = body[: body.rfind(b"\n") + 1]  # what follows is still being written
        return self._lines(whole, at), Taken(offset=at + len(whole))

    def _gone(self, at: int, there: str) -> tuple[list[Record], Taken]:
        if self.spec.on_gone == "fail":
            raise MarkGone(f"{self.spec.shown} had {at:,} bytes, and now has {there}")
        self._emit(MarkSkipped(source=self._drawer.source, mark=MARK, before=str(at), after="0"))
        return [], Taken()

    def _lines(self, body: bytes, at: int) -> list[Record]:
        """The line of a record is its place in bytes where lines are followed: their number is unknown."""
        records, place = [], at
        for number, line in enumerate(body.split(b"\n"), 1):
            if line.strip():
                records.append(
                    Record(self.spec.shown, place if self.spec.follow == "lines" else number, line)
                )
            place += len(line) + 1
        return records

    def _format(self, answer: Answer) -> str:
        """What the body is, as its header says, unless we were told."""
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.spec.format:
            return self.spec.format
        if kind in _LINES:
            return "lines"
        if self.spec.follow == "versions" and (kind == "application/json" or kind.endswith("+json")):
            return "json"
        wanted = "'lines'" if self.spec.follow == "lines" else "'json' or 'lines'"
        raise PollRefused(
            f"{self.spec.shown} answers with {kind or 'something'!r:.60}",
            hint=f"if it is all the same: format={wanted}",
        )
