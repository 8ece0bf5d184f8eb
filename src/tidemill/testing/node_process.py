"""Start nodes as child processes, read their events, and kill, pause, resume or stop them.

A child process ends when its parent ends, so that a killed test or demo leaves nothing running. Start nodes
from the main thread, because the kernel ends a child when the thread that started it ends.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from tidemill.clock import SYSTEM, Clock, poll
from tidemill.testing.node import STORE_VARIABLE
from tidemill.testing.threads import STUCK_S

NodeEvent = dict[str, Any]
"""One event that a node printed: `type`, `t`, and the fields of the event."""


class NodeProcess:
    """One running node, and the events that it has printed so far."""

    def __init__(
        self,
        store_url: str,
        cluster: str,
        name: str,
        *,
        ttl_s: float,
        slots: int = 4,
        arguments: Sequence[str] = (),
        listen: Callable[["NodeProcess", NodeEvent], None] | None = None,
        stderr: Path | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.name = name
        self.clock = clock
        self.all_events: list[NodeEvent] = []
        self._listen = listen
        self._stderr = stderr
        command = [sys.executable, "-m", "tidemill.testing.node", "--cluster", cluster, "--name", name]
        command += ["--slots", str(slots), "--ttl-s", str(ttl_s), "--parent", str(os.getpid()), *arguments]
        with (stderr or Path(os.devnull)).open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={
                    **os.environ,
                    STORE_VARIABLE: store_url,
                },  # not an argument, because the URL may contain a password
                start_new_session=True,  # Ctrl-C is for the parent process
            )
        self._reader = threading.Thread(target=self._read, name=f"events-{name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                event: NodeEvent = msgspec.json.decode(line)
                self.all_events.append(event)
                if self._listen is not None:
                    self._listen(self, event)

    # --- looking

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def id(self) -> str:
        """The node's id; empty until it has started."""
        return next((str(event["node"]) for event in self.events("Started")), "")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def events(self, kind: str) -> list[NodeEvent]:
        """Return the node's events of one kind."""
        return [event for event in list(self.all_events) if event["type"] == kind]

    def wait_for(self, kind: str, *, timeout_s: float, count: int = 1) -> NodeEvent:
        """Wait for `count` events of a kind, and return the last one. On failure, show the latest events."""
        ready = poll(
            lambda: len(self.events(kind)) >= count or not self._reader.is_alive(),
            self.clock,
            every_s=0.01,
            timeout_s=timeout_s,
        )
        events = self.events(kind)
        if len(events) < count:
            reason = f"ended with {self._process.poll()}" if ready else f"did not within {timeout_s:g} s"
            raise AssertionError(
                f"{self.name} printed {kind} {len(events)} times, not {count}: it {reason}\n{self}"
            )
        return events[count - 1]

    def __str__(self) -> str:
        lines = [msgspec.json.encode(event).decode() for event in self.all_events[-15:]]
        if self._stderr is not None and self._stderr.exists():
            lines += self._stderr.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"node {self.name}, pid {self.pid}:", *lines])

    # --- acting

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the node, and wait until it has ended."""
        self.signal(signal.SIGKILL)
        self.wait(timeout_s=STUCK_S)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def wait(self, *, timeout_s: float) -> int:
        """Wait until the node has ended and all its events are read; return its exit code."""
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def __enter__(self) -> "NodeProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
