"""A node that takes from one source, of a bucket or a topic, until its input ends. Parts are read by Python.

usage: python -m tests.integration.source_node SETTINGS (JSON: kind, store, objects, at, name, ttl_s, …)

Prints {"ready": true}, then {"lot": …, "rows": n} for each lot it publishes and {"listed": shard} for each
shard of the listing that it listed.
"""

import json
import random
import sys
import threading
from pathlib import Path
from typing import Any

from tests import patience
from tests.unit.sources_stage import BAD, ORDERS, QUARANTINE, SOURCE, PlainParts
from tidemill.clock import SYSTEM
from tidemill.cluster.keeper import Keeper
from tidemill.cluster.leases import LeaseTiming
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.errors import LeaseLost
from tidemill.events import Event
from tidemill.lots import datasets
from tidemill.lots.datasets import DatasetRow
from tidemill.objects import open_objects
from tidemill.runner.presence import OwnPresence
from tidemill.scope import Scope
from tidemill.sources import listing_shards
from tidemill.sources.batch_publisher import BatchPublisher
from tidemill.sources.bucket import bucket
from tidemill.sources.events import BatchFetched, ListingShardDone, WindowPublished
from tidemill.sources.file_ingestion import FileIngestion
from tidemill.sources.file_source import FileSourceSpec
from tidemill.sources.kafka import kafka
from tidemill.sources.keys import SourceKeys
from tidemill.sources.source import SourceTarget
from tidemill.sources.topic_partitions import TopicPartitions
from tidemill.sources.topic_reader import TopicReader
from tidemill.store import open_store

DATASET = DatasetRow(name="orders", schema="id BIGINT, name STRING")
CLUSTER = "c"


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


published: list[str] = []


def emit(event: Event) -> None:
    if isinstance(event, WindowPublished | BatchFetched):
        published.append(event.lot)
        tell(lot=event.lot, rows=event.rows)
    elif isinstance(event, ListingShardDone):
        tell(listed=event.shard)


class Here:
    """What this process works with."""

    def __init__(self, given: dict[str, Any], store: Any) -> None:
        self.given = given
        self.store = store
        self.keys = SourceKeys(CLUSTER)
        self.objects = open_objects(given["objects"], clock=SYSTEM, probe=False)
        self.chance = random.Random()
        self.over = threading.Event()

    def scope(self, node: Node) -> Scope:
        return Scope(
            store=self.store,
            cluster=CLUSTER,
            objects=self.objects,
            node=node,
            chance=self.chance,
            emit=emit,
            timing=LeaseTiming(self.given["ttl_s"]),
        )

    def bucket(self, node: Node) -> Any:
        """One look, and one window; after `share` windows only when the file `lift` is there."""
        place = bucket(self.given["at"], max_files=self.given["max_files"], listing_shards=3)
        spec = FileSourceSpec(
            id=SOURCE,
            pipeline="shop",
            dataset=ORDERS,
            schema=DATASET.schema,
            reading=place.reading,
            policy=place.policy,
            quarantine=BAD,
        )
        self.store.run(lambda tx: datasets.declare(tx, self.keys.publish.lots, QUARANTINE))
        listing = place.listing()
        pause_s, share, lift = self.given["pause_s"], self.given["share"], Path(self.given["lift"])

        class Parts(PlainParts):
            """Reads through the listing; every part takes its time, as it does on Spark."""

            def text_of(self, path: str) -> str:
                with listing.open(path) as file:
                    return file.read().decode()

        parts = Parts(Path("/"), self.objects, self.chance)
        parts.before = lambda _: (SYSTEM.wait(threading.Event(), pause_s), None)[1]
        keeper = Keeper(self.store, node.id, clock=SYSTEM, chance=self.chance)
        ingestion = FileIngestion(spec, listing, self.scope(node), parts, keeper=keeper)

        def step() -> bool:
            ingestion.discover(fresh_s=1.0)
            if len(published) >= share and not lift.exists():
                return False
            return bool(ingestion.ingest(most=1))

        return step

    def kafka(self, node: Node) -> Any:
        """One batch."""
        self.store.run(
            lambda tx: datasets.declare(
                tx, self.keys.publish.lots, DatasetRow(name=BAD.name, schema="file STRING, line BIGINT")
            )
        )
        source = kafka(
            self.given["brokers"], self.given["at"], linger_s=0.1, max_records=self.given["max_records"]
        )
        scope = self.scope(node)
        target = SourceTarget(
            pipeline="shop", dataset=DATASET, schema=DATASET.schema, where="here", quarantine=BAD
        )
        partitions = TopicPartitions(SOURCE, scope)
        reader = TopicReader(source, BatchPublisher(target, scope), partitions)
        return lambda: bool(reader.read().batch.lot)


def main(given: dict[str, Any]) -> None:
    listing_shards.LEAST_FILES = given.get("least_files", listing_shards.LEAST_FILES)
    with open_store(given["store"]) as store:
        here = Here(given, store)
        store.run(lambda tx: datasets.declare(tx, here.keys.publish.lots, DATASET))
        context = ClusterContext(
            store=store, cluster=CLUSTER, chance=here.chance, timing=LeaseTiming(given["ttl_s"])
        )
        presence = OwnPresence(context, given["name"])
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
    patience.lengthen_transactions()
    main(json.loads(sys.argv[1]))
