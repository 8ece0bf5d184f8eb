"""Tests of object storage over a network that loses messages: a PUT that timed out may have taken effect.

A TCP proxy drops a request before it arrives, or a response after it is sent:

    with LossyProxy("127.0.0.1", port) as proxy:
        client = connect(proxy.endpoint)
        proxy.lose("answer", b"PUT ")        # the next PUT takes effect, but its client gets no response

The server is real, so a request whose response is lost has really taken effect.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal, NamedTuple, Self

import pytest

from tidemill.errors import ObjectConflict, ObjectUnavailable
from tidemill.objects import Objects, Put
from tidemill.testing.objects_tests.bodies import nonce

Loss = Literal["request", "answer", "silence"]
"""request: cut before the server sees it. answer: cut when the server has answered. silence: the same, but
the connection stays open and nothing ever comes, until the client's patience ends."""


class LossyProxy:
    """Forwards connections to one server, and drops the messages that `lose` names."""

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._start = b""
        self._passed = 0
        self._losses: list[Loss] = []
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shut(self._listener)
        with self._lock:
            left = list(self._open)
        self._shut(*left)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def pending(self) -> int:
        """The number of losses that have not happened yet."""
        with self._lock:
            return len(self._losses)

    def lose(self, loss: Loss, start: bytes, *, times: int = 1, passing: int = 0) -> None:
        """Lose the next requests that begin with `start`, or their responses.

        A client may send requests ahead of need, in threads. Count requests instead of calling `lose` between
        two of them: `passing` requests are forwarded before the first loss.
        """
        with self._lock:
            self._start, self._passed, self._losses = start, passing, [loss] * times

    def _next_loss(self, data: bytes) -> Loss | None:
        with self._lock:
            if not self._losses or not data.startswith(self._start):
                return None
            if self._passed:
                self._passed -= 1
                return None
            return self._losses.pop(0)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                _Link(client, socket.create_connection(self._server), self._next_loss, self._shut).start()
                with self._lock:
                    self._open |= {client}

    @staticmethod
    def _shut(*sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class _Link:
    """One connection: two threads copy bytes until one side ends or a loss is due."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        next_loss: Callable[[bytes], Loss | None],
        shut: Callable[..., None],
    ) -> None:
        self._client, self._server = client, server
        self._next_loss = next_loss
        self._shut = shut
        self._loss: Loss | None = None

    def start(self) -> None:
        for carry in (self._requests, self._answers):
            threading.Thread(target=carry, daemon=True).start()

    def _requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(65536):
                self._loss = self._loss or self._next_loss(data)
                if self._loss == "request":
                    break
                self._server.sendall(data)
        self._shut(self._client, self._server)

    def _answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                if self._loss == "answer":
                    break
                if self._loss != "silence":
                    self._client.sendall(data)
        self._shut(self._client, self._server)


class Lossy(NamedTuple):
    """One storage, opened three times: through the lossy proxy, with a short timeout, and directly."""

    through: Objects
    impatient: Objects
    direct: Objects
    proxy: LossyProxy


class LostAnswerConformance:
    """A subclass defines the fixture `lossy`. `impatient` gives up after a few seconds without a response."""

    @pytest.fixture
    def lossy(self) -> Lossy:
        """Overridden by each backend."""
        raise pytest.UsageError(f"{type(self).__name__} has no fixture `lossy`")

    @pytest.mark.rule("STO-12")
    @pytest.mark.parametrize("loss", ["answer", "silence"])
    def test_a_create_whose_response_is_lost_is_recognised(self, lossy: Lossy, loss: Loss) -> None:
        mark = nonce()
        lossy.proxy.lose(loss, b"PUT ")
        objects = lossy.impatient if loss == "silence" else lossy.through
        assert objects.put_if_absent("k", mark, mark) is Put.MINE
        assert lossy.proxy.pending == 0
        assert lossy.direct.get("k")[0] == mark

    @pytest.mark.rule("STO-12")
    def test_a_create_that_never_arrived_is_retried(self, lossy: Lossy) -> None:
        mark = nonce()
        lossy.proxy.lose("request", b"PUT ")
        assert lossy.through.put_if_absent("k", mark, mark) is Put.CREATED
        assert lossy.proxy.pending == 0

    @pytest.mark.rule("STO-12")
    def test_a_create_that_another_writer_won_stays_other_after_losses(self, lossy: Lossy) -> None:
        first, second = nonce(), nonce()
        lossy.direct.put_if_absent("k", first, first)
        lossy.proxy.lose("answer", b"PUT ", times=2)
        assert lossy.through.put_if_absent("k", second, second) is Put.OTHER
        assert lossy.proxy.pending == 0
        assert lossy.direct.get("k")[0] == first

    @pytest.mark.rule("STO-12")
    def test_a_caller_that_gave_up_can_repeat_the_create(self, lossy: Lossy) -> None:
        mark = nonce()
        lossy.proxy.lose("answer", b"PUT ", times=100)
        with pytest.raises(ObjectUnavailable):
            lossy.through.put_if_absent("k", mark, mark)
        lossy.proxy.lose("answer", b"PUT ", times=0)
        assert lossy.through.put_if_absent("k", mark, mark) is Put.MINE

    @pytest.mark.rule("STO-12")
    def test_a_replacement_whose_response_is_lost_took_effect(self, lossy: Lossy) -> None:
        first = lossy.direct.put("k", nonce())
        mark = nonce()
        lossy.proxy.lose("answer", b"PUT ")
        info = lossy.through.put_if_match("k", mark, first.etag)
        assert lossy.proxy.pending == 0
        assert lossy.direct.get("k")[0] == mark
        assert lossy.direct.head("k").etag == info.etag
        with pytest.raises(ObjectConflict):
            lossy.through.put_if_match("k", nonce(), first.etag)

    def test_reads_and_listings_continue_after_a_loss(self, lossy: Lossy) -> None:
        for number in range(20):
            lossy.direct.put(f"k/{number:02d}", b"%d" % number)
        lossy.proxy.lose("answer", b"GET ", times=2)
        assert [info.key for info in lossy.through.list("k/")] == [f"k/{number:02d}" for number in range(20)]
        lossy.proxy.lose("answer", b"GET ", times=2)
        assert lossy.through.get("k/07")[0] == b"7"
        lossy.proxy.lose("answer", b"GET ")
        assert lossy.through.get_ranges("k/11", [(0, 1), (900_000, 1)]) == [b"1", b""]
        lossy.proxy.lose("answer", b"HEAD ")
        assert lossy.through.head("k/11").size == 2
        lossy.proxy.lose("answer", b"DELETE ")
        lossy.through.delete("k/11")
        lossy.proxy.lose("answer", b"POST ")
        lossy.through.delete_many(["k/12", "k/13"])
        assert lossy.proxy.pending == 0
        assert [info.key for info in lossy.direct.list("k/", after="k/10", limit=1)] == ["k/14"]
