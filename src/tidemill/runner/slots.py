"""Slots: in a home, a runner has a number that nobody else has while it lives.

The first free number is taken by an exclusive lock on `runners/N.lock`, which the kernel lets go of with the
process, however that ends. So whoever has the lock knows the runner that had it before to be dead, and goes
by its name, `runner-N`: joining under it raises the epoch, and whatever the dead one held is over at once,
instead of when its lease runs out.

Epochs of one name must never come again, even after its entry has left the list: the file counts lives, and
each life has a range of epochs of its own. Elsewhere (a store that several machines share) names are random,
and leases run out.
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
LIFE = 1 << 24
"""How many epochs a life has: a node joins again when its lease was lost, or its child has died."""


class Slot(msgspec.Struct, frozen=True):
    """A runner's name, and the epoch above which its own are."""

    node_id: str
    epoch: int = 0


@contextlib.contextmanager
def slot(place: ClusterAddress, chance: random.Random) -> Iterator[Slot]:
    """A slot of the place's home while inside; a random name where there is no home."""
    if not place.home:
        yield Slot(f"runner-{random_id(chance)}")
        return
    folder = Path(place.home) / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(MOST_RUNNERS):
        fd = _locked(folder / f"{number}.lock")
        if fd is None:
            continue
        try:
            yield Slot(f"runner-{number}", _next_life(fd) * LIFE)
        finally:
            os.close(fd)
        return
    raise UsageError(f"{MOST_RUNNERS:,} runners in one home", hint="use more threads instead")


def _locked(path: Path) -> int | None:
    """The open file with our lock on it; None when somebody else has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _next_life(fd: int) -> int:
    """Count this life, on disk before it begins."""
    text = os.pread(fd, 32, 0).split(b"\n")[0]
    life = int(text) + 1 if text.isdigit() else 1
    os.pwrite(fd, b"%d\n" % life, 0)
    os.fsync(fd)
    return life
