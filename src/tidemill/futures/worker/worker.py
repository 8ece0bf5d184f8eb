"""A worker process put together: place, segments, address, supervisor, signals.

`run_worker` is all that `tidemill worker` does. A worker's *address* is where nobody else can be while it
lives: the port it serves results at, or a numbered lock on this host. So a worker that finds its address in
the node list under another id knows that one to be dead, and gives back what it held without waiting for its
lease (FUT-39).
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
"""Of a worker's ram, for results that are kept in memory."""

MOST_WORKERS = 1_000


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """How results are served to other hosts; without it a worker serves its own host alone."""

    host: str = "127.0.0.1"
    port: int = 0
    chain: str = ""  # a certificate, in PEM form
    key: str = ""
    advertise: str = ""
    roots: str = ""  # certificates to trust when fetching from others


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user says of a worker; 0 is for what the machine has."""

    slots: int = 1
    cpu: float = 0.0
    ram: int = 0
    gpu: float = 0.0
    named: tuple[str, ...] = ()
    results_bytes: int = 0
    spill: str = ""
    serving: Serving | None = None
    with_parent: bool = False  # drain when standard input is closed
    settings: WorkerSettings = WorkerSettings()

    def total(self) -> Capacity:
        """What the node has in all."""
        if any(name.startswith(RUNNERS) for name in self.named):
            raise UsageError(
                f"names that begin with {RUNNERS!r} are those of runners", hint="start it with: tidemill run"
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
    """Be a worker until SIGTERM or SIGINT has drained it; from the main thread alone.

    Args:
        place: the cluster.
        options: what the user says of the worker.
        zygote: one that was started while we were imported; from the main thread too.
        clock: of everything here.
        chance: of everything here.
        emit: is told what happens.
    """
    chance = chance if chance is not None else random.Random()
    node = random_id(chance)
    total = options.total()
    total = msgspec.structs.replace(total, named=total.named | {f"node:{node}"})  # so that it can be named
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
        served = _serve(options.serving, segments, signer, stack)
        address = served or stack.enter_context(_own_address(place, options))
        hello = ChildHello(
            cluster=place.cluster,
            store=place.store,
            objects=place.objects,
            secret=place.key.secret,
            node=node,
            node_epoch=0,
            address=served,
            segments=str(segments.folder),
            roots=options.serving.roots if options.serving is not None else "",
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
        raise UsageError("a certificate has a chain and a key", hint="give both files, or neither")
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
def _own_address(place: ClusterAddress, options: WorkerOptions) -> Iterator[str]:
    """An address on this host that is ours while we live: the first free number, locked."""
    host = f"{socket.gethostname()}-{host_id()[:8]}"
    if options.with_parent:  # its parent knows it by its process
        yield f"{host}/{os.getpid()}"
        return
    cluster = blake2b("\0".join(place.identity).encode(), digest_size=8).hexdigest()
    shared = Path(tempfile.gettempdir()) / f"tidemill-{os.geteuid()}-workers"
    folder = Path(place.home) / "workers" if place.home else shared
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.geteuid():
        raise UsageError(f"{folder} belongs to another user", hint="set TMPDIR to a folder of your own")
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
            yield f"{host}/{cluster}.{number}"
        finally:
            os.close(fd)
        return
    raise UsageError(f"{MOST_WORKERS:,} workers of one cluster on one host", hint="use more slots instead")


def _drain_with_parent(supervisor: WorkerSupervisor) -> None:
    """Whoever started us holds the other end of our standard input: when it is closed, they are gone."""

    def wait() -> None:
        with contextlib.suppress(OSError, ValueError), selectors.DefaultSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            while True:
                selector.select()
                if not os.read(sys.stdin.fileno(), 4096):
                    break
        supervisor.drain()

    threading.Thread(target=wait, name="parent", daemon=True).start()
