"""Windows: sets of files that become one lot, from the moment a node takes them until the lot is published.

`add` takes files and creates their window, in one transaction of bounded size: at most 500 rows for files,
and a few pages for their list (LOT-43). To work on a window, a node holds it together with the attempt that
writes its lot. A node that takes over a dead node's window also takes over the attempt, if the code and the
files are the same. The transaction that publishes the lot calls `publish`. So files are acknowledged together
with their lot, and not before (LOT-35).

State changes that free files (`shrink`, `drop`) clear the files' rows in the same transaction. The next
listing then takes the files as they are at that time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.sources import taken_files
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import ListedFile
from tidemill.sources.states import WindowEdge, WindowState, step
from tidemill.sources.taken_files import TakenFile
from tidemill.store import Tx

PAGE_BYTES = 48 * 1024
SECOND_US = 1_000_000
RETRY_FIRST_S, RETRY_MOST_S = 30, 3600


class WindowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a window has in every state."""

    source: str
    number: int
    files: int
    size: int
    listed_at: int  # store time, µs
    lot: str = ""  # the lot it becomes; set when a node first holds it
    failures: int = 0
    arrived_at: int | msgspec.UnsetType = msgspec.UNSET  # wall time, µs; earlier releases do not set it


class ListedWindow(msgspec.Struct, frozen=True, tag="listed"):
    """A window that waits for a node."""

    about: WindowInfo

    @property
    def state(self) -> WindowState:
        return WindowState.LISTED


class HeldWindow(msgspec.Struct, frozen=True, tag="held"):
    """A window that a node works on, under this attempt."""

    about: WindowInfo
    node: str
    node_epoch: int
    attempt: str

    @property
    def state(self) -> WindowState:
        return WindowState.HELD


class FailedWindow(msgspec.Struct, frozen=True, tag="failed"):
    """A window that could not be read. Any node can retry it from `retry_at` on (store time, µs)."""

    about: WindowInfo
    kind: str
    message: str
    retry_at: int

    @property
    def state(self) -> WindowState:
        return WindowState.FAILED


class PublishedWindow(msgspec.Struct, frozen=True, tag="published"):
    """A window whose files are in its lot."""

    about: WindowInfo
    attempt: str
    at: int

    @property
    def state(self) -> WindowState:
        return WindowState.PUBLISHED


class DroppedWindow(msgspec.Struct, frozen=True, tag="dropped"):
    """A window whose files all changed or disappeared before they were read."""

    about: WindowInfo
    at: int

    @property
    def state(self) -> WindowState:
        return WindowState.DROPPED


W = TypeVar("W", ListedWindow, HeldWindow, FailedWindow, PublishedWindow, DroppedWindow)
AnyWindow = ListedWindow | HeldWindow | FailedWindow | PublishedWindow | DroppedWindow
_decoder: msgspec.msgpack.Decoder[AnyWindow] = msgspec.msgpack.Decoder(
    ListedWindow | HeldWindow | FailedWindow | PublishedWindow | DroppedWindow
)
_page: msgspec.msgpack.Decoder[list[ListedFile]] = msgspec.msgpack.Decoder(list[ListedFile])


def add(
    tx: Tx,
    keys: SourceKeys,
    source: str,
    files: Sequence[ListedFile],
    *,
    again: bool = False,
    fence: Callable[[Tx], None] | None = None,
    digests: Mapping[str, bytes] | None = None,
) -> ListedWindow | None:
    """Take files into a new window, except those that another node has taken; return None if none is left.

    - again: also take a file if another version of it was taken before.
    - fence: called in this transaction, to check the lease of the node that listed the files.
    - digests: the digest of each file's content, if the source looks for copies.
    """
    if fence is not None:
        fence(tx)
    rows = taken_files.read_many(tx, keys, source, [file.path for file in files])
    new = [file for file, row in zip(files, rows, strict=True) if may_take(file, row, again=again)]
    if not new:
        return None
    raw = tx.get(keys.window_number[source], lock=True)
    number = (0 if raw is None else msgspec.msgpack.decode(raw, type=int)) + 1
    tx.set(keys.window_number[source], msgspec.msgpack.encode(number), quiet=True)
    size = sum(file.size for file in new)
    window = ListedWindow(
        WindowInfo(
            source=source, number=number, files=len(new), size=size, listed_at=tx.now(), arrived_at=tx.wall()
        )
    )
    taken_files.take(tx, keys, source, new, number, digests)
    _set_files(tx, keys, source, number, new)
    tx.set(keys.window[source, number], msgspec.msgpack.encode(window), quiet=True)
    tx.set(keys.open[source, number], b"")  # watched by nodes that wait for work
    return window


