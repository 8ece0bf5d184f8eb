"""One connection to PostgreSQL that sends statements in batches: many statements in one round trip.

The connection is always in libpq's pipeline mode, and all data is binary: a value of the store is bytes here,
on the wire and in the table, so nothing is converted. `exchange` sends statements and waits for all results;
if one fails, the server skips the rest of the batch. A BEGIN, a query and a timestamp together cost one round
trip, and so do the last writes and the COMMIT.

This module does not use psycopg's cursors: they convert each value, and wait without limit when the network
drops packets. Here a connection that is silent for `SILENCE_S` counts as lost.
"""

import select
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

T = TypeVar("T")

SILENCE_S = 20.0  # longer than any statement: see SETTINGS in `statements`

_BINARY = tuple([1] * n for n in range(8))
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_ENDS_SESSION = (b"FATAL", b"PANIC")


class Statement(NamedTuple):
    """SQL text, in which each parameter has a cast, and the name under which it is prepared.

    The name is empty if the statement is not prepared.
    """

    name: bytes
    text: bytes


class BoundStatement(NamedTuple):
    """A statement with its parameters, in PostgreSQL's binary form."""

    statement: Statement
    parameters: tuple[bytes | None, ...] = ()


class ConnectionLost(Exception):
    """The connection broke. If `sent` is set, the statements may have reached the server."""

    def __init__(self, text: str, *, sent: bool, sqlstate: str = "") -> None:
        super().__init__(text)
        self.sent = sent
        self.sqlstate = sqlstate


