"""Results for other hosts: real servers in other processes, and some that lie."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.integration.processes import Process
from tests.integration.segment_child import SECRET
from tidemill.errors import CopyCorrupt, CopyGone, FetchFailed, FetchRefused, TidemillError, UsageError
from tidemill.futures.protocol.rows import Location, Result
from tidemill.futures.values import result_storage as values_module
from tidemill.futures.values.flight import SegmentFetcher, SegmentServer, TlsCertificate
from tidemill.futures.values.result_storage import ResultStorage
from tidemill.futures.values.segments import Segments
from tidemill.futures.values.signatures import ClusterKey, Signer
from tidemill.testing.threads import STUCK_S
from tidemill.web import is_loopback

CHILD = "tests.integration.segment_child"
SIGNER = Signer(ClusterKey(SECRET))
ID = b"i" * 16
MEGABYTE = 1_000_000


@pytest.fixture
def fetcher() -> Iterator[SegmentFetcher]:
    fetcher = SegmentFetcher(SIGNER, patience_s=STUCK_S)
    yield fetcher
    fetcher.close()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is on another host than all servers: nothing can be mapped."""
    monkeypatch.setattr(values_module, "host_id", lambda: "another host")


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[Segments]:
    with Segments.open("mine", quota_bytes=500 * MEGABYTE, root=tmp_path / "mine") as segments:
        yield segments


def serving(tmp_path: Path, size: int, *more: object) -> tuple[Process, Result]:
    process = Process(CHILD, "serve", tmp_path / "theirs", size, *more)
    return process, msgspec.json.decode(process.hear()["result"], type=Result)


@pytest.mark.rule("FUT-29")
@pytest.mark.usefixtures("elsewhere")
def test_a_result_of_another_host_is_fetched_cloned_and_gone_when_it_was_deleted(
    tmp_path: Path, fetcher: SegmentFetcher, segments: Segments
) -> None:
    values = ResultStorage(SIGNER, node="here", node_epoch=2, writer=segments.writer(), fetcher=fetcher)
    process, result = serving(tmp_path, 5 * MEGABYTE + 8)
    with process:
        value = values.load(result, ID)
        assert (value == np.arange(625_001)).all()
        assert not value.flags.writeable
        assert value.ctypes.data % 64 == 0
        copy = values.clone(result, ID)
        assert (copy.size, copy.version, copy.signature) == (result.size, result.version, result.signature)
        assert (copy.location.node, copy.location.host) == ("here", "another host")
        assert segments.used_bytes == copy.size == result.size
        process.tell("delete")
        process.hear()
        with pytest.raises(CopyGone, match="no longer has"):
            values.load(result, ID)
        with pytest.raises(CopyGone):
            values.clone(result, ID)
        assert process.end() == 0
    with pytest.raises(FetchFailed):
        values.load(result, ID)
    assert (values.load(copy, ID) == np.arange(625_001)).all(), "our copy needs nobody"
    assert len(segments.names()) == 1, "nothing is left of the clone that failed"
    assert segments.used_bytes == result.size


@pytest.mark.usefixtures("elsewhere")
def test_a_node_killed_in_the_middle_of_a_transfer_is_an_error_and_never_a_short_result(
    tmp_path: Path, fetcher: SegmentFetcher, segments: Segments
) -> None:
    process, result = serving(tmp_path, 60 * MEGABYTE)
    came = 0

    def write(piece: memoryview) -> None:
        nonlocal came
        if not came:
            os.kill(process.pid, signal.SIGKILL)
        came += len(piece)

    with process, pytest.raises(FetchFailed):
        fetcher.fetch(result.location, result.size, write)
    assert 0 < came < result.size


@pytest.mark.usefixtures("elsewhere")
def test_a_node_that_was_started_again_at_its_address_is_reached(
    tmp_path: Path, fetcher: SegmentFetcher, segments: Segments
) -> None:
    name = segments.writer().write("ab", 1, _image(100_000))
    size = (segments.folder / name).stat().st_size
    with SegmentServer(segments.map, SIGNER) as server:
        location = Location("segment", f"mine/{name}", address=server.address)
        assert fetched(fetcher, location, size)
    with pytest.raises(FetchFailed):
        fetched(fetcher, location, size)
    with SegmentServer(segments.map, SIGNER, port=int(location.address.rpartition(":")[2])):
        assert fetched(fetcher, location, size) == (segments.folder / name).read_bytes()


