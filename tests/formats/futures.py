"""Submit the futures of the frozen home: `python -m tests.formats.futures HOME FOLDER`.

It starts a worker and kills it while the worker holds a task, an actor and results. Then it submits futures
that stay pending, and exits without closing its client. So the leases, claims and handles of both stay in the
store. It prints the ids of the futures by name.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tidemill as tm
from tests.formats import tasks
from tests.servers.process import wait_until

LARGE = 300_000
HOST = "host-1"
"""What machines are called in the home."""

_WORKER = f"import socket; socket.gethostname = lambda: {HOST!r}; from tidemill.cli import main; main()"


def _worker(home: Path, folder: Path) -> "subprocess.Popen[bytes]":
    """A worker; what its tasks leave goes into the folder."""
    path = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            _WORKER,
            "worker",
            "--home",
            str(home),
            "--slots",
            "2",
            "--quiet",
            "--ttl",
            "4",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, tasks.HOLD: "1"},
        stderr=sys.stderr,
    )


def _until(ready: Callable[[], bool], what: str) -> None:
    if not wait_until(ready, timeout_s=120.0):
        raise SystemExit(f"it takes too long until {what}")


def submit(client: tm.Client, home: Path, folder: Path) -> dict[str, tm.Future[Any]]:
    """The futures by name, in every state."""
    worker = _worker(home, folder)
    made: dict[str, tm.Future[Any]] = {}
    client.limit("narrow", running=1)
    client.limit("slow", per_s=5.0)
    made["inline"] = client.submit(tasks.add, 1, y=2, on_unsatisfiable="wait")
    made["keyed"] = client.submit(tasks.add, 5, key="once", priority=3, queue="narrow", cpu=0.5)
    made["large"] = client.submit(tasks.repeated, "y", LARGE, durable=True, queue="slow")
    made["local"] = client.submit(tasks.repeated, "z", LARGE)
    made["put"] = client.put({"small": [1, 2.5, None]})
    made["put large"] = client.put("p" * LARGE)
    made["dependent"] = client.submit(tasks.length, made["large"])
    made["refused"] = client.submit(tasks.refuses, "because", retries=1)
    made["upstream"] = client.submit(tasks.add, made["refused"])
    made["retried"] = client.submit(tasks.fails_once, retries=2)
    made["killer"] = client.submit(tasks.kills_worker)
    actor = client.actor(tasks.Counter, 40)
    made["lost actor's call"] = actor.add(2)
    for future in list(made.values()):
        future.exception(timeout=120.0)
    client.pin(*made.values(), owner="tests")
    made["unsatisfiable"] = client.submit(tasks.add, 1, resources="crane", on_unsatisfiable="wait")
    made["cancelled"] = client.submit(tasks.add, 1, resources="crane", on_unsatisfiable="wait")
    made["cancelled"].cancel()
    _until(lambda: client.described(made["unsatisfiable"])[1] == "unsatisfiable", "nobody can run it")
    made["claimed"] = client.submit(tasks.waits)
    _until((folder / "began").exists, "the task began")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    made["pending"] = client.submit(tasks.add, 10, 20, ram="1MB", on_unsatisfiable="wait", deadline=86_400.0)
    made["blocked"] = client.submit(tasks.add, made["pending"], on_unsatisfiable="wait")
    late = client.actor(tasks.Counter, 7, on_unsatisfiable="wait")
    made["actor's call"] = late.add(1)
    made["actor's second call"] = late.add(made["pending"])
    made["released"] = client.put("r" * LARGE)
    return made


def main() -> None:
    home, folder = Path(sys.argv[1]), Path(sys.argv[2])
    socket.gethostname = lambda: HOST
    client = tm.connect(home=home)
    made = submit(client, home, folder)
    ids = {name: future.id.hex() for name, future in made.items()}
    client.handles.tick()
    sys.stdout.write(json.dumps(ids) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
