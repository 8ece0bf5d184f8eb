"""The worker process: `run_worker` opens everything a worker needs and runs its supervisor.

This module implements `tidemill worker`. Each worker has an *address* that no other running process can have.
The worker holds an exclusive lock on a file, and the address contains a random token from this file. A port
or a number alone would not be unique: two containers can have the same host name and separate temporary
folders. If the node list contains another node with the same address, that node is dead. The worker then
releases the dead node's claims at once, without waiting for its lease to expire (FUT-39).
"""

import contextlib
import fcntl
import os
import random
import selectors
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec

from tidemill.clock import SYSTEM, Clock
from tidemill.cluster.member import random_id
from tidemill.errors import UsageError
from tidemill.events import Emit, ignore
from tidemill.futures.home import ClusterAddress
from tidemill.futures.protocol.lanes import RUNNERS, Capacity
from tidemill.futures.values.flight import SegmentServer, TlsCertificate
from tidemill.futures.values.segments import Segments, host_id
from tidemill.futures.values.signatures import Signer
from tidemill.futures.worker import memory
from tidemill.futures.worker.janitor import Janitor
from tidemill.futures.worker.processes import drained_by_signals
from tidemill.futures.worker.settings import WorkerSettings
from tidemill.futures.worker.supervisor import WorkerSupervisor
from tidemill.futures.worker.wire import ChildHello
from tidemill.futures.worker.zygote import Zygote
from tidemill.objects import open_objects
from tidemill.store import open_store

RESULTS_SHARE = 0.5
"""The share of a worker's ram that results in memory may use."""

