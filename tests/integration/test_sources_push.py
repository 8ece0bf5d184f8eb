"""HTTP push over loopback: every kind of answer, pressure, and a receiver that moves in the middle."""

import contextlib
import datetime as dt
import gzip
import http.client
import io
import json
import select
import socket
import struct
import threading
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.push_stage import SCHEMA, SOURCE, TOKEN, PushStage, address, lines, post, table
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.cluster.keeper import HeldLease
from tidemill.errors import BadSource
from tidemill.lots.datasets import Drift
from tidemill.sources.http_push import PushHost
from tidemill.sources.push_server import PushEndpoint, PushServer
from tidemill.sources.row_converters import converter
from tidemill.testing.threads import STUCK_S, together


@pytest.fixture
def stage() -> PushStage:
    return PushStage()


@pytest.fixture
def url(stage: PushStage):  # type: ignore[no-untyped-def]
    server = stage.server(body_bytes=10_000)
    server.start()
    yield server.url
    server.close()


def arrow(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_table(rows)
    return sink.getvalue()


@pytest.mark.rule("LOT-35")
def test_rows_of_every_kind_of_body_are_in_the_table_when_they_are_answered(
    stage: PushStage, url: str
) -> None:
    bodies = [
        (lines(1, 2), "application/x-ndjson", {}),
        (b'[{"id": 3}, {"id": 4}]', "application/json; charset=utf-8", {}),
        (b'{"id": 5}', "application/json", {}),
        (arrow(table(6)), "application/vnd.apache.arrow.stream", {}),
        (gzip.compress(lines(7)), "application/x-ndjson", {"Content_Encoding": "gzip"}),
    ]
    for position, (body, kind, headers) in enumerate(bodies, 1):
        status, answer = post(url, body, kind, **headers)
        assert (status, answer["position"]) == (200, position)
        assert len(stage.ids()) >= position
    assert stage.ids() == [1, 2, 3, 4, 5, 6, 7]


def test_what_cannot_be_taken_is_answered_with_the_reason(stage: PushStage, url: str) -> None:
    bomb = gzip.compress(b" " * 1_000_000)
    cases = [
        (401, post(url, lines(1), token="another-token-of-length")),
        (401, post(url, lines(1), token="")),
        (404, post(url, lines(1), path="/nothing")),
        (415, post(url, lines(1), "text/plain")),
        (415, post(url, lines(1), Content_Encoding="br")),
        (400, post(url, b'{"id": 1', "application/json")),
        (400, post(url, b"[1, 2]", "application/json")),
        (400, post(url, b"[" * 9000, "application/json")),
        (400, post(url, b'{"id": 1}\nnonsense\n')),
        (400, post(url, b"\xff\xfe", "application/json")),
        (400, post(url, lines(1), "application/vnd.apache.arrow.stream")),
        (400, post(url, lines(1), Content_Encoding="gzip")),
        (400, post(url, lines(1), Tidemill_Seq="1")),
        (400, post(url, lines(1), Tidemill_Producer="p", Tidemill_Seq="-1")),
        (413, post(url, b" " * 10_001)),
        (413, post(url, bomb, Content_Encoding="gzip")),
        (422, post(url, b'{"id": "one"}')),
        (422, post(url, b'{"other": 1}')),
    ]
    for place, (expected, (status, answer)) in enumerate(cases):
        assert status == expected, (place, answer)
        assert answer["error"]["code"]
        assert answer["error"]["message"]
    assert stage.ids() == []
    assert TOKEN not in json.dumps([answer for _, (_, answer) in cases])


@pytest.mark.rule("LOT-34")
@pytest.mark.parametrize("drift", list(Drift))
def test_rows_that_cannot_be_stored_are_answered_and_the_next_request_is_stored(drift: Drift) -> None:
    ddl = "id bigint, name string, tags map<string,int>, at time(6)"
    ddl += ", _rescued string" if drift is Drift.RESCUE else ""
    stage = PushStage(schema=ddl, drift=drift)
    receiver = stage.receiver()
    server = PushServer({"orders": PushEndpoint(receiver, converter(stage.dataset))}, token=TOKEN)
    server.start()
    deep = b"[" * 900 + b"]" * 900
    bad = [
        (422, post(server.url, b'{"id": 1, "name": "\\ud800"}')),
        (422, post(server.url, b'{"id": 1, "new": "\\ud800"}')),
        (422, post(server.url, b'{"id": 1, "new": %s}' % deep)),
        (422, post(server.url, b'{"id": 1}', Tidemill_Producer="p" * 3000, Tidemill_Seq="1")),
        (400, post(server.url, broken_arrow(), "application/vnd.apache.arrow.stream")),
    ]
    if drift is not Drift.RESCUE:
        bad.append((422, post(server.url, b'{"id": 1, "tags": [null]}')))
    for place, (expected, (status, answer)) in enumerate(bad):
        assert status == expected, (place, answer)
    assert post(server.url, b'{"id": 2, "tags": {"a": 1}, "at": "12:30:00"}')[0] == 200
    assert [row["at"] for row in stage.rows()] == [dt.time(12, 30)]
    server.close()


def broken_arrow() -> bytes:
    """Return a stream with a text that ends beyond its buffer."""
    stream = arrow(pa.table([pa.array([1]), pa.array(["x" * 77_777])], schema=SCHEMA))
    before, offsets, after = stream.rpartition(struct.pack("<ii", 0, 77_777))
    assert offsets
    return before + struct.pack("<ii", 0, 900_000) + after


def test_an_error_in_the_program_is_answered(stage: PushStage) -> None:
    def broken(_: Any) -> pa.Table:
        raise KeyError("a bug")

    server = PushServer({"orders": PushEndpoint(stage.receiver(), broken)}, token=TOKEN)
    server.start()
    status, answer = post(server.url, lines(1))
    assert (status, answer["error"]["message"]) == (500, "the request could not be processed: KeyError")
    server.close()


def test_a_body_that_is_refused_unread_still_gets_its_answer(url: str) -> None:
    for _ in range(5):
        assert post(url, b" " * 900_000)[0] == 413
        assert post(url, b" " * 900_000, token="another-token-of-length")[0] == 401


def test_a_number_is_taken_once(stage: PushStage, url: str) -> None:
    number = {"Tidemill_Producer": "till 7", "Tidemill_Seq": "41"}
    first = post(url, lines(1), **number)
    assert first[0] == 200
    assert post(url, lines(1), **number) == first
    assert post(url, lines(2), **number)[0] == 409
    assert stage.ids() == [1]


def test_bodies_that_lie_about_their_length_are_not_taken(stage: PushStage, url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")

    def raw(head: str, body: bytes) -> bytes:
        with socket.create_connection((host, int(port)), timeout=STUCK_S) as wire:
            head = f"Authorization: Bearer {TOKEN}\r\n{head}"
            wire.sendall(f"POST /orders HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + body)
            with contextlib.suppress(OSError):  # it may have answered and left already
                wire.shutdown(socket.SHUT_WR)
            return wire.recv(65536)

    kind = "Content-Type: application/x-ndjson"
    assert b" 411 " in raw(kind, lines(1))
    assert b" 400 " in raw(f"{kind}\r\nContent-Length: many", lines(1))
    assert b" 400 " in raw(f"{kind}\r\nContent-Length: {'9' * 5000}", lines(1))
    assert b" 400 " in raw(f"{kind}\r\nContent-Length: 500", lines(1))
    assert b" 411 " in raw(f"{kind}\r\nTransfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n")
    assert stage.ids() == []


def test_health_is_told_to_anybody_and_nothing_else(url: str) -> None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=STUCK_S)
    for path, status in (("/healthz", 200), ("/orders", 404), ("/../etc/passwd", 404)):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
        assert "Python" not in (answer.getheader("Server") or "")
    connection.close()


def test_pressure_is_answered_with_429_and_nothing_is_lost() -> None:
    stage = PushStage()
    receiver = stage.receiver(start=False, waiting_bytes=10)
    server = stage.server(receiver)
    server.start()
    waiting = threading.Thread(target=post, args=(server.url, lines(1)), daemon=True)
    waiting.start()
    while not receiver._waiting_bytes:
        waiting.join(0.01)
    status, answer = post(server.url, lines(2))
    assert (status, answer["error"]["code"]) == (429, "push-busy")
    receiver.start()
    waiting.join(STUCK_S)
    assert post(server.url, lines(2))[0] == 200
    server.close()
    assert stage.ids() == [1, 2]


def test_connections_are_bounded() -> None:
    stage = PushStage()
    server = stage.server(connections=1)
    server.start()
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=STUCK_S) as first:
        first.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in first.recv(65536)
        with socket.create_connection((host, int(port)), timeout=STUCK_S) as second:
            second.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert second.recv(65536) == b""
    server.close()


@pytest.mark.parametrize(
    "beginning",
    [
        b"POST /orders HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"POST /orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n" % TOKEN.encode()
        + b"Content-Length: 1000000\r\n\r\n",
    ],
)
def test_a_sender_that_sends_a_byte_now_and_then_is_disconnected(beginning: bytes) -> None:
    stage = PushStage()
    server = stage.server(connections=1, idle_s=1.0)
    server.start()
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=STUCK_S) as slow:
        slow.sendall(beginning)
        stuck_at = SYSTEM.monotonic() + STUCK_S
        while not select.select([slow], [], [], 0.05)[0]:  # readable: it is closed
            assert SYSTEM.monotonic() < stuck_at, "a slow sender keeps its connection for ever"
            with contextlib.suppress(ConnectionError):
                slow.sendall(b"x")
    assert post(server.url, lines(1))[0] == 200
    server.close()


