"""A node that takes from one source, of a bucket or a topic, until its input ends. Parts are read by Python.

usage: python -m tests.integration.source_node SETTINGS (JSON: kind, store, objects, at, name, ttl_s, …)

Tells {"ready": true}, then {"lot": …, "rows": n} for each lot it publishes and {"listed": stretch} for each
stretch of the listing that it looked at.
"""

import json
import random
import sys
import threading
from pathlib import Path
from typing import Any

from tests.unit.push_stage import convert
from tests.unit.sources_stage import BAD, ORDERS, SOURCE, PlainParts
from tidemill.clock import SYSTEM
from tidemill.cluster.keeper import Keeper
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.events import Event
from tidemill.lots import datasets
from tidemill.lots.datasets import Dataset
from tidemill.objects import open_objects
from tidemill.runner.presence import OwnPresence
from tidemill.sources import stretches
from tidemill.sources.bucket import bucket
from tidemill.sources.consuming import TopicReader
from tidemill.sources.declarations import SourceSpec
from tidemill.sources.drawing import Drawer
from tidemill.sources.events import BatchDrawn, StretchLooked, WindowPublished
from tidemill.sources.holdings import Holdings
from tidemill.sources.kafka import kafka
from tidemill.sources.keys import SourceKeys
from tidemill.sources.work import SourceWork, declare
from tidemill.store import open_store

DATASET = Dataset(name="orders", schema="id BIGINT, name STRING")
CLUSTER = "c"


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def emit(event: Event) -> None:
    if isinstance(event, WindowPublished | BatchDrawn):
        tell(lot=event.lot, rows=event.rows)
    elif isinstance(event, StretchLooked):
        tell(listed=event.stretch)


class Here:
    """What this process works with."""

    def __init__(self, given: dict[str, Any], store: Any) -> None:
        self.given = given
        self.store = store
        self.keys = SourceKeys(CLUSTER)
        self.objects = open_objects(given["objects"], clock=SYSTEM, probe=False)
        self.chance = random.Random()
        self.over = threading.Event()

    def bucket(self, node: Node) -> Any:
        """One look, and one window."""
        place = bucket(self.given["at"], max_files=self.given["max_files"], stretches=3)
        spec = SourceSpec(
            id=SOURCE,
            pipeline="shop",
            dataset=ORDERS,
            schema=DATASET.schema,
            reading=place.reading,
            policy=place.policy,
            quarantine=BAD,
        )
        self.store.run(lambda tx: declare(tx, self.keys, spec))
        listing = place.listing()
        pause_s = self.given["pause_s"]

        class Parts(PlainParts):
            """Reads through the listing; every part takes its time, as it does on Spark."""

            def text_of(self, path: str) -> str:
                with listing.open(path) as file:
                    return file.read().decode()

        parts = Parts(Path("/"), self.objects, self.chance)
        parts.before = lambda _: (SYSTEM.wait(threading.Event(), pause_s), None)[1]
        work = SourceWork(
            spec,
            listing,
            store=self.store,
            keys=self.keys,
            node=node,
            objects=self.objects,
            parts=parts,
            clock=SYSTEM,
            chance=self.chance,
            keeper=Keeper(self.store, node.id, clock=SYSTEM, chance=self.chance),
            emit=emit,
        )

        def step() -> bool:
            work.look(fresh_s=1.0)
            return bool(work.work(most=1))

        return step

    def kafka(self, node: Node) -> Any:
        """One batch."""
        self.store.run(
            lambda tx: datasets.declare(
                tx, self.keys.publish.lots, Dataset(name=BAD.name, schema="file STRING, line BIGINT")
            )
        )
        spec = kafka(
            self.given["brokers"], self.given["at"], linger_s=0.1, max_records=self.given["max_records"]
        )
        drawer = Drawer(
            SOURCE,
            DATASET,
            BAD,
            store=self.store,
            keys=self.keys,
            node=node,
            objects=self.objects,
            clock=SYSTEM,
            chance=self.chance,
            emit=emit,
        )
        holdings = Holdings(
            SOURCE,
            store=self.store,
            keys=self.keys,
            node=node,
            clock=SYSTEM,
            chance=self.chance,
            ttl_s=self.given["ttl_s"],
        )
        reader = TopicReader(spec, drawer, convert, holdings)
        return lambda: bool(reader.consume().drawn.lot)


def main(given: dict[str, Any]) -> None:
    stretches.LEAST_FILES = given.get("least_files", stretches.LEAST_FILES)
    with open_store(given["store"]) as store:
        here = Here(given, store)
        store.run(lambda tx: datasets.declare(tx, here.keys.publish.lots, DATASET))
        ttl_s = given["ttl_s"]
        presence = OwnPresence(
            store, CLUSTER, given["name"], clock=SYSTEM, chance=here.chance, ttl_s=ttl_s, every_s=ttl_s / 5
        )
        presence.start()
        tell(ready=True)
        sys.stdin.readline()  # the word to begin
        threading.Thread(target=lambda: (sys.stdin.read(), here.over.set()), daemon=True).start()
        step, epoch = None, -1
        while not here.over.is_set():
            if not presence.alive():
                SYSTEM.wait(here.over, 0.05)
                continue
            node = presence.node
            if node.epoch != epoch:  # joined, or joined again
                step, epoch = getattr(here, given["kind"])(node), node.epoch
            try:
                if step is not None and not step():
                    SYSTEM.wait(here.over, 0.1)
            except LeaseLost:
                SYSTEM.wait(here.over, 0.05)
        presence.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