def may_take(file: ListedFile, row: TakenFile | None, *, again: bool) -> bool:
    """Return whether a file is new, or whether it has changed and `again` is set."""
    return row is None or (again and row.version != file.version)


def read(tx: Tx, keys: SourceKeys, source: str, number: int) -> AnyWindow | None:
    """Read one window."""
    raw = tx.get(keys.window[source, number])
    return None if raw is None else _decoder.decode(raw)


def open_windows(tx: Tx, keys: SourceKeys, source: str, after: int = 0, limit: int = 100) -> list[AnyWindow]:
    """Read a page of the windows that have not ended, oldest first. This is a hint: it may be stale."""
    lo, hi = keys.open[source, after] + b"\x00", keys.open.under(source)[1]
    numbers = [keys.open.unpack(row.key)[1] for row in tx.range(lo, hi, limit=limit, snapshot=True)]
    rows = tx.get_many([keys.window[source, number] for number in numbers])
    return [_decoder.decode(raw) for raw in rows if raw is not None]


def page(tx: Tx, keys: SourceKeys, source: str, after: int, limit: int) -> list[AnyWindow]:
    """Read a page of all windows, oldest first."""
    lo, hi = keys.window[source, after] + b"\x00", keys.window.under(source)[1]
    return [_decoder.decode(row.value) for row in tx.range(lo, hi, limit=limit, snapshot=True)]


def first_open(tx: Tx, keys: SourceKeys, source: str) -> int | None:
    """Return the number of the oldest window that has not ended; the transaction conflicts if it changes."""
    rows = tx.range(*keys.open.under(source), limit=1)
    return int(str(keys.open.unpack(rows[0].key)[1])) if rows else None


def files_of(tx: Tx, keys: SourceKeys, source: str, number: int) -> list[ListedFile]:
    """Read the files of a window that has not ended, sorted by path."""
    return [file for row in tx.range(*keys.page.under(source, number)) for file in _page.decode(row.value)]


def may_hold(tx: Tx, keys: SourceKeys, node: Node, window: AnyWindow, *, idle: bool = False) -> bool:
    """Return whether this node can work on a window now.

    It cannot while another live node holds the window, or before the retry time of a failed window. It also
    cannot hold a window twice under one epoch, unless it is idle.

    - idle: the caller knows that this node does not work on the window, even if the row names this node. An
      error, such as unavailable storage, may have ended its work.
    """
    match window:
        case ListedWindow():
            return True
        case FailedWindow():
            return window.retry_at <= tx.now()
        case HeldWindow():
            if window.node == node.id:
                return window.node_epoch < node.epoch or (idle and window.node_epoch == node.epoch)
            entry = nodes.read(tx, keys.publish.cluster, window.node)
            return entry is None or entry.epoch != window.node_epoch or entry.expires_at <= tx.now()
    return False


def hold(
    tx: Tx,
    keys: SourceKeys,
    node: Node,
    window: AnyWindow,
    attempt: str,
    lot: str,
    *,
    idle: bool = False,
) -> HeldWindow:
    """Hold a window under an attempt, which the caller opens or adopts in the same transaction.

    - idle: as in `may_hold`.
    """
    nodes.check(tx, keys.publish.cluster, node)
    if not may_hold(tx, keys, node, window, idle=idle):
        raise LeaseLost(
            f"window {window.about.number} of {window.about.source} cannot be taken:"
            f" it is {window.state.value}"
        )
    step(window.state, WindowEdge.TAKE_OVER if isinstance(window, HeldWindow) else WindowEdge.TAKE)
    about = msgspec.structs.replace(window.about, lot=lot)
    return _write(tx, keys, HeldWindow(about, node.id, node.epoch, attempt))


