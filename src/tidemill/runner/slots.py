"""Give each live runner in a home a unique number, its slot.

A runner takes the first free number with an exclusive lock on `runners/N.lock`. The kernel releases the lock
when the process ends, however it ends. So the new holder of the lock knows that the previous holder is dead,
and takes over its name, `runner-N`. Joining under this name raises the epoch, which ends all claims of the
dead runner at once, before its lease expires.

The epochs of a name must never repeat, even after its entry has left the node list. So the file counts the
starts, and each start has its own range of epochs. If several machines share a store, names are random, and
the claims of a dead runner end only when its lease expires.
"""

import contextlib
import fcntl
import os
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidemill.cluster.member import random_id
from tidemill.errors import UsageError
from tidemill.futures.home import ClusterAddress

FOLDER = "runners"
MOST_RUNNERS = 1_000
EPOCHS_PER_START = 1 << 24
"""How many epochs each start may use. A node begins a new epoch when its lease was lost or its child died."""


class Slot(msgspec.Struct, frozen=True):
    """A runner's name. All its epochs are above `epoch`."""

    node_id: str
    epoch: int = 0


@contextlib.contextmanager
def slot(place: ClusterAddress, chance: random.Random) -> Iterator[Slot]:
    """Reserve a slot in the home for the duration of the block. Without a home, use a random name."""
    if not place.home:
        yield Slot(f"runner-{random_id(chance)}")
        return
    folder = Path(place.home) / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(MOST_RUNNERS):
        fd = _lock(folder / f"{number}.lock")
        if fd is None:
            continue
        try:
            yield Slot(f"runner-{number}", _count_start(fd) * EPOCHS_PER_START)
        finally:
            os.close(fd)
        return
    raise UsageError(
        f"{place.home} already has {MOST_RUNNERS:,} runners, the maximum for one home",
        hint="use more threads in a runner instead",
    )


def _lock(path: Path) -> int | None:
    """Open and lock the file; return None if another process holds the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _count_start(fd: int) -> int:
    """Increase the number of starts in the file, sync it to disk, and return it."""
    text = os.pread(fd, 32, 0).split(b"\n")[0]
    start = int(text) + 1 if text.isdigit() else 1
    os.pwrite(fd, b"%d\n" % start, 0)
    os.fsync(fd)
    return start
