"""The store's own rows in a SQLite file: format, owner, and the header that every commit rewrites.

The header has the number of the last commit and the clock. The number orders the keys of `set_versioned` and
shows whether another process has committed (`Watches`). The clock implements STO-6. Lease time is

    base_us + (boot clock now - boot_us)

All processes compute the same value, from two numbers that stay the same until the next boot. The store
commits a higher ceiling before it returns a time beyond `ceiling_us`. After a reboot the base becomes the
last ceiling, so time continues above every time returned before. Lease time starts at the wall clock when the
file is created, so that the times in rows copied from another store are about right. Afterwards, lease time
does not depend on the wall clock.
"""

import sqlite3
from typing import Any

import msgspec

from tidemill.clock import Clock
from tidemill.errors import StoreCorrupt, StoreFormat, StoreLocation
from tidemill.store.port import SYSTEM_PREFIX
from tidemill.store.sqlite.file import StoreFile
from tidemill.store.sqlite.location import MachineId, refuse_other_machine

FORMAT = 1
FORMAT_KEY = SYSTEM_PREFIX + b"format"
OWNER_KEY = SYSTEM_PREFIX + b"owner"
HEAD_KEY = SYSTEM_PREFIX + b"head"

AHEAD_US = 60_000_000  # how far ahead the ceiling is set
CLOSE_US = 30_000_000  # the ceiling is raised when lease time is closer to it; longer than any batch

GET = "SELECT v FROM kv WHERE k = ?"
PUT = "INSERT INTO kv (k, v) VALUES (?, ?) ON CONFLICT (k) DO UPDATE SET v = excluded.v"
PUT_TWO = PUT.replace("(?, ?)", "(?, ?), (?, ?)")
TABLE = "CREATE TABLE kv (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID"


def micros(clock: Clock) -> int:
    """Return the boot clock in microseconds."""
    return int(clock.monotonic() * 1_000_000)


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The number of the last commit, and the clock."""

    commit: int
    boot: str
    base_us: int
    boot_us: int
    ceiling_us: int

    @staticmethod
    def read(connection: sqlite3.Connection, boot: str) -> "Header":
        """Read the header; raise `StoreLocation` if another machine has taken over the store."""
        head = decoded(connection.execute(GET, (HEAD_KEY,)).fetchone())
        if head.boot != boot:
            raise StoreLocation(
                "another machine opened this store with adopt=True while it was open here",
                hint="stop Tidemill on one of the two machines; to share a store use postgresql://",
            )
        return head

    def now_us(self, boot_us: int) -> int:
        """Return the lease time for a time of the boot clock."""
        return self.base_us + boot_us - self.boot_us

    def raised(self, boot_us: int) -> "Header":
        """Return the header with its ceiling far enough ahead for a transaction that begins now."""
        now_us = self.now_us(boot_us)
        if now_us + CLOSE_US <= self.ceiling_us:
            return self
        return msgspec.structs.replace(self, ceiling_us=now_us + AHEAD_US)

    def rebased(self, boot: str, boot_us: int) -> "Header":
        """Return the header after a reboot: time continues from the ceiling, above all earlier times."""
        return Header(self.commit, boot, self.ceiling_us, boot_us, self.ceiling_us + AHEAD_US)

    def encoded(self) -> bytes:
        return _encoder.encode(self)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)
_owner_decoder = msgspec.msgpack.Decoder(str)


def decoded(row: Any) -> Header:
    """Decode the header row; a store without one is corrupt."""
    try:
        return _decoder.decode(row[0])
    except (TypeError, msgspec.DecodeError) as error:
        raise StoreCorrupt("the store's header row cannot be read") from error


def admit(
    connection: sqlite3.Connection, file: StoreFile, clock: Clock, machine: MachineId, *, adopt: bool
) -> None:
    """Check a file that was just opened, or create the store in it; refuse a file that we must not write.

    Call it inside a write transaction. It is idempotent, so several processes may call it.
    """
    if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        connection.execute(TABLE)
        boot_us = micros(clock)
        base_us = max(1_000_000, int(clock.wall() * 1_000_000))
        head = Header(0, machine.boot, base_us, boot_us, base_us + AHEAD_US)
        rows = {FORMAT_KEY: b"%d" % FORMAT, OWNER_KEY: _encoder.encode(machine.id), HEAD_KEY: head.encoded()}
        connection.executemany(PUT, rows.items())
        return
    check_format(connection, file)
    head = decoded(connection.execute(GET, (HEAD_KEY,)).fetchone())
    if not needs_rebase(head, clock, machine):
        return  # the same boot, although a container may have another machine id
    if not adopt:
        refuse_other_machine(file.path, MachineId(_owner(connection), head.boot), machine)
    rows = {
        OWNER_KEY: _encoder.encode(machine.id),
        HEAD_KEY: head.rebased(machine.boot, micros(clock)).encoded(),
    }
    connection.executemany(PUT, rows.items())


def is_admitted(connection: sqlite3.Connection, file: StoreFile, clock: Clock, machine: MachineId) -> bool:
    """Return whether `admit` would write nothing: then opening the store needs no write lock."""
    if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        return False
    check_format(connection, file)
    return not needs_rebase(decoded(connection.execute(GET, (HEAD_KEY,)).fetchone()), clock, machine)


def check_format(connection: sqlite3.Connection, file: StoreFile) -> None:
    """Refuse a file that another release, or another program, wrote."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    row = connection.execute(GET, (FORMAT_KEY,)).fetchone() if "kv" in tables else None
    if row is None:
        raise StoreFormat(
            f"{file.path} is a SQLite database, but not a store", hint="choose another file name"
        )
    try:
        number = int(row[0])
    except ValueError:
        raise StoreCorrupt(f"{file.path}: the format row cannot be read") from None
    if number > FORMAT:
        raise StoreFormat(f"{file.path} has format {number}, but this release supports {FORMAT}")
    if number < FORMAT:
        raise StoreFormat(
            f"{file.path} has format {number}, but this release supports {FORMAT}",
            hint="an older release wrote the file; upgrade one release at a time, and open the file once"
            " with each of these releases",
        )


def needs_rebase(head: Header, clock: Clock, machine: MachineId) -> bool:
    """Return whether the machine has rebooted, or is another machine.

    The boot clock never runs back within one boot. So a clock behind the stored time also shows a reboot.
    """
    return head.boot != machine.boot or micros(clock) < head.boot_us


def _owner(connection: sqlite3.Connection) -> str:
    row = connection.execute(GET, (OWNER_KEY,)).fetchone()
    try:
        return _owner_decoder.decode(row[0])
    except (TypeError, msgspec.DecodeError) as error:
        raise StoreCorrupt("the store's owner row cannot be read") from error
