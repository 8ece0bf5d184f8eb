"""Polling a web address: a real server that responds correctly, wrongly, slowly or never."""

import gzip
import io
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.push_stage import SCHEMA, SOURCE, PushStage
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.cluster.keeper import HeldLease
from tidemill.crash import Crashed
from tidemill.errors import (
    AppendRefused,
    BadSource,
    CheckFailed,
    CheckpointGone,
    LeaseLost,
    PollRefused,
    SourceUnavailable,
)
from tidemill.lots import datasets
from tidemill.lots.checks import QUARANTINE_SCHEMA, not_null, quarantine_of
from tidemill.lots.datasets import DatasetRow
from tidemill.publish.manifests import Manifests
from tidemill.sources import batch_publisher, http_client
from tidemill.sources.batch_publisher import BatchPublisher
from tidemill.sources.events import CheckpointSkipped
from tidemill.sources.http_client import HttpLimits, HttpResponse
from tidemill.sources.http_poll import http_poll
from tidemill.sources.http_poller import HttpPoller
from tidemill.sources.records import SourceRecord, parse
from tidemill.sources.source import SourceTarget

JSON = "application/json"
NDJSON = "application/x-ndjson"
Reply = Callable[[BaseHTTPRequestHandler], None]


class Web:
    """A server with a response that the test sets."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.reply: Reply = lambda _: None
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                web.asked.append({name.lower(): value for name, value in self.headers.items()})
                web.reply(self)
                self.close_connection = True

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None: ...

        self.server: socketserver.TCPServer = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/orders"

    def says(self, body: Any, kind: str = JSON, status: int = 200, **headers: str) -> None:
        self.reply = reply_of(body, kind, status, **headers)


def reply_of(body: Any, kind: str = JSON, status: int = 200, **headers: str) -> Reply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        standard = {"Content-Type": kind, "Content-Length": str(len(raw))}
        for name, value in {**standard, **{k.replace("_", "-"): v for k, v in headers.items()}}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(raw)

    return reply


@pytest.fixture
def web() -> Iterator[Web]:
    yield from serving()


def serving() -> Iterator[Web]:
    web = Web()
    thread = threading.Thread(target=lambda: web.server.serve_forever(0.01), daemon=True)
    thread.start()
    yield web
    web.server.shutdown()
    web.server.server_close()
    thread.join()


class Stage(PushStage):
    """One dataset, its quarantine, and nodes that poll."""

    def __init__(self, **declared: Any) -> None:
        super().__init__(**declared)
        self.bad_id = quarantine_of(self.dataset.id)
        bad = DatasetRow(name=self.bad_id.name, schema=QUARANTINE_SCHEMA)
        self.store.run(lambda tx: datasets.declare(tx, self.keys.publish.lots, bad))
        self.lease = self.acquire("n0")

    def acquire(self, name: str) -> HeldLease:
        lease = self.keeper(name).acquire(self.keys.fetch_lease(SOURCE))
        assert isinstance(lease, HeldLease)
        return lease

    def target(self, **options: Any) -> SourceTarget:
        return super().target(**{"quarantine": self.bad_id, **options})

    def publisher(self, name: str = "n0", **options: Any) -> BatchPublisher:
        return BatchPublisher(self.target(**options), self.scope(self.node(name)))

    def poller(self, url: str, *, publisher: BatchPublisher | None = None, **options: Any) -> HttpPoller:
        source = http_poll(url, **{"timeout_s": 5.0, **options})
        return HttpPoller(source, publisher or self.publisher())

    def quarantined(self) -> list[dict[str, Any]]:
        manifests = Manifests(self.objects, SYSTEM)
        items = [
            item for row in self.stage.rows_of(self.bad_id) for item in manifests.lot_objects(row.manifest)
        ]
        records: list[dict[str, Any]] = []
        for item in items:
            records += pq.read_table(io.BytesIO(self.objects.get(item.uri)[0])).to_pylist()
        return records


def convert(rows: Any) -> pa.Table:
    try:
        return pa.Table.from_pylist(rows, SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise AppendRefused(str(error)) from None


def orders(*ids: Any) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


@pytest.mark.rule("LOT-35", "CLU-22")
def test_each_version_of_a_response_becomes_one_lot_by_etag_or_content(web: Web) -> None:
    stage = Stage()
    poller = stage.poller(web.url)
    web.says(orders(1, 2), ETag='"a"')
    assert poller.poll(stage.lease.fence).rows == 2
    assert "if-none-match" not in web.asked[-1]
    web.says(b"", status=304)
    assert not poller.poll(stage.lease.fence).lot
    assert web.asked[-1]["if-none-match"] == '"a"'
    web.says(orders(1, 2), ETag='"b"')
    assert not poller.poll(stage.lease.fence).lot, "another name for the same content"
    web.says(orders(1, 2))
    assert not poller.poll(stage.lease.fence).lot, "no name at all"
    packed = gzip.compress(b'{"id":3,"name":"n3"}\n{"id":"x"}\n')
    web.says(packed, NDJSON, Content_Encoding="gzip", Last_Modified="Mon, 02 Jan 2006 15:04:05 GMT")
    assert poller.poll(stage.lease.fence)[1:] == (1, 1)
    web.says({"id": 4, "name": "n4"}, "application/hal+json")
    assert poller.poll(stage.lease.fence).rows == 1, "one object"
    assert web.asked[-1]["if-modified-since"] == "Mon, 02 Jan 2006 15:04:05 GMT"
    assert stage.ids() == [1, 2, 3, 4]
    (bad,) = stage.quarantined()
    assert (bad["line"], bad["record"]) == (2, '{"id":"x"}')
    assert bad["file"] == web.url


@pytest.mark.rule("LOT-35")
def test_added_lines_are_taken_once_and_an_incomplete_line_waits(web: Web) -> None:
    stage = Stage()
    poller = stage.poller(web.url, follow="lines")
    log = b""

    def ranged(handler: BaseHTTPRequestHandler) -> None:
        first = int(handler.headers.get("Range", "bytes=0-")[6:-1])
        status, body = (206, log[first:]) if first < len(log) else (416, b"")
        content_range = f"bytes {first}-{len(log) - 1}/{len(log)}" if status == 206 else f"bytes */{len(log)}"
        handler.send_response(status)
        for name, value in (("Content-Range", content_range), ("Content-Length", str(len(body)))):
            handler.send_header(name, value)
        handler.send_header("Content-Type", NDJSON)
        handler.end_headers()
        handler.wfile.write(body)

    web.reply = ranged
    log = b'{"id":1,"name":"n1"}\n{"id":2,'
    assert poller.poll(stage.lease.fence).rows == 1
    assert not poller.poll(stage.lease.fence).lot
    log += b'"name":"n2"}\n'
    assert poller.poll(stage.lease.fence).rows == 1
    assert not poller.poll(stage.lease.fence).lot, "416 at its end: nothing is new"
    assert stage.ids() == [1, 2]
    web.says(log + b'{"id":3,"name":"n3"}\n', NDJSON)
    assert poller.poll(stage.lease.fence).rows == 1, "a server that knows no ranges"
    web.says(log[:10], NDJSON)
    with pytest.raises(CheckpointGone, match=r"63 bytes of .* but now it has only 10 bytes"):
        poller.poll(stage.lease.fence)
    again = stage.poller(web.url, follow="lines", on_gone="restart")
    assert not again.poll(stage.lease.fence).lot
    assert [(event.before, event.after) for event in stage.told if isinstance(event, CheckpointSkipped)] == [
        ("63", "0")
    ]
    web.says(b'{"id":9,"name":"n9"}\n', NDJSON)
    assert again.poll(stage.lease.fence).rows == 1
    assert stage.ids() == [1, 2, 3, 9]


def _raw(text: bytes) -> Reply:
    return lambda handler: (handler.wfile.write(text), None)[1]


def _drips(handler: BaseHTTPRequestHandler) -> None:
    """A header now and then, for ever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
    while True:  # until the other side has closed the connection, which ends the thread
        handler.wfile.write(b"y")
        SYSTEM.sleep(0.05)