def _image(size: int) -> Any:
    from tidemill.futures.values import layout, pickling

    return layout.plan(pickling.dump(b"x" * size))


def fetched(fetcher: SegmentFetcher, location: Location, size: int) -> bytes:
    out = bytearray()
    fetcher.fetch(location, size, out.extend)
    return bytes(out)


@pytest.fixture
def served(segments: Segments) -> Iterator[tuple[SegmentServer, Location, int]]:
    name = segments.writer().write("ab", 1, _image(3 * MEGABYTE))
    with SegmentServer(segments.map, SIGNER) as server:
        location = Location("segment", f"mine/{name}", address=server.address)
        yield server, location, (segments.folder / name).stat().st_size


Served = tuple[SegmentServer, Location, int]


@pytest.mark.rule("FUT-59")
def test_a_client_without_the_key_gets_nothing(served: Served) -> None:
    server, location, size = served
    stranger = SegmentFetcher(Signer(ClusterKey.new()))
    with pytest.raises(FetchRefused, match="does not have this cluster's key"):
        fetched(stranger, location, size)
    stranger.close()
    with flight.FlightClient(server.address, generic_options=[("grpc.enable_http_proxy", 0)]) as client:
        nonce = bytes(32)
        (answer,) = client.do_action(flight.Action("hello", nonce))
        theirs = answer.body.to_pybytes()[:32]
        name = location.name
        forged = Signer(ClusterKey.new()).sign("flight-get", nonce, theirs, name.encode())
        for ticket in (
            b"",
            b"garbage",
            name.encode(),
            msgspec.msgpack.encode((name, nonce, theirs, b"")),
            msgspec.msgpack.encode((name, nonce, theirs, forged)),
            msgspec.msgpack.encode((name, nonce, bytes(32), SIGNER.sign("flight-get", nonce, bytes(32)))),
        ):
            with pytest.raises(flight.FlightUnauthenticatedError):
                client.do_get(flight.Ticket(ticket)).read_all()
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(client.do_action(flight.Action("hello", b"too short")))
        for other in (
            lambda: list(client.list_flights()),
            lambda: list(client.do_action(flight.Action("x", b""))),
        ):
            with pytest.raises((flight.FlightError, NotImplementedError, pa.ArrowNotImplementedError)):
                other()


@pytest.mark.rule("FUT-59")
def test_a_ticket_is_good_for_one_segment_once(served: Served) -> None:
    server, location, _ = served
    with flight.FlightClient(server.address, generic_options=[("grpc.enable_http_proxy", 0)]) as client:

        def ticket(requested: str, signed: str) -> flight.Ticket:
            nonce = random.SystemRandom().randbytes(32)
            (answer,) = client.do_action(flight.Action("hello", nonce))
            theirs = answer.body.to_pybytes()[:32]
            proof = SIGNER.sign("flight-get", nonce, theirs, signed.encode())
            return flight.Ticket(msgspec.msgpack.encode((requested, nonce, theirs, proof)))

        good = ticket(location.name, location.name)
        assert client.do_get(good).read_all().num_rows > 3 * MEGABYTE
        with pytest.raises(flight.FlightUnauthenticatedError, match="used before"):
            client.do_get(good).read_all()
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_get(ticket(location.name, "mine/other")).read_all()


def test_the_key_is_never_on_the_wire(served: Served) -> None:
    server, location, size = served
    seen = bytearray()
    with Relay(server.address, seen.extend) as relay:
        fetcher = SegmentFetcher(SIGNER)
        assert len(fetched(fetcher, msgspec.structs.replace(location, address=relay.address), size)) == size
        fetcher.close()
    assert location.name.encode() in seen
    assert SECRET not in seen


