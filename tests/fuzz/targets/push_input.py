"""HTTP requests to a push source: each gets a documented answer; rows are stored only if it is 200."""

import functools
import gzip
import http.client
import io
import json
import random
import socket
from struct import pack
from typing import Any

import pyarrow as pa

from tests.fuzz.mutation import damaged, json_text, nested, text
from tests.fuzz.targets.json_input import RecordStage, declaration, row
from tests.unit.push_stage import TOKEN
from tidemill.sources.push_server import PushEndpoint, PushServer
from tidemill.sources.row_converters import converter
from tidemill.testing.threads import STUCK_S

CASES = 80
STATUSES = frozenset({200, 400, 401, 404, 409, 411, 413, 415, 422, 429})
"""What a request may get. 500 and 503 are faults here: the store always works."""
_ARROW = "application/vnd.apache.arrow.stream"
_TYPES = (
    "application/x-ndjson",
    "application/json",
    _ARROW,
    "application/jsonl; charset=utf-8",
    "text/csv",
    "",
)


def generate(rng: random.Random) -> dict[str, Any]:
    case = declaration(rng)
    kind = rng.choice((*_TYPES[:3], *_TYPES[:3], rng.choice(_TYPES)))
    body = _arrow(rng) if kind == _ARROW else _json(rng, kind, case["columns"])
    headers = {
        "Host": "x",
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": kind,
        "Content-Length": str(len(body)),
    }
    if rng.random() < 0.15:
        body = gzip.compress(body)
        headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
        if rng.random() < 0.3:
            body = damaged(rng, body)
            headers["Content-Length"] = str(len(body))
    if rng.random() < 0.3:
        headers |= {
            "Tidemill-Producer": rng.choice(("till-7", text(rng))),
            "Tidemill-Seq": str(rng.randrange(3)),
        }
    for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 2))):
        name = rng.choice([*headers, "Transfer-Encoding", "Expect", "Connection", "X-Other", text(rng)])
        headers[name] = rng.choice(
            (text(rng), "chunked", "100-continue", "-1", "9" * 18, "8388609", "close", "gzip")
        )
    path = rng.choice(("/orders",) * 20 + ("/orders/", "/orders?x=1", "/%6frders", f"/{text(rng)}", "*"))
    method = rng.choice(("POST",) * 30 + ("GET", "PUT", "post", text(rng)))
    case |= {"head": [f"{method} {path} HTTP/1.1", *(f"{name}: {given}" for name, given in headers.items())]}
    case |= {"body": body, "raw": None}
    if rng.random() < 0.1:
        case["raw"] = damaged(rng, _request(case))
    return case