MOST_WORKERS = 1_000
MOST_TOKEN_BYTES = 64


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker serves results to other hosts. Without this, only the worker's own host can read them."""

    host: str = "127.0.0.1"
    port: int = 0
    chain: str = ""  # the file with the certificate chain, in PEM format
    key: str = ""
    advertise: str = ""
    roots: str = ""  # the file with the certificates to trust when fetching from other workers


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a worker that a user can set.

    A `cpu` or `ram` of 0 means everything that the machine has.
    """

    slots: int = 1
    cpu: float = 0.0
    ram: int = 0
    gpu: float = 0.0
    named: tuple[str, ...] = ()
    results_bytes: int = 0
    spill: str = ""
    serving: Serving | None = None
    with_parent: bool = False  # drain when the parent process ends, which closes standard input
    settings: WorkerSettings = WorkerSettings()

    def total(self) -> Capacity:
        """Return the total capacity of the node."""
        if any(name.startswith(RUNNERS) for name in self.named):
            raise UsageError(
                f"resource names that begin with {RUNNERS!r} are reserved for runners",
                hint="use another name, or start a runner with: tidemill run",
            )
        return Capacity(
            cpu=self.cpu or float(max(self.slots, os.cpu_count() or 1)),
            ram=self.ram or memory.total_bytes(),
            gpu=self.gpu,
            named=frozenset(self.named),
        )


def run_worker(
    place: ClusterAddress,
    options: WorkerOptions,
    *,
    zygote: Zygote | None = None,
    clock: Clock = SYSTEM,
    chance: random.Random | None = None,
    emit: Emit = ignore,
) -> None:
    """Run a worker until SIGTERM or SIGINT drains it. Only the main thread may call this.

    Args:
        place: the cluster.
        options: what the user has set.
        zygote: a zygote that the main thread has started already, to save time; by default, a new one.
        clock: the source of time.
        chance: the source of random numbers.
        emit: receives the events.
    """
    chance = chance if chance is not None else random.Random()
    node = random_id(chance)
    total = options.total()
    total = msgspec.structs.replace(total, named=total.named | {f"node:{node}"})  # futures can require it
    signer = Signer(place.key)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(open_store(place.store, clock=clock, chance=chance))
        segments = stack.enter_context(
            Segments.open(
                node,
                quota_bytes=options.results_bytes or int(total.ram * RESULTS_SHARE),
                spill=Path(options.spill) if options.spill else None,
            )
        )
        served_address = _serve(options.serving, segments, signer, stack)
        where = served_address or f"{socket.gethostname()}-{host_id()[:8]}"
        if options.with_parent:  # the parent waits for a worker with this process id; the node id is unique
            address = f"{where}/{node}/{os.getpid()}"
        else:
            address = stack.enter_context(own_address(place, where, token=node))
        hello = ChildHello(
            cluster=place.cluster,
            store=place.store,
            objects=place.objects,
            secret=place.key.secret,
            node=node,
            node_epoch=0,
            address=served_address,
            segments=str(segments.folder),
            roots=options.serving.roots if options.serving is not None else "",
            ttl_s=options.settings.timing.ttl_s,
        )
        settings = msgspec.structs.replace(
            options.settings, slots=options.slots, total=total, address=address
        )
        supervisor = WorkerSupervisor(
            store, hello, settings, zygote=zygote, segments=segments, clock=clock, chance=chance, emit=emit
        )
        if place.objects:
            stack.enter_context(
                Janitor(
                    store,
                    supervisor.keys,
                    lambda: open_objects(place.objects, clock=clock, probe=False),
                    lambda: supervisor.member.tenure is not None,
                    clock,
                )
            )
        with drained_by_signals(supervisor, supervisor.pool.wakeup):
            if options.with_parent:
                _drain_with_parent(supervisor)
            supervisor.run()


def _serve(serving: Serving | None, segments: Segments, signer: Signer, stack: contextlib.ExitStack) -> str:
    if serving is None:
        return ""
    if bool(serving.chain) != bool(serving.key):
        raise UsageError(
            "TLS needs both a certificate chain and a key",
            hint="pass both files; to run without TLS, pass neither",
        )
    certificate = TlsCertificate(Path(serving.chain), Path(serving.key)) if serving.chain else None
    server = stack.enter_context(
        SegmentServer(
            segments.map,
            signer,
            host=serving.host,
            port=serving.port,
            certificate=certificate,
            advertise=serving.advertise,
        )
    )
    return server.address


@contextlib.contextmanager
def own_address(place: ClusterAddress, where: str, token: str) -> Iterator[str]:
    """Yield an address that no other process has.

    The address consists of `where` and of the number and token of a file. The file is the first one that no
    other process has locked, and this process keeps it locked. The token also depends on the file's inode, so
    a copy of the file has another token. A worker that restarts and locks the same file has the same address
    again.

    Args:
        place: the cluster; each cluster has its own files.
        where: a name of this host, for people who read the address.
        token: a random text for a new file; an existing file keeps its token.
    """
    cluster = blake2b("\0".join(place.identity).encode(), digest_size=8).hexdigest()
    shared = Path(tempfile.gettempdir()) / f"tidemill-{os.geteuid()}-workers"
    folder = Path(place.home) / "workers" if place.home else shared
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.geteuid():
        raise UsageError(f"{folder} belongs to another user", hint="set TMPDIR to a folder that you own")
    for number in range(MOST_WORKERS):
        fd = os.open(
            folder / f"{cluster}.{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        try:
            yield f"{where}/{cluster}.{number}.{_token(fd, token)}"
        finally:
            os.close(fd)
        return
    raise UsageError(
        f"this host already runs {MOST_WORKERS:,} workers of cluster {place.cluster!r}",
        hint="use more slots per worker (--slots)",
    )


def _token(fd: int, new: str) -> str:
    """Return the token of a locked file: a hash of the file's text and inode.

    The first process that locks the file writes `new` as its text.
    """
    token = os.pread(fd, MOST_TOKEN_BYTES, 0)
    if not token:
        token = new.encode()
        os.pwrite(fd, token, 0)
    file = os.fstat(fd)
    return blake2b(b"%b %d %d" % (token, file.st_dev, file.st_ino), digest_size=8).hexdigest()


def _drain_with_parent(supervisor: WorkerSupervisor) -> None:
    """Drain when standard input is closed: the parent process holds the other end, and it has ended."""

    def wait() -> None:
        with contextlib.suppress(OSError, ValueError), selectors.DefaultSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            while True:
                selector.select()
                if not os.read(sys.stdin.fileno(), 4096):
                    break
        supervisor.drain()

    threading.Thread(target=wait, name="parent", daemon=True).start()