class StatementFailed(Exception):
    """The server refused a statement; the transaction ends, the connection stays usable."""

    def __init__(self, text: str, *, sqlstate: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


class PostgresConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, connection: "psycopg.Connection[object]", scrub: Callable[[str], str]) -> None:
        self._connection = connection
        self._pg: PGconn = connection.pgconn
        self._scrub = scrub
        self._prepared = False
        self._whole = True  # no response is outstanding
        self._pg.enter_pipeline_mode()
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self.pooled = False  # a pooler is between us and the server, so we cannot rely on session state

    @property
    def socket(self) -> int:
        return self._pg.socket

    @property
    def backend_pid(self) -> int:
        """The id of the server process that serves us; a pooler reports a different one."""
        return self._pg.backend_pid

    @property
    def server_version(self) -> int:
        return self._pg.server_version

    @property
    def usable(self) -> bool:
        """Whether all responses have arrived and the connection looks open. This sends no request."""
        return self._whole and self._pg.status == ConnStatus.OK

    @property
    def in_transaction(self) -> bool:
        return self._pg.transaction_status != TransactionStatus.IDLE

    def close(self) -> None:
        self._whole = False
        self._connection.close()

    def is_open(self) -> bool:
        """Return whether the connection is open. This sends no request, and only reads what has arrived."""
        try:
            for _ in range(3):  # a last message, then the end of the stream
                if not self._poll.poll(0):
                    return self.usable
                self._pg.consume_input()
        except psycopg.Error:
            pass
        return False

    def prepare(self, statements: Sequence[Statement]) -> None:
        """Prepare the statements once, so that later calls use their names."""
        self._converse(lambda statement: self._pg.send_prepare(statement.name, statement.text), statements)
        self._prepared = True

    def exchange(self, calls: Sequence[BoundStatement]) -> list[PGresult]:
        """Send all statements and wait for all results.

        Raise `StatementFailed` for the first statement that fails, or `ConnectionLost`.
        """
        return self._converse(self._send, calls)

    def notifications(self) -> list[tuple[int, str]]:
        """Return the notifications since the last call: the sender's process and the payload."""
        lost: ConnectionLost | None = None
        try:
            while self._poll.poll(0):
                self._pg.consume_input()
            self._pg.is_busy()  # parses the input
        except psycopg.Error as error:
            lost = self._lost(str(error), sent=False)
        if lost is not None:
            raise lost
        received = []
        while (notify := self._pg.notifies()) is not None:
            received.append((notify.be_pid, notify.extra.decode(errors="replace")))
        return received

    # --- the wire

    def _send(self, call: BoundStatement) -> None:
        statement, parameters = call
        formats = _BINARY[len(parameters)]
        if self._prepared and statement.name:
            self._pg.send_query_prepared(statement.name, parameters, formats, 1)
        else:
            self._pg.send_query_params(statement.text, parameters, None, formats, 1)

    def _converse(self, send: Callable[[T], None], questions: Sequence[T]) -> list[PGresult]:
        if not self.usable:
            raise self._lost("the connection is closed", sent=False)
        self._whole = False
        trouble: StatementFailed | ConnectionLost | None = None
        results: list[PGresult] = []
        try:
            for question in questions:
                send(question)
            self._pg.pipeline_sync()
            self._push()
            for _ in questions:
                result = self._answer()
                if result.status in _DONE:
                    results.append(result)
                elif trouble is None:  # statements after the first error were skipped
                    trouble = self._trouble(result)
                    if isinstance(trouble, ConnectionLost):
                        break
            self._whole = trouble is None or isinstance(trouble, StatementFailed)
            if self._whole:
                self._expect_sync()
        except psycopg.Error as error:
            lost = self._lost(str(error), sent=True)
            # The first failed statement decides: nothing after it, in particular no COMMIT, was executed.
            trouble = trouble or lost
        if (
            trouble is not None
        ):  # raised outside of `except`, so that the driver's exception is not its context
            raise trouble
        return results

    def _answer(self) -> PGresult:
        """Return the result of the next statement. Skip the None after it; this needs no wait."""
        result = self._next()
        if result is None or self._pg.get_result() is not None:
            raise psycopg.OperationalError("the server sent an unexpected response")
        if self._pg.status != ConnStatus.OK:
            raise psycopg.OperationalError(self._message(result))
        return result

    def _expect_sync(self) -> None:
        result = self._next()
        if result is None or result.status != ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError("the server sent an unexpected response")

    def _next(self) -> PGresult | None:
        pg = self._pg
        while pg.is_busy():
            if not self._poll.poll(SILENCE_S * 1000):
                raise psycopg.OperationalError(f"the server did not answer for {SILENCE_S:g} s")
            pg.consume_input()
        return pg.get_result()

    def _push(self) -> None:
        if not self._pg.flush():
            return
        both = select.poll()
        both.register(self._pg.socket, select.POLLIN | select.POLLOUT)
        while self._pg.flush():
            ready = both.poll(SILENCE_S * 1000)
            if not ready:
                raise psycopg.OperationalError(f"the server accepted no data for {SILENCE_S:g} s")
            if ready[0][1] & ~select.POLLOUT:
                self._pg.consume_input()  # otherwise each side could wait for the other to read

    # --- errors

    def _message(self, result: PGresult) -> str:
        message = result.error_field(DiagnosticField.MESSAGE_PRIMARY)
        text = message.decode(errors="replace") if message else result.error_message.decode(errors="replace")
        return self._scrub(" ".join(text.split()))

    def _trouble(self, result: PGresult) -> StatementFailed | ConnectionLost:
        """Return the error of a failed result; `ConnectionLost` if the whole session ended."""
        sqlstate = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        severity = result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED)
        if severity in _ENDS_SESSION or not sqlstate:
            return self._lost(self._message(result), sent=True, sqlstate=sqlstate)
        return StatementFailed(self._message(result), sqlstate=sqlstate)

    def _lost(self, text: str, *, sent: bool, sqlstate: str = "") -> ConnectionLost:
        self._whole = False
        return ConnectionLost(self._scrub(" ".join(text.split())), sent=sent, sqlstate=sqlstate)


# --- PostgreSQL's binary forms


def integer(value: int) -> bytes:
    """Encode a bigint."""
    return struct.pack(">q", value)


def number(raw: bytes | None) -> int:
    """Decode a bigint or int column."""
    return int.from_bytes(raw or b"", "big", signed=True)


def byte_strings(values: Sequence[bytes]) -> bytes:
    """Encode a bytea[]."""
    return _array(17, values)


def texts(values: Sequence[str]) -> bytes:
    """Encode a text[]."""
    return _array(25, [value.encode() for value in values])


def integers(values: Sequence[int]) -> bytes:
    """Encode a bigint[]."""
    return _array(20, [integer(value) for value in values])


def _array(oid: int, values: Sequence[bytes]) -> bytes:
    if not values:
        return struct.pack(">iiI", 0, 0, oid)
    head = struct.pack(">iiIii", 1, 0, oid, len(values), 1)
    if len(set(map(len, values))) == 1:  # the usual case, joined at once
        size = len(values[0]).to_bytes(4, "big")
        return head + size + size.join(values)
    return head + b"".join([len(value).to_bytes(4, "big") + value for value in values])
