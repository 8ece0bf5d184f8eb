"""A runner without Spark: what its child does, and the supervisor as a process of its own.

    python -m tests.runner_main '{"home": …, "ttl_s": …, "arguments": {…}}'

tells events as JSON, one on a line.
"""

import atexit
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from tests import leases, patience, runner_parts
from tests.scopes import scope_of
from tests.worker_tasks import note
from tidemill.clock import SYSTEM
from tidemill.cluster.leases import LeaseTiming
from tidemill.errors import SparkDied
from tidemill.events import Event
from tidemill.futures.home import ClusterAddress
from tidemill.futures.values.signatures import ClusterKey
from tidemill.objects import open_objects
from tidemill.publish.parts import PartDone
from tidemill.runner.child import INTERRUPTED, RESTART, ChildContext
from tidemill.runner.in_process_worker import InProcessWorker
from tidemill.runner.part_futures import PartFutures, resource_of
from tidemill.runner.supervisor import RunnerOptions, run_runner


class Settings(msgspec.Struct, frozen=True):
    store: str
    objects: str
    folder: str
    home: str = ""
    main: str = "tests.runner_main:work"
    ttl_s: float = 15.0
    grace_s: float = 5.0
    most_pause_s: float = 5.0
    finishes: bool = False
    arguments: dict[str, Any] = {}


def work(context: ChildContext) -> int | None:
    """Make parts until asked to drain, or until our lease is over."""
    folder = context.arguments["folder"]
    note(folder, f"child {os.getpid()} epoch {context.presence.node.epoch}")
    worker = _worker(context)
    worker.start()
    while not context.draining.wait(0.01):
        if not context.presence.alive():
            worker.abandon()
            return RESTART
    given_s = context.grace_s

    def shorten() -> None:
        """A second signal ends the grace period."""
        while context.grace_s == given_s:
            threading.Event().wait(0.01)
        worker.drain(context.grace_s)

    threading.Thread(target=shorten, daemon=True).start()
    worker.drain(given_s)
    note(folder, f"drained {os.getpid()}")
    return None


def once(context: ChildContext) -> int | None:
    """Make two parts and end."""
    worker = _worker(context)
    worker.start()
    tasks = [runner_parts.part(n, context.arguments["folder"]) for n in range(2)]
    scope = scope_of(context.store, context.place.cluster, objects=_objects(context))
    parts = PartFutures(scope, context.place.key, runner_parts.make, check=worker.check)
    good = all(isinstance(end, PartDone) for end in parts.run(tasks))
    worker.stop()
    return 0 if good else 3


def wrong(context: ChildContext) -> int | None:
    """Say what is wrong."""
    raise LookupError("no pipeline here")


def unfinished(context: ChildContext) -> int | None:
    """Wait for a signal, as a run with much to do."""
    note(context.arguments["folder"], "unfinished")
    context.draining.wait()
    return INTERRUPTED


def dies_draining(context: ChildContext) -> int | None:
    """Die after a signal, without a result."""
    note(context.arguments["folder"], "draining")
    context.draining.wait()
    os._exit(0)


def leaves(context: ChildContext) -> int | None:
    """Call sys.exit(), as user code may."""
    note(context.arguments["folder"], "leaves")
    sys.exit(7)


def killed_at_exit(context: ChildContext) -> int | None:
    """Report a result, and die before the process has ended."""
    atexit.register(os.kill, os.getpid(), signal.SIGKILL)
    return 4


def threads_die(context: ChildContext) -> int | None:
    """Let a thread of the user die, and in the first life one of ours."""
    notes = Path(context.arguments["folder"]) / "lives"
    if notes.exists():
        note(context.arguments["folder"], "second life")
        context.draining.wait()
        return None
    notes.touch()

    def fail() -> None:
        raise LookupError("mine")

    thread = threading.Thread(target=fail, name="of-user")
    thread.start()
    thread.join()

    def read() -> None:
        raise ZeroDivisionError("fault")

    context.presence.read = read  # type: ignore[method-assign]
    context.draining.wait()
    return None


def spark_dies(context: ChildContext) -> int | None:
    """End like a child whose Spark has died, once."""
    notes = Path(context.arguments["folder"]) / "lives"
    if notes.exists():
        return 5
    notes.touch()
    raise SparkDied("the Java process of Spark (pid 1) ended: out of memory")


def uses_java(context: ChildContext) -> int | None:
    """Start the Java process of Spark, fill its temporary folder, and end. Deleting the files takes time."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    assert SparkContext._jvm is not None
    java = SparkContext._jvm.org.apache.spark.util.Utils
    folder = Path(java.createTempDir(context.arguments["folder"], "spark").toString())
    for n in range(10_000):
        (folder / str(n)).touch()
    note(context.arguments["folder"], str(folder))
    return 5


def young(context: ChildContext) -> int | None:
    """Die at once, until a file is there."""
    note(context.arguments["folder"], "young")
    if not (Path(context.arguments["folder"]) / "grown").exists():
        os._exit(0)
    return 5


def _objects(context: ChildContext) -> Any:
    return open_objects(context.place.objects, clock=SYSTEM)


def _worker(context: ChildContext) -> InProcessWorker:
    return InProcessWorker(
        scope_of(context.store, context.place.cluster, objects=_objects(context)),
        context.place.key,
        context.presence,
        names=[resource_of("shop")],
        threads=2,
    )


def tell(event: Event) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    leases.lengthen()
    patience.lengthen_transactions()
    given = msgspec.json.decode(sys.argv[1], type=Settings)
    place = (
        ClusterAddress.of_home(given.home)
        if given.home
        else ClusterAddress(store=given.store, objects=given.objects, key=ClusterKey(b"k" * 32))
    )
    sys.exit(
        run_runner(
            place,
            given.main,
            {"folder": given.folder, **given.arguments},
            RunnerOptions(
                names=frozenset({resource_of("shop")}),
                threads=2,
                timing=LeaseTiming(given.ttl_s),
                grace_s=given.grace_s,
                most_pause_s=given.most_pause_s,
                finishes=given.finishes,
            ),
            emit=tell,
        )
    )
