"""A stage for tests of sources without Spark: a real folder, one store, objects in memory or on disk.

Tasks run in this process: Python reads files of JSON lines and writes one object per sink. So the published
objects show what was read, and by which attempt.
"""

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.unit.lots_stage import Stage
from tidemill.cluster import nodes
from tidemill.cluster.nodes import Node
from tidemill.events import Event
from tidemill.lots import datasets
from tidemill.lots.checks import QUARANTINE_SCHEMA, quarantine_of
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject
from tidemill.objects.memory import MemoryObjects
from tidemill.objects.port import Objects
from tidemill.publish.manifests import Manifests
from tidemill.publish.parts import PartClaim, PartDone, PartEnd, PartFailed, PartTask, SinkWritten
from tidemill.scope import Scope
from tidemill.sources import windows
from tidemill.sources.file_ingestion import FileIngestion
from tidemill.sources.file_source import FileSource, FileSourceSpec
from tidemill.sources.folder import folder
from tidemill.sources.keys import SourceKeys
from tidemill.sources.source import source_id
from tidemill.sources.taken_files import TakenFile
from tidemill.store import Store, Tx
from tidemill.testing.fake_clock import FakeClock

LONG_US = 10**13
ORDERS = DatasetId("orders")
BAD = quarantine_of(ORDERS)
QUARANTINE = DatasetRow(name=BAD.name, version=BAD.version, schema=QUARANTINE_SCHEMA)
SOURCE = source_id("shop", "orders")
OLD_S = 1_600_000_000


class PlainParts:
    """Runs tasks here and now; `before` is called with each of them first."""

    def __init__(self, root: Path, objects: Objects, chance: random.Random) -> None:
        self.root = root
        self.objects = objects
        self.chance = chance
        self.before: Callable[[PartTask], None] = lambda _: None
        self.ran: list[PartTask] = []

    def run(self, tasks: Sequence[PartTask]) -> Iterator[PartEnd]:
        for task in tasks:
            try:
                self.before(task)
                self.ran.append(task)
                yield PartDone(task=task, written=self._made(task))
            except OSError as error:
                yield PartFailed(task=task, kind=type(error).__name__, message=str(error))

    def text_of(self, path: str) -> str:
        return (self.root / path).read_text()

    def _made(self, task: PartTask) -> tuple[SinkWritten, ...]:
        place = PartClaim(f"{self.chance.getrandbits(64):016x}", 1)
        good: list[Any] = []
        bad: list[Any] = []
        for item in task.inputs[0].objects:
            for number, line in enumerate(self.text_of(item.uri).splitlines(), 1):
                try:
                    good.append([item.uri, json.loads(line)])
                except ValueError:
                    bad.append([item.uri, number, line])
        written = []
        for sink, rows in zip(task.sinks, (good, bad), strict=True):
            written_objects = []
            if rows:
                info = self.objects.put(
                    place.data_prefix(task, sink) + "part-0.parquet", json.dumps(rows).encode()
                )
                written_objects = [StoredObject(uri=info.key, size=info.size, rows=len(rows), etag=info.etag)]
            written.append(SinkWritten(dataset=sink.dataset, objects=tuple(written_objects), rows=len(rows)))
        return tuple(written)


class SourceStage:
    """One folder, one store, any number of nodes."""

    def __init__(self, root: Path, store: Store | None = None, **policy: Any) -> None:
        self.root = root
        self.root.mkdir(exist_ok=True)
        self.stage = Stage(store, scan=False)
        self.store = self.stage.store
        self.clock: FakeClock = self.stage.clock
        self.objects = MemoryObjects(self.clock)
        self.keys = SourceKeys("c")
        self.chance = random.Random(5)
        self.told: list[Event] = []
        self.source: FileSource = folder(f"{root}/**/*.json", **policy)
        self.spec = FileSourceSpec(
            id=SOURCE,
            pipeline="shop",
            dataset=ORDERS,
            schema="id BIGINT",
            reading=self.source.reading,
            policy=self.source.policy,
            quarantine=BAD,
        )
        self.store.run(
            lambda tx: datasets.declare(
                tx, self.keys.publish.lots, DatasetRow(name="orders", schema="id BIGINT")
            )
        )
        self.store.run(lambda tx: datasets.declare(tx, self.keys.publish.lots, QUARANTINE))

    def put(self, path: str, *ids: int, body: str | None = None, age_s: float | None = None) -> None:
        """Write a file of JSON lines, with an old time by default."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(body if body is not None else "".join(f'{{"id":{number}}}\n' for number in ids))
        at = OLD_S if age_s is None else self.clock.wall() - age_s
        os.utime(target, (at, at))

    def node(self, name: str) -> Node:
        return self.store.run(
            lambda tx: nodes.join(tx, self.keys.publish.cluster, Node(id=name, epoch=0), LONG_US)
        )

    def scope(self, node: Node) -> Scope:
        return Scope(
            store=self.store,
            cluster="c",
            objects=self.objects,
            node=node,
            clock=self.clock,
            chance=self.chance,
            emit=self.told.append,
        )

    def ingestion(self, node: Node | str = "n1", **options: Any) -> FileIngestion:
        node = self.node(node) if isinstance(node, str) else node
        plain = PlainParts(self.root, self.objects, self.chance)
        plain.before = options.pop("before", plain.before)
        return FileIngestion(self.spec, self.source.listing(), self.scope(node), plain, **options)

    def run(self, node: Node | str = "n1") -> FileIngestion:
        ingestion = self.ingestion(node)
        ingestion.discover()
        ingestion.ingest()
        return ingestion

    # --- what is stored

    def published(self, dataset: DatasetId = ORDERS) -> list[Any]:
        """All rows of all lots, by position."""
        manifests = Manifests(self.objects, self.clock)
        rows = sorted(self.stage.rows_of(dataset), key=lambda row: row.position)
        records = []
        for row in rows:
            for item in manifests.lot_objects(row.manifest):
                records += json.loads(self.objects.get(item.uri)[0])
        return records

    def taken(self) -> dict[str, TakenFile]:
        return dict(self.store.run(lambda tx: taken_page(tx, self.keys, SOURCE, limit=100_000)))

    def open_windows(self) -> list[windows.AnyWindow]:
        return self.store.run(lambda tx: windows.open_windows(tx, self.keys, SOURCE))

    def heard(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]


def taken_page(
    tx: Tx, keys: SourceKeys, source: str, after: str = "", limit: int = 1000
) -> list[tuple[str, TakenFile]]:
    """A page of the taken files, by path."""
    lo, hi = keys.file.under(source)
    if after:
        lo = keys.file[source, after] + b"\x00"
    rows = tx.range(lo, hi, limit=limit, snapshot=True)
    decode = msgspec.msgpack.Decoder(TakenFile).decode
    return [(str(keys.file.unpack(row.key)[1]), decode(row.value)) for row in rows]


def ids(rows: Sequence[Any]) -> list[int]:
    return sorted(row[1]["id"] for row in rows)


__all__ = ["BAD", "ORDERS", "QUARANTINE", "SOURCE", "PlainParts", "SourceStage", "ids", "taken_page"]
