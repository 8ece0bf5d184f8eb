"""The poller of a web address: requests the address, and publishes new records (CLU-20).

A checkpoint records the ETag and the digest of the last response, or how many of its bytes were read. The
transaction that publishes the lot also advances the checkpoint. If a response cannot be trusted, the
checkpoint does not advance: the poller reports the response, and requests the address again later.
"""

import hashlib
import re
from typing import TYPE_CHECKING

import msgspec

from tidemill.errors import CheckpointGone, PollRefused, SourceUnavailable, TidemillError
from tidemill.sources import http_client
from tidemill.sources.batch_publisher import BatchPublisher, CheckpointMove, Fence, PublishedBatch
from tidemill.sources.events import CheckpointSkipped
from tidemill.sources.http_client import HttpLimits, HttpResponse
from tidemill.sources.json_objects import split_items
from tidemill.sources.records import SourceRecord

if TYPE_CHECKING:
    from tidemill.sources.http_poll import PollSource

CHECKPOINT = "poll"
_LINES = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines"}
)
_BAD_STATUS = "check the address and headers= of the source"
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class PollCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """The identity of the last response, or how many of its bytes were read."""

    etag: str = ""
    modified: str = ""
    digest: str = ""
    offset: int = 0


class HttpPoller:
    """Requests a web address, one request at a time.

    Args:
        source: the address, and how to read its response.
        publisher: publishes new records.
    """

    def __init__(self, source: "PollSource", publisher: BatchPublisher) -> None:
        self.source = source
        self._publisher = publisher

    def poll(self, fence: Fence) -> PublishedBatch:
        """Request the address, and publish new records under the lease that `fence` checks."""
        try:
            batch = self._poll(fence)
        except TidemillError as error:
            self._publisher.report({CHECKPOINT: error.message})
            raise
        self._publisher.report({CHECKPOINT: ""})
        return batch

    def _poll(self, fence: Fence) -> PublishedBatch:
        (raw,) = self._publisher.checkpoints([CHECKPOINT])
        last = PollCheckpoint() if raw is None else msgspec.msgpack.decode(raw, type=PollCheckpoint)
        response = self._request(last)
        if self.source.follow == "lines":
            records, checkpoint = self._new_lines(response, last)
        else:
            records, checkpoint = self._new_version(response, last)
        if checkpoint == last:
            return PublishedBatch()
        move = CheckpointMove(CHECKPOINT, raw, msgspec.msgpack.encode(checkpoint))
        return self._publisher.publish(self._publisher.parse(records), [move], fence)

    def _request(self, last: PollCheckpoint) -> HttpResponse:
        source = self.source
        headers = {"Accept": "application/json, application/x-ndjson", **source.headers}
        if source.follow == "lines":
            headers["Accept-Encoding"] = "identity"
            if last.offset:
                headers["Range"] = f"bytes={last.offset}-"
        elif last.etag:
            headers["If-None-Match"] = last.etag
        elif last.modified:
            headers["If-Modified-Since"] = last.modified
        limits = HttpLimits(source.timeout_s, source.body_bytes, source.redirect_origins)
        response = http_client.get(source.url, headers, limits, self._publisher.scope.clock)
        if response.status >= 500 or response.status in (408, 425, 429):
            raise SourceUnavailable(
                f"{source.description} responded with status {response.status}",
                hint="no action is needed: the runner repeats the request",
            )
        if response.status not in (200, 206, 304, 416):
            raise PollRefused(
                f"{source.description} responded with status {response.status}", hint=_BAD_STATUS
            )
        return response

    # --- versions

    def _new_version(
        self, response: HttpResponse, last: PollCheckpoint
    ) -> tuple[list[SourceRecord], PollCheckpoint]:
        if response.status == 304:
            return [], last
        if response.status != 200:
            raise PollRefused(
                f"{self.source.description} responded with status {response.status}, not 200",
                hint=_BAD_STATUS,
            )
        digest = hashlib.sha256(response.body).hexdigest()[:32]
        checkpoint = PollCheckpoint(
            etag=response.headers.get("etag", "")[:500],
            modified=response.headers.get("last-modified", "")[:100],
            digest=digest,
        )
        if digest == last.digest:
            return [], checkpoint
        if self._format(response) == "lines":
            return self._lines(response.body, 0), checkpoint
        try:
            texts = split_items(response.body)
        except ValueError as error:
            raise PollRefused(f"{self.source.description}: the body is not JSON: {error}"[:500]) from None
        file = self.source.description
        return [SourceRecord(file, number, text) for number, text in enumerate(texts, 1)], checkpoint

    # --- lines

    def _new_lines(
        self, response: HttpResponse, last: PollCheckpoint
    ) -> tuple[list[SourceRecord], PollCheckpoint]:
        offset = last.offset
        served = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if response.status == 416:
            if served is not None and served[3] == str(offset):
                return [], last
            return self._gone(offset, int(served[3]) if served is not None and served[3] != "*" else None)
        if response.status == 304:
            return [], last
        self._format(response)
        body = response.body
        if response.status == 206:
            if served is None or served[1] != str(offset) or int(served[2]) - offset + 1 != len(body):
                raise PollRefused(
                    f"{self.source.description} did not return the requested byte range, which starts at"
                    f" {offset:,}"
                )
        elif len(body) < offset:
            return self._gone(offset, len(body))
        else:  # the server does not support ranges
            body = body[offset:]
        complete = body[: body.rfind(b"\n") + 1]  # the rest is still being written
        return self._lines(complete, offset), PollCheckpoint(offset=offset + len(complete))

    def _gone(self, offset: int, size: int | None) -> tuple[list[SourceRecord], PollCheckpoint]:
        if self.source.on_gone == "fail":
            now = "it is shorter" if size is None else f"it has only {size:,} bytes"
            raise CheckpointGone(
                f"{offset:,} bytes of {self.source.description} were already read, but now {now}"
            )
        self._publisher.scope.emit(
            CheckpointSkipped(
                source=self._publisher.source, checkpoint=CHECKPOINT, before=str(offset), after="0"
            )
        )
        return [], PollCheckpoint()

    def _lines(self, body: bytes, first: int) -> list[SourceRecord]:
        """Split a body into lines. With `follow="lines"`, line numbers are unknown, so use byte offsets."""
        records, offset = [], first
        for number, line in enumerate(body.split(b"\n"), 1):
            if line.strip():
                place = offset if self.source.follow == "lines" else number
                records.append(SourceRecord(self.source.description, place, line))
            offset += len(line) + 1
        return records

    def _format(self, response: HttpResponse) -> str:
        """Return the format of a body: the declared format, or the one that Content-Type names."""
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.source.format:
            return self.source.format
        if content_type in _LINES:
            return "lines"
        if self.source.follow == "versions" and (
            content_type == "application/json" or content_type.endswith("+json")
        ):
            return "json"
        choices = "'lines'" if self.source.follow == "lines" else "'json' or 'lines'"
        raise PollRefused(
            f"{self.source.description} responded with an unsupported content type:"
            f" {content_type or 'none'!r:.60}",
            hint=f"if the content is correct, declare format={choices}",
        )
