"""A connection to the push server: uvicorn's protocol, with limits and an answer for every request.

uvicorn closes a connection when the sender has closed its side, although the sender still reads. It also has
no limit on silent or very slow connections, and answers a malformed request with plain text. This class
changes that. Without a limit, a few hundred senders that send a byte now and then would keep all others out,
even without a token.
"""

import asyncio
import json
import logging
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

DRAIN_BYTES: Final = 16 << 20
LEAST_BYTES_PER_S: Final = 1024
"""A sender that sends less than this, averaged over a request, is disconnected."""

_SILENT = logging.getLogger(f"{__name__}.silent")
_SILENT.disabled = True  # events report what happens; a malformed request must not fill a log
_Base: Any = H11Protocol


def limited(connections: int, idle_s: float) -> type[asyncio.Protocol]:
    """Return the class of connections with these limits.

    Args:
        connections: the maximum number of open connections; further ones are closed immediately.
        idle_s: how long a connection may be silent while it is the sender's turn. A request may take this
            time plus the time that it needs at `LEAST_BYTES_PER_S`.
    """

    class Limited(PushConnection):
        most_connections = connections
        most_idle_s = idle_s

    return Limited


class PushConnection(_Base, asyncio.Protocol):  # type: ignore[misc]
    """One connection. uvicorn calls its methods on the event loop."""

    most_connections = 256
    most_idle_s = 30.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _SILENT
        self.timeout_keep_alive = self.most_idle_s
        self._heard_at = self._turn_at = 0.0
        self._received = 0  # in the sender's turn, which began at `_turn_at`
        self._unread = 0
        self._idle_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.close()
            return
        self.flow = _BodyFlow(transport, self)
        self._heard_at = self._turn_at = self.loop.time()
        self._idle_check = self.loop.call_later(self.most_idle_s, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_check is not None:
            self._idle_check.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process data. The body of a request that was refused unread is skipped, up to a limit.

        Closing the connection at once would discard the answer before the sender has read it.
        """
        self._heard_at = self.loop.time()
        self._received += len(data)
        if self.cycle is not None and self.cycle.response_complete and self._sends_body():
            self._unread += len(data)
            if self._unread > DRAIN_BYTES:
                self.transport.abort()
                return
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Begin the sender's turn: it may send the next request."""
        self._turn_at, self._received = self.loop.time(), 0
        super().on_response_complete()

    def eof_received(self) -> bool:
        """Handle the end of what the sender sends: it may still wait for its answer."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            if self.conn.trailing_data[0]:
                self.send_400_response("the request is incomplete")
            return False
        cycle.keep_alive = False
        if cycle.more_body and not cycle.response_started:
            self.send_400_response("the body is shorter than Content-Length")
        return True

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, and close the connection."""
        hint = "send the request again as HTTP/1.1, with the right Content-Length"
        body = json.dumps({"error": {"code": "bad-request", "message": msg, "hint": hint}}).encode() + b"\n"
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        try:
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        except h11.LocalProtocolError:
            pass  # the request has been answered already, or cannot be
        self.transport.close()

    @property
    def is_reading_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def _sends_body(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY

    def _close_if_idle(self) -> None:
        """Close the connection if the sender is silent or too slow; otherwise check again later."""
        cycle = self.cycle
        our_turn = cycle is not None and not cycle.response_complete and not cycle.more_body
        left_s = self.most_idle_s
        if not our_turn:
            slowest_s = self._received / LEAST_BYTES_PER_S
            left_s += min(self._heard_at, self._turn_at + slowest_s) - self.loop.time()
        if left_s <= 0:
            self.transport.abort()
        else:
            self._idle_check = self.loop.call_later(left_s, self._close_if_idle)


class _BodyFlow(FlowControl):
    """Does not pause while a body is read: its size is limited, and each pause waits for other threads."""

    def __init__(self, transport: Any, connection: PushConnection) -> None:
        super().__init__(transport)
        self._connection = connection

    def pause_reading(self) -> None:
        if not self._connection.is_reading_body:
            super().pause_reading()
