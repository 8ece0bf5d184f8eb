"""Parse the body of a pushed request: JSON lines, JSON or an Arrow stream, perhaps compressed."""

import gzip
import io
import json
import zlib
from typing import Any, Final

import pyarrow as pa

from tidemill.errors import AppendRefused, PushRefused
from tidemill.sources.arrow_streams import StreamTooLarge, read_stream
from tidemill.sources.json_objects import check_object

BODY_BYTES: Final = 8 << 20
"""The maximum size of a body, unless the source declares another one."""

_ARROW: Final = "application/vnd.apache.arrow.stream"
_LINES: Final = frozenset({"application/x-ndjson", "application/jsonl", "application/json-lines"})


class RequestRefused(Exception):
    """The server refuses a request, and answers it with this error."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint


def parse_rows(body: bytes, content_type: str, most: int = BODY_BYTES) -> Any:
    """Parse the rows of a body according to its content type; they may have at most `most` bytes."""
    content_type = content_type.partition(";")[0].strip().lower()
    try:
        if content_type == _ARROW:
            return read_stream(body, most)
        if content_type in _LINES:
            return [_object(json.loads(line)) for line in body.splitlines() if line.strip()]
        if content_type == "application/json":
            value = json.loads(body)
            return [_object(item) for item in (value if isinstance(value, list) else [value])]
    except AppendRefused as refused:
        raise RequestRefused(422, refused.code, refused.message, refused.hint) from None
    except StreamTooLarge:
        raise RequestRefused(
            413, "too-large", "the table in the body is too large", f"send at most {most:,} bytes of rows"
        ) from None
    except (ValueError, RecursionError, pa.ArrowException, OSError) as error:
        raise RequestRefused(
            400, "bad-body", f"the body is not {content_type}: {error}"[:500], PushRefused.hint
        ) from None
    raise RequestRefused(
        415,
        "bad-type",
        f"the content type {content_type!r:.60} is not supported",
        f"use application/x-ndjson, application/json or {_ARROW}",
    )


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.60} is not a JSON object")  # noqa: TRY004 - the body is bad, not the program
    return check_object(value)


def decompressed(body: bytes, most: int) -> bytes:
    """Decompress a gzip body; it may have at most `most` bytes then."""
    try:
        with gzip.open(io.BytesIO(body)) as file:
            data = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RequestRefused(
            400, "bad-body", f"the body is not gzip: {error}", "send the request again"
        ) from None
    if len(data) > most:
        raise RequestRefused(
            413, "too-large", "the decompressed body is too large", f"send at most {most:,} bytes"
        )
    return data