@pytest.mark.rule("CLU-19")
def test_one_node_receives_and_another_when_it_is_gone() -> None:
    stage = PushStage()
    hosts = []
    for name in ("one", "two"):
        keeper = stage.keeper(name, ttl_s=15)

        def make(held: HeldLease) -> PushServer:
            return stage.server(stage.receiver(held))

        hosts.append(PushHost(SOURCE, stage.scope(stage.node(name)), keeper, make=make))
    first, second = hosts
    assert first.tick()
    assert not second.tick()
    assert stage.store.run(lambda tx: address(tx, stage.keys, SOURCE)) == first.url
    old = first.url
    assert old is not None
    assert post(old, lines(1))[0] == 200
    stage.stage.clock.advance(16)  # the first host's lease runs out, and it does not know
    assert second.tick()
    assert second.url is not None
    assert second.url != old
    assert stage.store.run(lambda tx: address(tx, stage.keys, SOURCE)) == second.url
    assert post(old, lines(2))[0] == 503  # it still receives, but cannot publish
    assert post(second.url, lines(2))[0] == 200
    assert not first.tick()
    assert first.url is None
    second.close()
    assert first.tick()
    first.close()
    assert stage.ids() == [1, 2]


@pytest.mark.rule("LOT-35")
def test_every_answered_row_is_there_once_while_the_receiver_dies_twice() -> None:
    """Senders repeat what was not answered, under its number, to whoever receives at that moment."""
    stage = PushStage()
    place = {"server": stage.server()}
    place["server"].start()
    lock = threading.Lock()

    def again(dead: str) -> None:
        """Another node takes over, once for each death."""
        with lock:
            if place["server"].url == dead:
                server = stage.server()
                server.start()
                place["server"] = server

    def sender(name: str) -> int:
        for seq in range(60):
            identity = int(name) * 1000 + seq
            while True:
                at = place["server"].url
                status, _ = post(at, lines(identity), Tidemill_Producer=name, Tidemill_Seq=str(seq))
                if status == 200:
                    break
                again(at)
        return 60

    with crash.armed("publish.commit.after", visit=9), crash.armed("publish.intent.after", visit=25):
        together(*(lambda name=name: sender(name) for name in ("1", "2", "3")))
    assert stage.ids() == sorted(int(name) * 1000 + seq for name in "123" for seq in range(60))
    place["server"].close()
    stage.stage.check()


def test_a_server_that_would_be_unsafe_is_refused(stage: PushStage) -> None:
    with pytest.raises(BadSource):
        PushServer({}, token="short")
    with pytest.raises(BadSource) as refused:
        PushServer({}, token=TOKEN, host="0.0.0.0")
    assert "TLS" in refused.value.hint
