"""HTTP responses to a poll: records are stored or quarantined, or the response is refused as a whole."""

import functools
import gzip
import random
import socket
import threading
from typing import Any

from tests.fuzz.campaign import check_refusal
from tests.fuzz.mutation import damaged, json_text, mutated_text, text
from tests.fuzz.targets.json_input import RecordStage, declaration, row
from tidemill.errors import TidemillError
from tidemill.testing.threads import STUCK_S

CASES = 80


def generate(rng: random.Random) -> dict[str, Any]:
    case = declaration(rng)
    case["follow"] = rng.choice(("versions", "lines"))
    case["format"] = rng.choice((None, None, "lines", "json" if case["follow"] == "versions" else "lines"))
    case["on_gone"] = rng.choice(("fail", "restart"))
    case["responses"] = [_response(rng, case) for _ in range(rng.choice((1, 2, 3)))]
    return case


def _response(rng: random.Random, case: dict[str, Any]) -> bytes:
    items = [json_text(rng, row(rng, case["columns"])) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    lines = case["follow"] == "lines" or case["format"] == "lines" or rng.random() < 0.4
    body = b"\n".join([*items, b""]) if lines else b"[" + b",".join(items) + b"]"
    status = rng.choice((200, 200, 200, 200, 200, 206, 304, 416, 301, 404, 500, 429, 204, 100, 99, 999))
    kind = "application/x-ndjson" if lines else "application/json"
    headers = {"Content-Type": kind, "Content-Length": str(len(body))}
    if rng.random() < 0.2:
        body = gzip.compress(body)
        headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
    if rng.random() < 0.2:
        chunks = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
        body, headers = (
            chunks if body else b"0\r\n\r\n",
            {"Content-Type": kind, "Transfer-Encoding": "chunked"},
        )
    if status in (206, 416):
        ranges = (
            f"bytes 0-{len(body) - 1}/{len(body)}",
            f"bytes */{len(body)}",
            "bytes */*",
            "bytes 5-2/9",
            text(rng),
        )
        headers["Content-Range"] = rng.choice(ranges)
    if status in range(300, 400) or rng.random() < 0.05:
        headers["Location"] = rng.choice(
            ("/other", "http://127.0.0.1:1/x", "//x", "file:///etc/passwd", "http://[", text(rng))
        )
    for _ in range(rng.choice((0, 0, 1, 2))):
        name = rng.choice([*headers, "ETag", "Last-Modified", "Content-Encoding", text(rng)])
        headers[name] = rng.choice((text(rng), '"a"', "gzip", "deflate", "-1", "0", "99999999999999999999"))
    head = "\r\n".join([f"HTTP/1.1 {status} X", *(f"{name}: {given}" for name, given in headers.items())])
    if rng.random() < 0.1:
        head = mutated_text(rng, head)
    response = head.encode("utf-8", "replace") + b"\r\n\r\n" + body
    return damaged(rng, response) if rng.random() < 0.15 else response


class _Web(threading.Thread):
    """A server that sends the bytes it was given, whatever the request."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.response = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/orders"

    def run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                try:
                    request = b""
                    while b"\r\n\r\n" not in request and (piece := connection.recv(65536)):
                        request += piece
                    connection.sendall(self.response)
                except OSError:
                    pass


@functools.cache
def _web() -> _Web:
    web = _Web()
    web.start()
    return web


def check(case: dict[str, Any]) -> None:
    web, stage = _web(), RecordStage(case)
    options = {name: case[name] for name in ("follow", "format", "on_gone")}
    poller = stage.poller(web.url, publisher=stage.publisher(), timeout_s=STUCK_S, **options)
    count = 0
    for response in case["responses"]:
        web.response = response
        before = stage.stored(stage.dataset.id) + stage.stored(stage.bad_id)
        try:
            batch = poller.poll(stage.lease.fence)
        except TidemillError as error:
            check_refusal(error)
            assert stage.stored(stage.dataset.id) + stage.stored(stage.bad_id) == before
            continue
        count += batch.rows + batch.bad
        assert stage.stored(stage.dataset.id) + stage.stored(stage.bad_id) == count
    stage.check_columns()