def check(tx: Tx, keys: SourceKeys, window: HeldWindow) -> HeldWindow:
    """Fence a write: raise `LeaseLost` unless we still hold the window under this attempt."""
    current = read(tx, keys, window.about.source, window.about.number)
    if current != window:
        raise LeaseLost(
            f"window {window.about.number} of {window.about.source} is no longer held by this attempt"
        )
    return window


def publish(tx: Tx, keys: SourceKeys, window: HeldWindow) -> PublishedWindow:
    """End a window whose lot is published in this transaction."""
    check(tx, keys, window)
    step(window.state, WindowEdge.PUBLISH)
    _end(tx, keys, window.about)
    return _write(tx, keys, PublishedWindow(window.about, window.attempt, tx.now()))


def give_back(tx: Tx, keys: SourceKeys, window: HeldWindow) -> ListedWindow:
    """Release a window without recording a failure, so that any node can take it."""
    check(tx, keys, window)
    step(window.state, WindowEdge.GIVE_BACK)
    tx.hint(keys.open[window.about.source, window.about.number])
    return _write(tx, keys, ListedWindow(window.about))


def fail(tx: Tx, keys: SourceKeys, window: HeldWindow, kind: str, message: str) -> FailedWindow:
    """Record that a window could not be read. Each failure doubles the wait until the next try."""
    check(tx, keys, window)
    step(window.state, WindowEdge.FAIL)
    wait_s = min(RETRY_MOST_S, RETRY_FIRST_S * 2 ** min(window.about.failures, 10))
    about = msgspec.structs.replace(window.about, failures=window.about.failures + 1)
    return _write(tx, keys, FailedWindow(about, kind[:100], message[:2000], tx.now() + wait_s * SECOND_US))


def leave_out(
    tx: Tx, keys: SourceKeys, window: HeldWindow, paths: Sequence[str]
) -> ListedWindow | DroppedWindow:
    """Remove files that changed or disappeared; the next listing takes them as they are at that time."""
    check(tx, keys, window)
    source, number = window.about.source, window.about.number
    left = [file for file in files_of(tx, keys, source, number) if file.path not in set(paths)]
    taken_files.release(tx, keys, source, paths, number)
    if not left:
        step(window.state, WindowEdge.DROP)
        _end(tx, keys, window.about)
        return _write(tx, keys, DroppedWindow(window.about, tx.now()))
    step(window.state, WindowEdge.SHRINK)
    tx.clear_range(*keys.page.under(source, number))
    _set_files(tx, keys, source, number, left)
    about = msgspec.structs.replace(window.about, files=len(left), size=sum(file.size for file in left))
    return _write(tx, keys, ListedWindow(about))


def _end(tx: Tx, keys: SourceKeys, about: WindowInfo) -> None:
    tx.clear_range(*keys.page.under(about.source, about.number))
    tx.clear(keys.open[about.source, about.number])


def _set_files(tx: Tx, keys: SourceKeys, source: str, number: int, files: Sequence[ListedFile]) -> None:
    """Write the list of files, in as many pages as it needs."""
    pages: list[list[ListedFile]] = [[]]
    room = PAGE_BYTES
    for file in files:
        size = len(file.path.encode()) + len(file.version) + 40
        if size > room:
            pages.append([])
            room = PAGE_BYTES
        pages[-1].append(file)
        room -= size
    for index, page in enumerate(pages):
        tx.set(keys.page[source, number, index], msgspec.msgpack.encode(page), quiet=True)


def _write(tx: Tx, keys: SourceKeys, window: W) -> W:
    about = window.about
    tx.set(keys.window[about.source, about.number], msgspec.msgpack.encode(window), quiet=True)
    return window
