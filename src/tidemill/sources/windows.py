"""Windows: files that become one lot together, from the moment they are taken until the lot is published.

`add` takes files and makes their window, in one transaction of bounded size: at most 500 rows for files and
some pages that hold their list (LOT-43). Any node then holds a window to work on it, together with the
attempt at its lot; a node that goes on with a dead one's window goes on with its attempt as well, when code
and files are the same. `publish` is called in the transaction that makes the lot: the files are acknowledged
with it and not before (LOT-35).

Edges that give files back (`shrink`, `drop`) clear the files' rows in the same transaction, so that the next
listing finds them as they are then.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.sources import files
from tidemill.sources.files import TakenFile
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import Found
from tidemill.sources.states import WindowEdge, WindowState, step
from tidemill.store import Tx

PAGE_BYTES = 48 * 1024
SECOND_US = 1_000_000
RETRY_FIRST_S, RETRY_MOST_S = 30, 3600


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What stays of a window, whatever its state."""

    source: str
    number: int
    files: int
    size: int
    listed_at: int  # store time, µs
    lot: str = ""  # what it becomes; given when a node first holds it
    failures: int = 0


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """It waits for a node."""

    about: About

    @property
    def state(self) -> WindowState:
        return WindowState.LISTED


class Held(msgspec.Struct, frozen=True, tag="held"):
    """A node works on it, by this attempt."""

    about: About
    node: str
    node_epoch: int
    attempt: str

    @property
    def state(self) -> WindowState:
        return WindowState.HELD


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It could not be read; any node tries it again from `retry_at` (store time, µs) on."""

    about: About
    kind: str
    message: str
    retry_at: int

    @property
    def state(self) -> WindowState:
        return WindowState.FAILED


class Published(msgspec.Struct, frozen=True, tag="published"):
    """Its files are in its lot."""

    about: About
    attempt: str
    at: int

    @property
    def state(self) -> WindowState:
        return WindowState.PUBLISHED


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """None of its files was left."""

    about: About
    at: int

    @property
    def state(self) -> WindowState:
        return WindowState.DROPPED


W = TypeVar("W", Listed, Held, Failed, Published, Dropped)
AnyWindow = Listed | Held | Failed | Published | Dropped
_decoder: msgspec.msgpack.Decoder[AnyWindow] = msgspec.msgpack.Decoder(
    Listed | Held | Failed | Published | Dropped
)
_page: msgspec.msgpack.Decoder[list[Found]] = msgspec.msgpack.Decoder(list[Found])


def add(
    tx: Tx,
    keys: SourceKeys,
    source: str,
    found: Sequence[Found],
    *,
    again: bool = False,
    fence: Callable[[Tx], None] | None = None,
) -> Listed | None:
    """Take those of the files that nobody took meanwhile, as one window; None when there is none of them.

    - again: a file that was taken in another version is taken in this one too.
    - fence: the lease of whoever listed, checked in this transaction.
    """
    if fence is not None:
        fence(tx)
    rows = files.known(tx, keys, source, [file.path for file in found])
    new = [file for file, row in zip(found, rows, strict=True) if may_take(file, row, again=again)]
    if not new:
        return None
    raw = tx.get(keys.window_number[source], lock=True)
    number = (0 if raw is None else msgspec.msgpack.decode(raw, type=int)) + 1
    tx.set(keys.window_number[source], msgspec.msgpack.encode(number), quiet=True)
    size = sum(file.size for file in new)
    window = Listed(About(source=source, number=number, files=len(new), size=size, listed_at=tx.now()))
    files.take(tx, keys, source, new, number)
    _set_files(tx, keys, source, number, new)
    tx.set(keys.window[source, number], msgspec.msgpack.encode(window), quiet=True)
    tx.set(keys.open[source, number], b"")  # watched: there is work
    return window


def may_take(file: Found, row: TakenFile | None, *, again: bool) -> bool:
    """Is it new, or changed where changes are taken?"""
    return row is None or (again and row.version != file.version)


def read(tx: Tx, keys: SourceKeys, source: str, number: int) -> AnyWindow | None:
    """One window."""
    raw = tx.get(keys.window[source, number])
    return None if raw is None else _decoder.decode(raw)


def open_windows(tx: Tx, keys: SourceKeys, source: str, after: int = 0, limit: int = 100) -> list[AnyWindow]:
    """A page of the windows that are not ended, oldest first: to look at, not to decide by."""
    lo, hi = keys.open[source, after] + b"\x00", keys.open.under(source)[1]
    numbers = [keys.open.unpack(row.key)[1] for row in tx.range(lo, hi, limit=limit, snapshot=True)]
    found = tx.get_many([keys.window[source, number] for number in numbers])
    return [_decoder.decode(raw) for raw in found if raw is not None]


def first_open(tx: Tx, keys: SourceKeys, source: str) -> int | None:
    """The oldest window that is not ended; a decision by it holds when the transaction commits."""
    found = tx.range(*keys.open.under(source), limit=1)
    return int(str(keys.open.unpack(found[0].key)[1])) if found else None


def files_of(tx: Tx, keys: SourceKeys, source: str, number: int) -> list[Found]:
    """The files of a window that is not ended, by path."""
    return [file for row in tx.range(*keys.page.under(source, number)) for file in _page.decode(row.value)]


def may_hold(tx: Tx, keys: SourceKeys, node: Node, window: AnyWindow) -> bool:
    """Can this node work on it now? Not while another that holds it is alive, nor twice in one life."""
    match window:
        case Listed():
            return True
        case Failed():
            return window.retry_at <= tx.now()
        case Held():
            if window.node == node.id:
                return window.node_epoch < node.epoch
            entry = nodes.read(tx, keys.publish.cluster, window.node)
            return entry is None or entry.epoch != window.node_epoch or entry.expires_at <= tx.now()
    return False


def hold(tx: Tx, keys: SourceKeys, node: Node, window: AnyWindow, attempt: str, lot: str) -> Held:
    """Work on it from now on, by this attempt, which the caller opens or adopts in the same transaction."""
    nodes.check(tx, keys.publish.cluster, node)
    if not may_hold(tx, keys, node, window):
        raise LeaseLost(f"window {window.about.number} of {window.about.source} is {window.state.value}")
    step(window.state, WindowEdge.TAKE_OVER if isinstance(window, Held) else WindowEdge.TAKE)
    about = msgspec.structs.replace(window.about, lot=lot)
    return _write(tx, keys, Held(about, node.id, node.epoch, attempt))


def check(tx: Tx, keys: SourceKeys, held: Held) -> Held:
    """The fence: `LeaseLost` unless the window is ours, by this attempt, at this moment."""
    current = read(tx, keys, held.about.source, held.about.number)
    if current != held:
        raise LeaseLost(f"window {held.about.number} of {held.about.source} is no longer ours")
    return held


def publish(tx: Tx, keys: SourceKeys, held: Held) -> Published:
    """Its files are in its lot, which is published in this transaction."""
    check(tx, keys, held)
    step(held.state, WindowEdge.PUBLISH)
    _end(tx, keys, held.about)
    return _write(tx, keys, Published(held.about, held.attempt, tx.now()))


def give_back(tx: Tx, keys: SourceKeys, held: Held) -> Listed:
    """Another node may have it; nothing was wrong with it."""
    check(tx, keys, held)
    step(held.state, WindowEdge.GIVE_BACK)
    tx.hint(keys.open[held.about.source, held.about.number])
    return _write(tx, keys, Listed(held.about))


def fail(tx: Tx, keys: SourceKeys, held: Held, kind: str, message: str) -> Failed:
    """It could not be read; it waits, the longer the more often that happened."""
    check(tx, keys, held)
    step(held.state, WindowEdge.FAIL)
    wait_s = min(RETRY_MOST_S, RETRY_FIRST_S * 2 ** min(held.about.failures, 10))
    about = msgspec.structs.replace(held.about, failures=held.about.failures + 1)
    return _write(tx, keys, Failed(about, kind[:100], message[:2000], tx.now() + wait_s * SECOND_US))


def leave_out(tx: Tx, keys: SourceKeys, held: Held, paths: Sequence[str]) -> Listed | Dropped:
    """Go on without these files, which changed or are gone: the next listing takes what is there then."""
    check(tx, keys, held)
    source, number = held.about.source, held.about.number
    left = [file for file in files_of(tx, keys, source, number) if file.path not in set(paths)]
    files.release(tx, keys, source, paths, number)
    if not left:
        step(held.state, WindowEdge.DROP)
        _end(tx, keys, held.about)
        return _write(tx, keys, Dropped(held.about, tx.now()))
    step(held.state, WindowEdge.SHRINK)
    tx.clear_range(*keys.page.under(source, number))
    _set_files(tx, keys, source, number, left)
    about = msgspec.structs.replace(held.about, files=len(left), size=sum(file.size for file in left))
    return _write(tx, keys, Listed(about))


def _end(tx: Tx, keys: SourceKeys, about: About) -> None:
    tx.clear_range(*keys.page.under(about.source, about.number))
    tx.clear(keys.open[about.source, about.number])


def _set_files(tx: Tx, keys: SourceKeys, source: str, number: int, found: Sequence[Found]) -> None:
    """The list of files, in as many values as it needs."""
    pages: list[list[Found]] = [[]]
    room = PAGE_BYTES
    for file in found:
        size = len(file.path.encode()) + len(file.version) + 40
        if size > room:
            pages.append([])
            room = PAGE_BYTES
        pages[-1].append(file)
        room -= size
    for place, page in enumerate(pages):
        tx.set(keys.page[source, number, place], msgspec.msgpack.encode(page), quiet=True)


def _write(tx: Tx, keys: SourceKeys, window: W) -> W:
    about = window.about
    tx.set(keys.window[about.source, about.number], msgspec.msgpack.encode(window), quiet=True)
    return window