def _json(rng: random.Random, kind: str, columns: dict[str, str]) -> bytes:
    rows = [row(rng, columns) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    if rng.random() < 0.05:
        rows.append(rng.choice((nested(rng), {"id": nested(rng)}, {f"n{n}": 1 for n in range(5000)})))
    if kind == "application/json":
        return json_text(rng, rows if len(rows) != 1 or rng.random() < 0.5 else rows[0])
    return b"\n".join(json_text(rng, each) for each in rows)


def _arrow(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        small, large = 123_456, rng.choice((123_456, 10**8, 10**9, 2**40, 2**62))  # many rows in a few bytes
        return _stream(rng, pa.table({"id": pa.nulls(small)})).replace(pack("<q", small), pack("<q", large))
    count = rng.choice((0, 1, 2, 3, 100))
    columns: dict[str, pa.Array] = {}
    if rng.random() < 0.9:
        kinds = (pa.int64(), pa.int64(), pa.int32(), pa.uint64(), pa.float64(), pa.string(), pa.null())
        kind = rng.choice(kinds)
        columns["id"] = (
            pa.nulls(count) if kind == pa.null() else pa.array(range(count), pa.int64()).cast(kind)
        )
    for name in rng.sample(("c0", "c1", "extra", "a.b", "", "ID", "_x"), rng.randrange(4)):
        columns[name] = _column(rng, count)
    arrays = list(columns.values())
    table = pa.table(arrays, names=list(columns)) if arrays else pa.table({})
    if arrays and rng.random() < 0.05:
        table = table.append_column(table.field(0), table.column(0))  # a name twice
    data = _stream(rng, table)
    return damaged(rng, data) if rng.random() < 0.6 else data


def _stream(rng: random.Random, table: pa.Table) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=rng.choice((None, None, "zstd", "lz4")))
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _column(rng: random.Random, count: int) -> pa.Array:
    days = pa.array([rng.choice((0, -(10**6), 10**7, 2**31 - 1, None)) for _ in range(count)], pa.int32())
    instants = pa.array([rng.choice((0, 2**62, -(2**62), None)) for _ in range(count)], pa.int64())
    words = pa.array(
        [rng.choice(("a", "", "2024-01-01", "12:30:00", None)) for _ in range(count)], pa.string()
    )
    return rng.choice(
        (
            lambda: pa.nulls(count),
            lambda: days.cast(pa.date32()),
            lambda: instants.cast(
                pa.timestamp(rng.choice(("s", "us", "ns")), rng.choice((None, "UTC", "Europe/Rome")))
            ),
            lambda: instants.cast(pa.duration("us")),
            lambda: words,
            lambda: words.cast(pa.large_string()),
            lambda: words.cast(pa.string_view()),
            words.dictionary_encode,
            lambda: pa.array([rng.choice((b"\xff", b"", None)) for _ in range(count)], pa.binary()),
            lambda: pa.array([rng.choice(([1], [], None)) for _ in range(count)], pa.list_(pa.int32())),
            lambda: pa.array(
                [rng.choice(([("a", 1)], [], None)) for _ in range(count)], pa.map_(pa.string(), pa.int32())
            ),
            lambda: pa.array([{"a": 1}] * count, pa.struct([("a", pa.int64())])),
            lambda: pa.array([{}] * count, pa.struct([])),
            lambda: pa.array([1.5] * count, pa.float16()) if count else pa.nulls(0),
            lambda: (
                pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), pa.array([7]))
                if count
                else pa.nulls(0)
            ),
            lambda: pa.array([None] * count, pa.decimal256(70, 3)),
            lambda: pa.array([None] * count, pa.month_day_nano_interval()),
        )
    )()


def _request(case: dict[str, Any]) -> bytes:
    head = "\r\n".join(line.replace("\r", "").replace("\n", "") for line in case["head"])
    return head.encode("utf-8", "replace") + b"\r\n\r\n" + case["body"]


@functools.cache
def _server() -> PushServer:
    server = PushServer({}, token=TOKEN, answer_s=STUCK_S, idle_s=5.0)
    server.start()
    return server


def check(case: dict[str, Any]) -> None:
    server, stage = _server(), RecordStage(case)
    receiver = stage.receiver(linger_s=0.0)
    server.endpoints = {"orders": PushEndpoint(receiver, converter(stage.dataset))}
    request = case["raw"] if case["raw"] is not None else _request(case)
    answer = _send(server.url, request)
    status, rows = _status(answer, case)
    stored = stage.stored(stage.dataset.id)
    assert stored == rows, f"{stored} rows are stored, but the answer {status} says {rows}"
    good = b'{"id": 1}'
    head = (
        f"POST /orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json"
    )
    again = _send(server.url, f"{head}\r\nContent-Length: {len(good)}\r\n\r\n".encode() + good)
    assert again.startswith(b"HTTP/1.1 200 "), f"the next request gets {again[:200]!r}"
    receiver.close()
    assert stage.stored(stage.dataset.id) == rows + 1
    stage.check_columns()


def _send(url: str, request: bytes) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=STUCK_S) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except (BrokenPipeError, ConnectionResetError):
            pass
    return answer


def _status(answer: bytes, case: dict[str, Any]) -> tuple[int, int]:
    """Return the status of the answer and the rows that it confirms; raise if it is not a documented one."""
    plain = case["raw"] is None and case["head"][0].startswith(("POST /orders HTTP/1.1", "POST /orders?"))
    if not answer:
        assert not plain, "the sender gets no answer"
        return 0, 0
    response = http.client.HTTPResponse(_Answer(answer))
    try:
        response.begin()
        body = response.read()
    except http.client.HTTPException:
        assert not plain, f"the answer is not HTTP: {answer[:200]!r}"
        return 0, 0
    content = json.loads(body)
    assert response.status in STATUSES, f"{response.status} {content}"
    if response.status != 200:
        assert all(content["error"][name] for name in ("code", "message", "hint")), content
        return response.status, 0
    return 200, content.get("rows", 0)


class _Answer:
    """A received answer, as `http.client` reads it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: Any) -> io.BytesIO:
        return io.BytesIO(self._data)
