"""A runner without Spark: what its child does, and the supervisor as a process of its own.

    python -m tests.runner_main '{"home": …, "ttl_s": …, "arguments": {…}}'

tells events as JSON, one on a line.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from tests import leases, runner_parts
from tests.scopes import scope_of
from tests.worker_tasks import note
from tidemill.clock import SYSTEM
from tidemill.cluster.leases import LeaseTiming
from tidemill.events import Event
from tidemill.futures.home import Place
from tidemill.futures.values.signatures import ClusterKey
from tidemill.objects import open_objects
from tidemill.publish.parts import PartDone
from tidemill.runner.child import AGAIN, Seat
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
    arguments: dict[str, Any] = {}


def work(seat: Seat) -> int | None:
    """InProcessWorker that make parts until told to drain, or until our lease is over."""
    folder = seat.arguments["folder"]
    note(folder, f"child {os.getpid()} epoch {seat.presence.node.epoch}")
    worker = _worker(seat)
    worker.start()
    while not seat.draining.wait(0.01):
        if not seat.presence.alive():
            worker.abandon()
            return AGAIN
    given_s = seat.grace_s

    def shorten() -> None:
        """A second signal ends the grace."""
        while seat.grace_s == given_s:
            threading.Event().wait(0.01)
        worker.drain(seat.grace_s)

    threading.Thread(target=shorten, daemon=True).start()
    worker.drain(given_s)
    note(folder, f"drained {os.getpid()}")
    return None


def once(seat: Seat) -> int | None:
    """Make two parts and end."""
    worker = _worker(seat)
    worker.start()
    tasks = [runner_parts.part(n, seat.arguments["folder"]) for n in range(2)]
    scope = scope_of(seat.store, seat.place.cluster, objects=_objects(seat))
    parts = PartFutures(scope, seat.place.key, runner_parts.make, check=worker.check)
    good = all(isinstance(end, PartDone) for end in parts.run(tasks))
    worker.stop()
    return 0 if good else 3


def wrong(seat: Seat) -> int | None:
    """Say what is wrong."""
    raise LookupError("no pipeline here")


def young(seat: Seat) -> int | None:
    """Die at once, until a file is there."""
    note(seat.arguments["folder"], "young")
    if not (Path(seat.arguments["folder"]) / "grown").exists():
        os._exit(0)
    return 5


def _objects(seat: Seat) -> Any:
    return open_objects(seat.place.objects, clock=SYSTEM)


def _worker(seat: Seat) -> InProcessWorker:
    return InProcessWorker(
        seat.store,
        seat.place.cluster,
        seat.place.key,
        seat.presence,
        names=[resource_of("shop")],
        threads=2,
        objects=_objects(seat),
    )


def tell(event: Event) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    leases.lengthen()
    given = msgspec.json.decode(sys.argv[1], type=Settings)
    place = (
        Place.of_home(given.home)
        if given.home
        else Place(store=given.store, objects=given.objects, key=ClusterKey(b"k" * 32))
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
            ),
            emit=tell,
        )
    )
