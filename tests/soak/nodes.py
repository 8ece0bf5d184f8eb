"""The nodes of the soak: `tidemill run --watch` and `tidemill worker --spark` as processes that can be hurt.

The number of threads of a node is unique. The node list shows this number, so the soak finds the entry of a
process there without any help of the product.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.servers.process import Child
from tests.soak import pipeline
from tests.soak.connections import TcpProxy
from tests.soak.pipeline import Site
from tidemill.clock import SYSTEM
from tidemill.obs.lines import counted

ROOT = Path(__file__).parents[2]
DISK_MB = 160
STEADY_TTL_S = 60.0
"""How long the leases of the steady runner last.

No fault is aimed at it, so it can lose a lease only because the machine is busy. Then its processes would be
replaced, and their memory could not be compared.
"""

FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))

# libfaketime moves the wall clock alone. Its own clock_nanosleep, which time.sleep uses, fails in that case.
SLEEP = """
import select, time

def sleep(seconds):
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)

time.sleep = sleep
"""


class Disk:
    """The folder for temporary files of a node; a small file system if this process may mount one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=1777", "tmpfs", str(folder)]
        self.mounted = (
            os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
        )

    def fill(self) -> int:
        """Write until there is no space left; return the bytes."""
        block, size = b"\0" * (1 << 16), 0
        with (self.folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                size += filler.write(block)
        return size

    def free(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def wipe(self) -> None:
        """Remove everything, as a machine does with its temporary files when it starts."""
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)


class Memory(NamedTuple):
    """The bytes of a node's Python processes and of its Java, and the processes that must not change.

    - lasting: the ids of the supervisor, of its child, and of Java.
    """

    python: int
    java: int
    lasting: tuple[int, ...]


class SoakNode:
    """One node: its process, its disk, its connections and its clock.

    - steady: the runner that no fault is aimed at. It connects to the servers directly.
    """

    def __init__(
        self, site: Site, name: str, command: str, threads: int, *, steady: bool = False, clock: bool = False
    ) -> None:
        self.name = name
        self.threads = threads
        self.steady = steady
        self.starts = 0
        self.started_at_us = 0
        self._site = site
        self._command = command
        self._folder = site.folder / name
        self._folder.mkdir()
        self.disk = None if steady else Disk(self._folder / "disk")
        self._temporary = self._folder / "tmp" if self.disk is None else self.disk.folder
        self._temporary.mkdir(exist_ok=True)
        self.clock = self._folder / "clock" if clock and FAKETIME else None
        self.store: TcpProxy | None = None
        self.objects: TcpProxy | None = None
        self._child: Child | None = None
        if self.clock is not None:
            (self._folder / "sitecustomize.py").write_text(SLEEP)
            self.set_clock(0)

    def connect(self, store: TcpProxy, objects: TcpProxy) -> None:
        """Use these proxies instead of the servers."""
        self.store, self.objects = store, objects

    # --- its process

    def start(self) -> None:
        """Start the process; call this from the main thread."""
        if self.disk is not None:
            self.disk.wipe()
        words = ["--threads", str(self.threads)] if self._command == "run" else ["--slots", str(self.threads)]
        if self.steady:
            words += ["--ttl", f"{STEADY_TTL_S:g}"]
        self.started_at_us = int(SYSTEM.wall() * 1e6)
        more = ["--watch"] if self._command == "run" else ["--spark", "soak.py:soak"]
        self._child = Child(
            [sys.executable, "-m", "tidemill.cli", self._command, *more, *words],
            log=self.log,
            env=self._environment(),
            cwd=self._site.folder,
        )
        self.starts += 1

    def _environment(self) -> dict[str, str]:
        paths = [str(ROOT), str(ROOT / "src")]
        environment = {
            **os.environ,
            "NO_COLOR": "1",
            "TMPDIR": str(self._temporary),
            "TIDEMILL_CACHE": str(self._temporary / "cache"),
        }
        if self.store is not None and self.objects is not None:
            environment[pipeline.STORE] = _with_port(self._site.options["store"], self.store.port)
            environment[pipeline.OBJECTS] = _with_port(self._site.options["objects"], self.objects.port)
        if self.clock is not None:
            paths.insert(0, str(self._folder))
            environment |= {
                "LD_PRELOAD": str(FAKETIME[0]),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            }
        return {**environment, "PYTHONPATH": os.pathsep.join(paths)}

    def describe(self) -> str:
        """Return how the node was started, in words."""
        words = (
            f"tidemill run, {counted(self.threads, 'thread')}"
            if self._command == "run"
            else f"tidemill worker --spark, {counted(self.threads, 'slot')}"
        )
        return words + (", never killed" if self.steady else "") + (", libfaketime" if self.clock else "")

    @property
    def log(self) -> Path:
        return self._folder / "log"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def tree(self) -> list[psutil.Process]:
        """Return the supervisor and every process below it; empty if the supervisor has ended."""
        if self._child is None:
            return []
        try:
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def part(self, name: str) -> list[psutil.Process]:
        """Return some processes of the node: `node` (all), `supervisor`, `child` or `java`."""
        tree = self.tree()
        match name:
            case "node":
                return tree
            case "supervisor":
                return tree[:1]
            case "child":
                return [process for process in tree if _quiet(process.ppid) == self.pid][:1]
            case _:
                return [process for process in tree if _quiet(process.name) == name]

    def end(self) -> None:
        """Kill the process and everything below it."""
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._child is not None:
            self._child.end()

    def drain(self, timeout_s: float) -> int | None:
        """Ask the process to end; return its exit code, or None if it had to be killed."""
        assert self._child is not None
        self._child.end(signal.SIGTERM, timeout_s=timeout_s)
        code = self._child._process.returncode
        return None if code == -signal.SIGKILL else code

    def close(self) -> None:
        self.end()
        if self.disk is not None:
            self.disk.close()

    # --- its clock and its memory

    def set_clock(self, shift_s: int) -> None:
        """Shift the wall clock that the node's processes see."""
        assert self.clock is not None
        new = self.clock.with_suffix(".new")
        new.write_text(f"{shift_s:+d}\n")
        new.replace(self.clock)

    def memory(self) -> Memory:
        """Return the bytes that the node uses; memory that processes share counts once."""
        python = java = 0
        lasting = []
        for process in self.tree():
            with contextlib.suppress(psutil.Error):
                is_java = process.name() == "java"
                size = process.memory_full_info().pss
                java, python = (java + size, python) if is_java else (java, python + size)
                if is_java or process.pid == self.pid or process.ppid() == self.pid:
                    lasting.append(process.pid)
        return Memory(python, java, tuple(lasting))

    def live_heap(self) -> int:
        """Return the bytes of the objects that Java still uses; 0 if this machine has no jcmd.

        Java's memory is reserved at its start, so only this number shows objects that it never releases.
        """
        for process in self.part("java"):
            command = ["jcmd", str(process.pid), "GC.class_histogram"]
            with contextlib.suppress(OSError, subprocess.SubprocessError, IndexError, ValueError):
                answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
                return int(answer.stdout.splitlines()[-1].split()[-1])
        return 0

    def strays(self) -> list[str]:
        """Return the processes that were started by this node, in any of its lives, and that still run."""
        strays = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("TMPDIR") == str(self._temporary):
                    strays.append(f"{process.name()} {process.pid} of {self.name}")
        return strays

    def temporary_files(self) -> list[str]:
        """Return what takes up space in the folder for temporary files, except the cache.

        Empty folders and sockets do not count. Hadoop keeps an empty folder there, under a fixed name.
        """
        return sorted(
            path.name for path in self._temporary.iterdir() if path.name != "cache" and _has_bytes(path)
        )


def _has_bytes(path: Path) -> bool:
    files = path.rglob("*") if path.is_dir() else [path]
    return any(file.is_file() and file.stat().st_size for file in files)


def _quiet(read: Callable[[], object]) -> object:
    try:
        return read()
    except psutil.Error:
        return None


def _with_port(url: str, port: int) -> str:
    """Return the address of a server, with another port of the loopback interface."""
    before, _, rest = url.partition("127.0.0.1:")
    return f"{before}127.0.0.1:{port}{rest.lstrip('0123456789')}"