class Relay:
    """Stands between two and hears every byte."""

    def __init__(self, address: str, hear: Callable[[bytes], None]) -> None:
        host, _, port = address.removeprefix("grpc+tcp://").rpartition(":")
        self._target = host, int(port)
        self._hear = hear
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"grpc+tcp://127.0.0.1:{self._door.getsockname()[1]}"
        self._lines: list[Any] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                incoming, _ = self._door.accept()
            except OSError:
                return
            outgoing = socket.create_connection(self._target)
            self._lines += [incoming, outgoing]
            for pair in ((incoming, outgoing), (outgoing, incoming)):
                thread = threading.Thread(target=self._carry, args=pair, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: Any, target: Any) -> None:
        try:
            while data := source.recv(65536):
                self._hear(data)
                target.sendall(data)
        except OSError:
            return

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *exc: object) -> None:
        for line in (self._door, *self._lines):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        for thread in self._threads:
            thread.join(STUCK_S)


Tell = Callable[[Any], Iterator[Any]]


class Liar(flight.FlightServerBase):
    """Has the key, and answers a ticket with whatever it was told to."""

    SCHEMA = pa.schema([("bytes", pa.uint8())])

    def __init__(self, tell: Tell, signer: Signer = SIGNER) -> None:
        super().__init__("grpc+tcp://127.0.0.1:0")
        self.tell = tell
        self.signer = signer
        self.address = f"grpc+tcp://127.0.0.1:{self.port}"

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        self.mine, self.theirs = bytes(range(32)), action.body.to_pybytes()
        return [self.mine + self.signer.sign("flight-hello", self.theirs, self.mine)]

    def do_get(self, context: Any, ticket: Any) -> Any:
        self.name = msgspec.msgpack.decode(ticket.ticket)[0]
        return flight.GeneratorStream(self.SCHEMA, self.tell(self))

    def batch(self, body: bytes) -> Any:
        return pa.record_batch([pa.array(np.frombuffer(body, np.uint8))], schema=self.SCHEMA)

    def proof(self, body: bytes, total: int) -> bytes:
        digest = blake2b(body, digest_size=32).digest()
        return self.signer.sign(
            "flight-body", self.theirs, self.mine, self.name.encode(), total.to_bytes(8, "big"), digest
        )


BODY = bytes(range(256)) * 40


def honest(liar: Liar) -> Iterator[Any]:
    yield liar.batch(BODY), None
    yield liar.batch(b""), liar.proof(BODY, len(BODY))


def short(liar: Liar) -> Iterator[Any]:
    yield liar.batch(BODY[:-1]), None
    yield liar.batch(b""), liar.proof(BODY[:-1], len(BODY) - 1)


def short_and_sure(liar: Liar) -> Iterator[Any]:
    yield liar.batch(BODY[:-1]), None
    yield liar.batch(b""), liar.proof(BODY, len(BODY))


def long(liar: Liar) -> Iterator[Any]:
    yield liar.batch(BODY), None
    for _ in range(1_000_000):
        yield liar.batch(BODY), None


def changed(liar: Liar) -> Iterator[Any]:
    yield liar.batch(BODY[:-1] + b"!"), None
    yield liar.batch(b""), liar.proof(BODY, len(BODY))


def unproven(liar: Liar) -> Iterator[Any]:
    yield liar.batch(BODY), None


def empty(liar: Liar) -> Iterator[Any]:
    yield liar.batch(b""), None


def breaking(liar: Liar) -> Iterator[Any]:
    yield liar.batch(BODY[:100]), None
    raise RuntimeError("the disk is gone")


def odd(liar: Liar) -> Iterator[Any]:
    yield pa.record_batch([pa.array([1, None], pa.uint8())], schema=Liar.SCHEMA), None


def told_by(tell: Tell, signer: Signer = SIGNER) -> bytes:
    fetcher = SegmentFetcher(SIGNER, patience_s=STUCK_S)
    with Liar(tell, signer) as liar:
        try:
            return fetched(fetcher, Location("segment", "boot/ab.1.1.1", address=liar.address), len(BODY))
        finally:
            fetcher.close()


@pytest.mark.parametrize(
    ("tell", "error"),
    [
        (short, CopyCorrupt),
        (short_and_sure, CopyCorrupt),
        (long, CopyCorrupt),
        (changed, CopyCorrupt),
        (unproven, CopyCorrupt),
        (empty, CopyCorrupt),
        (breaking, FetchFailed),
        (odd, CopyCorrupt),
    ],
)
def test_a_lie_about_a_segment_is_an_error_and_never_a_result(tell: Tell, error: type[TidemillError]) -> None:
    assert told_by(honest) == BODY
    with pytest.raises(error) as caught:
        told_by(tell)
    assert "\n" not in caught.value.message


