"""What tests let other processes do with segments: `python -m tests.integration.segment_child verb …`."""

import contextlib
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from tidemill import crash
from tidemill.futures.protocol.rows import Result
from tidemill.futures.values import layout, pickling
from tidemill.futures.values.flight import SegmentFetcher, SegmentServer, TlsCertificate
from tidemill.futures.values.result_storage import ResultStorage
from tidemill.futures.values.segment_writer import SegmentWriter
from tidemill.futures.values.segments import Segments, map_segment, sweep
from tidemill.futures.values.signatures import ClusterKey, Signer

SECRET = b"the key of the cluster of a test"


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def array(size: int) -> Any:
    import numpy as np

    return np.arange(size // 8, dtype=np.int64)


def store(folder: str, size: str) -> None:
    """A child of a worker: compute an array, store it, tell the result, end."""
    values = ResultStorage(
        Signer(ClusterKey(SECRET)), node="n", node_epoch=1, writer=SegmentWriter(Path(folder))
    )
    result = values.store(array(int(size)), b"i" * 16, 1)
    say(result=msgspec.json.encode(result).decode(), pid=os.getpid())


def load(root: str, encoded: str) -> None:
    """Another process of the host: read the array, and tell where its memory is."""
    values = ResultStorage(Signer(ClusterKey(SECRET)), root=Path(root))
    result = msgspec.json.decode(encoded, type=Result)
    value = values.load(result, b"i" * 16)
    start, pages = value.ctypes.data, Path("/proc/self/maps").read_text().splitlines()
    for line in pages:
        low, _, high = line.split()[0].partition("-")
        if int(low, 16) <= start < int(high, 16):
            place = line
            break
    say(
        sum=int(value.sum()),
        writeable=value.flags.writeable,
        own=value.flags.owndata,
        mapped=place,
        aligned=start % 64 == 0,
        descriptors=_descriptors(),
    )


def _descriptors() -> list[str]:
    """What this process has open."""
    descriptors = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them is closed by now
            descriptors.append(str(path.readlink()))
    return descriptors


def supervise(root: str, boot: str) -> None:
    """A supervisor that lives until its standard input ends."""
    with Segments.open(boot, quota_bytes=10**9, root=Path(root)) as segments:
        name = segments.writer().write("ab", 1, layout.plan(pickling.dump(b"x" * 100_000)))
        say(name=name, pid=os.getpid())
        sys.stdin.read()


def serve(root: str, size: str, chain: str = "", key: str = "") -> None:
    """A supervisor that serves one result, until its standard input ends."""
    signer = Signer(ClusterKey(SECRET))
    certificate = TlsCertificate(Path(chain), Path(key)) if chain else None
    with (
        Segments.open("server", quota_bytes=10**9, root=Path(root)) as segments,
        SegmentServer(
            segments.map, signer, certificate=certificate, advertise="localhost" if chain else ""
        ) as server,
    ):
        values = ResultStorage(
            signer, node="n", node_epoch=1, address=server.address, writer=segments.writer()
        )
        result = values.store(array(int(size)), b"i" * 16, 1)
        say(result=msgspec.json.encode(result).decode())
        for line in sys.stdin:
            if line.strip() == "delete":
                segments.delete(result.location.name)
                say(deleted=True)


def clone(root: str, encoded: str) -> None:
    """A worker on another host: fetch a result into a segment; by how much did our memory grow?"""
    result = msgspec.json.decode(encoded, type=Result)
    signer = Signer(ClusterKey(SECRET))
    import pyarrow.flight  # noqa: F401 - its own memory is not what is measured

    result = msgspec.structs.replace(
        result, location=msgspec.structs.replace(result.location, host="another host")
    )
    with Segments.open("clone", quota_bytes=10**9, root=Path(root)) as segments:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        values = ResultStorage(signer, writer=segments.writer(), fetcher=SegmentFetcher(signer))
        copy = values.clone(result, b"i" * 16)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        say(size=copy.size, grown_kb=grown)


def kills(root: str, times: str) -> None:
    """Start so many supervisors one after the other and kill each while it writes; how much is left then?

    Each has a child of its own, as a worker has, which lives on for a while: it must not keep the folder.
    """
    path = Path(root)
    image = layout.plan(pickling.dump(b"x" * 200_000))
    most = 0
    orphans = []
    for number in range(int(times)):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            segments = Segments.open(f"boot{number}", quota_bytes=10**9, root=path)
            writer = segments.writer()
            writer.write("ab", 1, image)
            writer.begin("cd", 1, 100_000)  # never sealed
            if os.fork() == 0:  # it sends its id: by then it has let go of the folder's lock
                os.write(write_end, os.getpid().to_bytes(4, "little"))
                signal.pause()
            while True:
                writer.write("ef", 1, image)
        orphans.append(int.from_bytes(os.read(read_end, 4), "little"))
        os.close(read_end)
        os.close(write_end)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        most = max(most, sum(1 for _ in path.iterdir()))
    swept = sweep(path)
    left = sorted(str(entry) for entry in path.rglob("*"))
    for orphan in orphans:
        os.kill(orphan, signal.SIGKILL)
    say(most=most, swept=swept, left=left)


def reserve(folder: str, size: str, times: str) -> None:
    """Reserve again and again; how often was there room?"""
    from tidemill.futures.values.segment_writer import LEDGER, ByteCounters

    ledger = ByteCounters(Path(folder) / LEDGER)
    sys.stdin.readline()
    say(granted=sum(ledger.reserve(int(size)) for _ in range(int(times))))


def touch(root: str, name: str) -> None:
    """Map a segment, tell so, wait until it is unlinked, read it."""
    view = map_segment(name, Path(root))
    say(mapped=True)
    sys.stdin.readline()
    say(sum=sum(view) % 1_000_003)


if __name__ == "__main__":
    crash.arm_from_environment()
    globals()[sys.argv[1]](*sys.argv[2:])
