"""Describe the machine of a measurement: cores, load, versions, and how long the disk takes to sync."""

import importlib.metadata
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.side import ROOT


def describe() -> dict[str, Any]:
    """The state of the machine before a bench begins."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_name(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": load(),
    }


def load() -> list[float]:
    """Return the load average of the last 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of these packages."""
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """Create a folder below build/, on the disk of the repository: a temporary folder may be in memory."""
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{prefix}-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sync_ms(folder: Path, *, times: int = 100) -> dict[str, Any]:
    """Measure how long 4 KiB appended to a file take to reach the disk: every commit takes at least this."""
    took: list[float] = []
    path = folder / "sync-probe"
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    path.unlink()
    return {
        "file_system": _file_system(folder),
        "fdatasync_ms_median": round(statistics.median(took), 3),
        "fdatasync_ms_max": round(max(took), 3),
    }


def _file_system(folder: Path) -> str:
    mounts = sorted(psutil.disk_partitions(all=True), key=lambda mount: len(mount.mountpoint), reverse=True)
    inside: Iterable[str] = (m.fstype for m in mounts if folder.resolve().is_relative_to(m.mountpoint))
    return next(iter(inside), "unknown")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