@pytest.mark.rule("FUT-59")
def test_a_server_without_the_key_is_not_asked_for_anything() -> None:
    def asked(liar: Liar) -> Iterator[Any]:
        pytest.fail("it got a ticket")
        yield

    with pytest.raises(FetchRefused, match="does not have this cluster's key"):
        told_by(asked, Signer(ClusterKey.new()))


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("", FetchFailed),
        ("nonsense", FetchFailed),
        ("http://127.0.0.1:80", FetchFailed),
        ("grpc+tcp://127.0.0.1:notaport", FetchFailed),
        ("grpc+tcp://127.0.0.1:1", FetchFailed),
        ("grpc+tls://127.0.0.1:1", FetchFailed),
        ("grpc+tcp://192.0.2.1:4711", FetchRefused),
        ("grpc+tcp://example.org:4711", FetchRefused),
    ],
)
def test_an_address_that_does_not_do_is_told(
    fetcher: SegmentFetcher, address: str, error: type[TidemillError]
) -> None:
    with pytest.raises(error):
        fetched(fetcher, Location("segment", "boot/ab.1.1.1", address=address), 10)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_without_a_certificate_nothing_is_served_to_other_hosts(segments: Segments, host: str) -> None:
    with pytest.raises(UsageError, match="only with TLS"):
        SegmentServer(segments.map, SIGNER, host=host)


def test_which_hosts_are_this_one() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "10.0.0.1", "example.org", "localhost.example.org", ""]))


def test_a_place_that_cannot_be_listened_at_is_told(segments: Segments, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        SegmentServer(segments.map, SIGNER, certificate=TlsCertificate(tmp_path / "none", tmp_path / "none"))
    (tmp_path / "bad").write_text("no certificate")
    with pytest.raises(UsageError, match="cannot be served"):
        SegmentServer(segments.map, SIGNER, certificate=TlsCertificate(tmp_path / "bad", tmp_path / "bad"))


def test_transfers_that_are_dropped_give_their_place_back(served: Served) -> None:
    _, location, size = served

    def stop(piece: memoryview) -> None:
        raise KeyboardInterrupt

    fetcher = SegmentFetcher(SIGNER)
    for _ in range(70):  # more than may run at once
        with pytest.raises(KeyboardInterrupt):
            fetcher.fetch(location, size, stop)
    assert len(fetched(fetcher, location, size)) == size
    fetcher.close()


@pytest.fixture
def certificate(tmp_path: Path) -> TlsCertificate:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate, and is not installed")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(chain), "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
        timeout=STUCK_S,
    )
    return TlsCertificate(chain, key)


@pytest.mark.rule("FUT-29")
@pytest.mark.usefixtures("elsewhere")
def test_between_hosts_it_goes_encrypted(tmp_path: Path, certificate: TlsCertificate) -> None:
    process, result = serving(tmp_path, 3 * MEGABYTE, certificate.chain, certificate.key)
    assert result.location.address.startswith("grpc+tls://localhost:")
    trusting = SegmentFetcher(SIGNER, roots=certificate.chain, patience_s=STUCK_S)
    strange = SegmentFetcher(SIGNER, patience_s=5.0)
    with process:
        assert (ResultStorage(SIGNER, fetcher=trusting).load(result, ID) == np.arange(375_000)).all()
        with pytest.raises(FetchFailed):  # nobody we trust has signed its certificate
            ResultStorage(SIGNER, fetcher=strange).load(result, ID)
        plain = msgspec.structs.replace(
            result.location, address=result.location.address.replace("grpc+tls", "grpc+tcp")
        )
        with pytest.raises(FetchFailed):
            fetched(strange, plain, result.size)
    trusting.close()
    strange.close()


def test_a_large_result_is_fetched_in_little_memory(tmp_path: Path) -> None:
    process, result = serving(tmp_path, 80 * MEGABYTE)
    with process, Process(CHILD, "clone", tmp_path / "mine", msgspec.json.encode(result).decode()) as reader:
        seen = reader.hear()
        theirs = Path(f"/proc/{process.pid}/status").read_text()
    assert seen["size"] == result.size
    assert seen["grown_kb"] < 40_000
    assert int(theirs.partition("RssAnon:")[2].split()[0]) < 70_000, "what it has besides the mapped file"
