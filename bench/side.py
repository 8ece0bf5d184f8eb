"""One side of a comparison: a process that runs commands and measures seconds and CPU seconds.

Both sides start in the same way, so that only the work differs: a new interpreter, imports and warm-up done,
and no other side working at the same time. CPU seconds are those of the process, its children and its
servers. A PostgreSQL server that both sides use counts for the side that is working, because the other one is
idle.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import psutil

ROOT = Path(__file__).resolve().parents[1]


class SideFailed(Exception):
    """A side ended without an answer; its error is on stderr."""


class Timed(NamedTuple):
    """The answer of a side, and its CPU seconds."""

    answer: Any
    cpu_s: float


class Side:
    """A process that answers requests (`bench.answering`) inside a `with` block."""

    def __init__(
        self,
        module: str,
        *,
        python: str | Path = sys.executable,
        servers: Iterable[int] = (),
        settings: str = "",
    ) -> None:
        self.module = module
        self.settings = settings  # distinguishes it if the same module runs several times
        self._command = [str(python), "-m", module]
        self._servers = tuple(servers)
        self._process: subprocess.Popen[str] | None = None
        self.versions: dict[str, str] = {}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def file(self) -> str:
        """The file with the code that ran."""
        return self.module.replace(".", "/") + ".py"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.versions = self._read()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def ask(self, do: str, **arguments: Any) -> Any:
        """Run a command; return its answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended; reading reports this
        return self._read()

    def ask_timed(self, do: str, **arguments: Any) -> Timed:
        """Run a command; return its answer, and the CPU seconds of all its processes."""
        assert self._process is not None
        pids = (self._process.pid, *self._servers)
        before = cpu_seconds(pids)
        answer = self.ask(do, **arguments)
        return Timed(answer, max(0.0, cpu_seconds(pids) - before))

    def _read(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideFailed(f"{self.module} ended with {self._process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and answer.keys() == {"raised"}:
            raise SideFailed(f"{self.module}: {answer['raised']}")
        return answer

    def _end(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()  # its loop ends with its input
            self._process.wait(10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process = None


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the user and system time of these processes and of their descendants, live or ended."""
    total = 0.0
    for pid in pids:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue  # it ended after the listing: its parent has its time
            total += times.user + times.system + times.children_user + times.children_system
    return total