def hangs(handler: BaseHTTPRequestHandler) -> None:
    """Say nothing, for as long as the other side waits."""
    handler.connection.recv(1)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
LIES: dict[str, tuple[Reply, str]] = {
    "no JSON": (_raw(HEAD + b"Content-Length: 7\r\n\r\n[1, 2, "), "the body is not JSON"),
    "a page": (
        _raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\n[]"),
        "text/html",
    ),
    "shorter than it says": (_raw(HEAD + b"Content-Length: 50\r\n\r\n[]"), "ended|Incomplete"),
    "larger than the limit": (
        _raw(HEAD + b"Content-Length: 5000000\r\n\r\n"),
        "5,000,000 bytes; the limit",
    ),
    "without end": (_raw(HEAD + b"\r\n" + b"[" * 200_000), "more than 100,000"),
    "no gzip": (
        _raw(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n[]"),
        "gzip, but the",
    ),
    "a bomb": (
        _raw(HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"[" + b" " * 9_000_000 + b"]")),
        "the decompressed body has more than 100,000 bytes",
    ),
    "another encoding": (_raw(HEAD + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n[]"), "'br'"),
    "an error": (_raw(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"), "responded with status 500"),
    "not for us": (_raw(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"), "responded with status 403"),
    "a file": (_raw(b"HTTP/1.1 302 Go\r\nLocation: file:///etc/passwd\r\n\r\n"), "is not http or https"),
    "a circle": (_raw(b"HTTP/1.1 302 Go\r\nLocation: /orders\r\n\r\n"), "redirects more than 5 times"),
    "no HTTP": (_raw(b"220 smtp ready\r\n"), "BadStatusLine"),
    "nothing": (_raw(b""), "RemoteDisconnected|BadStatusLine"),
    "drips": (_drips, "no response within 0.4 s"),
    "hangs": (hangs, "no response within 0.4 s"),
}


@pytest.mark.rule("LOT-35")
@pytest.mark.parametrize("lie", LIES)
def test_a_target_that_hangs_or_responds_wrongly_is_reported_and_nothing_is_lost(web: Web, lie: str) -> None:
    stage = Stage()
    web.reply, message = LIES[lie]
    slow = {"timeout_s": 0.4} if lie in ("hangs", "drips") else {}
    poller = stage.poller(web.url, body_bytes=100_000, **slow)
    with pytest.raises((PollRefused, SourceUnavailable), match=message):
        poller.poll(stage.lease.fence)
    assert stage.ids() == []
    web.says(orders(1))
    patient = stage.poller(web.url, body_bytes=100_000)
    assert patient.poll(stage.lease.fence).rows == 1
    assert stage.ids() == [1]


@pytest.fixture
def other() -> Iterator[Web]:
    yield from serving()


def redirect_to(address: str) -> Reply:
    return _raw(b"HTTP/1.1 302 Go\r\nLocation: " + address.encode() + b"\r\n\r\n")


def test_a_redirect_to_another_origin_is_refused_unless_configured(web: Web, other: Web) -> None:
    stage = Stage()
    other.says(orders(1))
    web.reply = redirect_to(other.url.replace("http://", "http://user:HUNTER2@"))
    with pytest.raises(PollRefused, match="redirects to another origin") as refused:
        stage.poller(web.url, headers={"Authorization": "Bearer s"}).poll(stage.lease.fence)
    assert "redirect_origins=" in refused.value.hint
    assert "HUNTER2" not in str(refused.value)
    assert other.asked == [], "the other address was not requested"
    web.reply = redirect_to(other.url)
    origins = ["https://cdn.example.com", other.url]
    allowed = stage.poller(web.url, headers={"Authorization": "Bearer s"}, redirect_origins=origins)
    assert allowed.poll(stage.lease.fence).rows == 1
    assert web.asked[-1]["authorization"] == "Bearer s"
    assert "authorization" not in other.asked[0]
    assert stage.ids() == [1]


def test_a_redirect_within_the_origin_is_followed_with_the_headers(web: Web) -> None:
    stage = Stage()

    def reply(handler: BaseHTTPRequestHandler) -> None:
        following = reply_of(orders(1)) if handler.path == "/new" else redirect_to("/new")
        following(handler)

    web.reply = reply
    stage.poller(web.url, headers={"Authorization": "Bearer s"}).poll(stage.lease.fence)
    assert [request["authorization"] for request in web.asked] == ["Bearer s"] * 2
    assert stage.ids() == [1]


def test_an_allowed_origin_does_not_allow_a_redirect_from_https_to_http() -> None:
    first = urlsplit("https://example.com/orders")
    response = HttpResponse(302, {"location": "http://example.com/orders"}, b"")
    with pytest.raises(PollRefused, match="from https to http"):
        http_client._redirected(first, first, response, {"http://example.com:80"})


@pytest.mark.parametrize(
    "location",
    ["/orders?token=HUNTER2 x", "/ord\xebrs?token=HUNTER2", "http://[HUNTER2", "http://h:HUNTER2/"],
    ids=["space", "letter", "host", "port"],
)
def test_an_error_about_a_redirect_does_not_quote_its_address(web: Web, location: str) -> None:
    stage = Stage()
    web.reply = _raw(b"HTTP/1.1 302 Go\r\nLocation: " + location.encode("latin-1") + b"\r\n\r\n")
    with pytest.raises(PollRefused) as refused:
        stage.poller(web.url).poll(stage.lease.fence)
    assert "HUNTER2" not in str(refused.value)
    assert refused.value.__suppress_context__
    stored = stage.store.run(lambda tx: batch_publisher.problems(tx, stage.keys, SOURCE))
    assert stored
    assert "HUNTER2" not in str(stored)


@pytest.mark.parametrize(
    "query",
    ["key=HUNTER2&since=2024-01-01 00:00", "key=HUNTER2\u00e9", "key=HUNTER2\x7f"],
    ids=["space", "letter", "control"],
)
def test_an_address_that_cannot_be_sent_is_refused_without_quoting_its_secret(query: str) -> None:
    url = f"http://127.0.0.1:1/orders?{query}"
    with pytest.raises(BadSource, match="contains a space") as refused:
        http_poll(url)
    assert "HUNTER2" not in str(refused.value)
    assert "percent-encode" in refused.value.hint
    with pytest.raises((PollRefused, SourceUnavailable)) as failed:
        http_client.get(url, {"X-Key": "HUNTER2"}, HttpLimits(5, 1000), SYSTEM)
    assert "HUNTER2" not in str(failed.value)


def test_a_client_error_does_not_quote_the_request_or_a_header(web: Web) -> None:
    for path, headers in (("/orders?key=HUNTER2 x", {}), ("/orders", {"X-Key": "HUNTER2\n"})):
        url = web.url.replace("/orders", path)
        with pytest.raises(PollRefused, match="cannot be sent") as refused:
            http_client.get(url, headers, HttpLimits(5, 1000), SYSTEM)
        assert "HUNTER2" not in str(refused.value)
    assert web.asked == []


@pytest.mark.parametrize(
    "url", ["ftp://me:HUNTER2@x/y", "http//me:HUNTER2@x", "http://x:HUNTER2/", "HUNTER2"]
)
def test_an_address_that_is_not_a_web_address_is_not_quoted(url: str) -> None:
    with pytest.raises(BadSource, match="not a web address") as refused:
        http_poll(url)
    assert "HUNTER2" not in str(refused.value)


@pytest.mark.rule("CLU-20", "CLU-22")
def test_a_node_that_lost_the_lease_publishes_nothing(web: Web) -> None:
    stage = Stage()
    web.says(orders(1))
    old = stage.poller(web.url)
    stage.keeper("n0").release(stage.lease)
    new = stage.acquire("n1")
    with pytest.raises(LeaseLost):
        old.poll(stage.lease.fence)
    assert stage.poller(web.url, publisher=stage.publisher("n1")).poll(new.fence).rows == 1
    assert stage.ids() == [1]


@pytest.mark.rule("CLU-22")
def test_each_response_is_in_exactly_one_lot_after_a_kill_at_any_point(web: Web) -> None:
    web.says(orders(1, 2))
    with crash.recorded() as points:
        stage = Stage()
        stage.poller(web.url).poll(stage.lease.fence)
    assert {"sources.fetch.before", "sources.fetch.after"} < points
    for point in sorted(points):
        stage = Stage()
        with crash.armed(point), pytest.raises(Crashed):
            stage.poller(web.url).poll(stage.lease.fence)
        stage.poller(web.url, publisher=stage.publisher("n1")).poll(stage.lease.fence)
        assert stage.ids() == [1, 2], point


def test_checks_quarantine_rows_or_refuse_a_batch(web: Web) -> None:
    stage = Stage()
    web.says([{"id": 1, "name": "n1"}, {"id": 2}])
    strict = stage.poller(web.url, publisher=stage.publisher(checks=(not_null("name"),)))
    with pytest.raises(CheckFailed):
        strict.poll(stage.lease.fence)
    assert stage.ids() == []
    drops = stage.publisher(checks=(not_null("name", on_fail="drop"),))
    assert stage.poller(web.url, publisher=drops).poll(stage.lease.fence)[1:] == (1, 1)
    assert [row["check"] for row in stage.quarantined()] == ["not_null(name)"]


def test_an_item_with_half_of_a_surrogate_pair_is_quarantined_and_does_not_block_the_source(web: Web) -> None:
    stage = Stage()
    deep = b"[" * 300 + b"]" * 300
    web.says(b'[{"id": 1, "name": "\\ud800"}, {"id": 2, "name": "\xc3\xbc"}, {"id": 3, "name": %s}]' % deep)
    assert stage.poller(web.url).poll(stage.lease.fence)[1:] == (1, 2)
    assert stage.ids() == [2]
    assert stage.quarantined()[0]["record"] == r'{"id": 1, "name": "\ud800"}'


def test_bad_records_are_quarantined_and_the_others_keep_their_order() -> None:
    texts = [json.dumps({"id": n, "name": "x"}).encode() for n in range(1000)]
    texts[17], texts[500], texts[999] = b"[]", b'{"id": "x"}', b"\xff"
    calls = []

    def counted(rows: Any) -> pa.Table:
        calls.append(len(rows))
        return convert(rows)

    records = parse([SourceRecord("t", number, text) for number, text in enumerate(texts)], counted)
    assert records.rows.column("id").to_pylist() == [n for n in range(1000) if n not in (17, 500, 999)]
    assert records.bad.column("line").to_pylist() == [17, 500, 999]
    assert len(calls) < 30
    keyed = parse([SourceRecord("t", 1, b'{"name": "x"}'), SourceRecord("t", 2, None)], convert, ("id",))
    assert keyed.bad.column("error").to_pylist() == [
        "the key column id is NULL",
        "not a JSON object: the record has no value",
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://x/y"},
        {"url": "http://user:pass@x/y"},
        {"every_s": 0},
        {"follow": "all"},
        {"format": "xml"},
        {"follow": "lines", "format": "json"},
        {"timeout_s": 0},
        {"headers": {"X": "a\r\nb"}},
        {"on_gone": "latest"},
        {"body_bytes": 0},
        {"redirect_origins": ["cdn.example.com"]},
    ],
    ids=str,
)
def test_an_invalid_poll_source_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadSource):
        http_poll(**{"url": "http://x/y", **options})
