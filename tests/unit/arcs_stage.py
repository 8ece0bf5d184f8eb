"""A stage for tests of arcs: a store, objects, nodes that work on lots, and parts that write real objects.

Rows are numbers, a data object is a JSON list of them. The port runs parts in this process, as durable
futures would elsewhere: by key, once, unless it is told to forget.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from tests.orphans import unlisted
from tests.unit.lots_stage import Stage
from tidemill import crash
from tidemill.arcs import lot_requests, lot_status
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.lot_status import LotStatus
from tidemill.arcs.work import ArcWork, LotOutcome
from tidemill.cluster.nodes import Node
from tidemill.errors import TidemillError
from tidemill.events import Event
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject
from tidemill.objects.memory import MemoryObjects
from tidemill.objects.port import Objects
from tidemill.publish import attempts
from tidemill.publish.attempts import Hold
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.manifests import Manifests
from tidemill.publish.parts import (
    PartClaim,
    PartDone,
    PartEnd,
    PartFailed,
    PartSink,
    PartTask,
    SinkWritten,
)
from tidemill.publish.projections import Projections
from tidemill.publish.publisher import Publisher
from tidemill.store import Store

LONG_US = 10**13
Function = Callable[[list[int]], dict[str, list[int]]]


class LocalParts:
    """Runs parts in this thread. `code` maps an arc's code digest to its function: numbers to numbers by
    sink.

    - failing: fails a part that reads one of these numbers, so often.
    - outage: why the parts that read an even number fail, if the part itself is not the cause.
    - memory: results by key, shared by the lives of a stage; None: every part is run again.
    - ran: the parts that really ran, as (attempt, part).
    - between: called in the middle of a part, before its last write.
    """

    def __init__(self, objects: Objects, code: dict[str, Function], name: str = "") -> None:
        self.objects = objects
        self.name = name  # of the port, if there are several
        self.code = code
        self.failing: dict[int, int] = {}
        self.outage: TidemillError | None = None
        self.memory: dict[str, PartDone] | None = {}
        self.ran: list[tuple[str, str]] = []
        self.between: Callable[[PartTask], None] | None = None
        self._ids = count(1)

    def run(self, tasks: Sequence[PartTask]) -> Iterator[PartEnd]:
        for task in tasks:
            result = None if self.memory is None else self.memory.get(task.key)
            if result is not None:
                yield msgspec.structs.replace(result, task=task, reused=True)
                continue
            end = self._run(task)
            if isinstance(end, PartDone) and self.memory is not None:
                self.memory[task.key] = end
            yield end

    def _run(self, task: PartTask) -> PartEnd:
        self.ran.append((task.attempt, task.part))
        place = PartClaim(f"{self.name}{next(self._ids):032x}", 1)
        numbers = self._read(task)
        groups = self.code[task.code](numbers)
        writes = []
        for sink in task.sinks:
            for group in sorted({n % 3 for n in groups[sink.dataset.name]}):
                rows = [n for n in groups[sink.dataset.name] if n % 3 == group]
                writes.append((sink, str(group), rows))
        stored: dict[DatasetId, list[StoredObject]] = {sink.dataset: [] for sink in task.sinks}
        for sink, group, rows in writes[:-1]:
            stored[sink.dataset].append(self._write(task, place, sink, group, rows))
        self._pause(task)
        bad = next((n for n in numbers if self.failing.get(n, 0) > 0), None)
        if bad is not None:  # it fails after some of its data is there
            self.failing[bad] -= 1
            outage = None if bad % 2 else self.outage
            return PartFailed(task=task, kind="ValueError", message=f"{bad} is bad", outage=outage)
        for sink, group, rows in writes[-1:]:
            stored[sink.dataset].append(self._write(task, place, sink, group, rows))
        written = [
            SinkWritten(dataset=dataset, objects=tuple(items), rows=sum(item.rows or 0 for item in items))
            for dataset, items in stored.items()
        ]
        return PartDone(task=task, written=tuple(written))

    def _write(
        self, task: PartTask, place: PartClaim, sink: PartSink, group: str, rows: list[int]
    ) -> StoredObject:
        folder = f"third={group}/" if sink.partition_by else ""
        key = f"{place.data_prefix(task, sink)}{folder}part-{group}.json"
        crash.point("parts.write.before")
        info = self.objects.put(key, json.dumps(rows).encode())
        crash.point("parts.write.after")
        return StoredObject(
            uri=key,
            size=info.size,
            rows=len(rows),
            format="json",
            partition={"third": group} if sink.partition_by else {},
        )

    def _pause(self, task: PartTask) -> None:
        between, self.between = self.between, None
        if between is not None:
            between(task)

    def _read(self, task: PartTask) -> list[int]:
        return [
            number
            for source in task.inputs
            for item in source.objects
            for number in json.loads(self.objects.get(item.uri)[0])
        ]


class ArcStage(Stage):
    """A stage with objects, one arc `clean` (orders -> cleaned, odd) and one `sum` (cleaned -> summed)."""

    def __init__(
        self, store: Store | None = None, objects: Objects | None = None, *, scan: bool = True
    ) -> None:
        super().__init__(store, scan=scan)
        self.chance = random.Random(11)
        self.keys = ArcKeys("c")
        self.objects = objects or MemoryObjects(self.clock)
        self.parts = LocalParts(
            self.objects,
            {
                "v1": lambda rows: {"cleaned": sorted(rows), "odd": [n for n in rows if n % 2]},
                "v2": lambda rows: {"cleaned": sorted(n * 10 for n in rows), "odd": []},
                "sum": lambda rows: {"summed": [sum(rows)]},
            },
        )
        self.orders, self.cleaned, self.odd, self.summed = (
            self.dataset(name) for name in ("orders", "cleaned", "odd", "summed")
        )
        self.tables = [self.orders, self.cleaned, self.odd, self.summed]
        self.told: list[Event] = []
        self.manifests = Manifests(self.objects, self.clock)

    # --- arcs

    def clean(self, **changes: Any) -> ArcSpec:
        values = {
            "pipeline": "shop",
            "name": "clean",
            "reads": (self.orders,),
            "sinks": (
                PartSink(dataset=self.cleaned, partition_by=("third",)),
                PartSink(dataset=self.odd),
            ),
            "code": "v1",
            **changes,
        }
        return ArcSpec(**values)

    def sum(self, **changes: Any) -> ArcSpec:
        values = {
            "pipeline": "shop",
            "name": "sum",
            "reads": (self.cleaned,),
            "sinks": (PartSink(dataset=self.summed),),
            "code": "sum",
            **changes,
        }
        return ArcSpec(**values)

    def worker(self, node: Node, **options: Any) -> ArcWork:
        scope = self.scope(node, emit=options.pop("emit", self.told.append))
        return ArcWork(scope, options.pop("parts", self.parts), **options)

    def cleaner(self, node: Node, **options: Any) -> Cleaner:
        return Cleaner(self.scope(node, emit=self.told.append), **options)

    def living(self, name: str = "n") -> Node:
        return self.node(name, LONG_US)

    def standing(self, spec: ArcSpec, lot: str) -> LotStatus:
        return self.run(lot_status.status, self.keys, spec.id, lot)

    def ask(self, spec: ArcSpec, lot: str) -> lot_requests.LotRequest:
        return self.run(lot_requests.request_retry, self.keys, spec.id, lot)

    def drain(self, spec: ArcSpec, worker: ArcWork, node: Node) -> list[LotOutcome]:
        """Run an arc's subscription until there is nothing more for it."""
        outcomes: list[LotOutcome] = []
        while True:
            self.page_all()
            due = [run for run in self.due() if run.name == spec.id]
            if not due:
                return outcomes
            if due[0].running:
                assert self.look(spec.id)
            ticket = self.start(node, spec.id)
            assert ticket is not None
            outcomes += worker.run(spec, ticket)

    # --- data

    def append(self, *groups: Sequence[int], dataset: DatasetId | None = None) -> str:
        """Append one lot of numbers: an object for each group, which is its partition if there are
        several.
        """
        dataset = dataset or self.orders
        publisher = Publisher(self.scope(self.living("producer")))
        hold = publisher.begin_append(dataset, self.scope().new_attempt(), None)
        assert isinstance(hold, Hold)

        def write(folders: Mapping[DatasetId, str]) -> list[SinkWritten]:
            stored = []
            for number, rows in enumerate(groups):
                body = json.dumps(list(rows)).encode()
                info = self.objects.put(f"{folders[dataset]}{number}.json", body)
                stored.append(
                    StoredObject(
                        uri=info.key,
                        size=info.size,
                        rows=len(rows),
                        format="json",
                        partition={"group": str(number)} if len(groups) > 1 else {},
                    )
                )
            return [SinkWritten(dataset=dataset, objects=tuple(stored), rows=sum(map(len, groups)))]

        (row,) = self.manifests.write_lot(hold, write, {})
        return publisher.commit_append(hold, row, None).lot

    def correct(self, lot: str, generation: int, *groups: Sequence[int]) -> None:
        """Publish another generation of an input lot."""
        other = self.append(*groups)
        row = next(row for row in self.rows_of(self.orders) if row.lot == other)
        self.add(self.orders, lot, generation, manifest=row.manifest, rows=row.rows, size=row.size)

    def rows(self, dataset: DatasetId, lot: str) -> list[int] | None:
        """Read a lot's numbers like a reader: the row in the store, then the manifest."""
        row = self.store.run(lambda tx: lots.current(tx, self.lots, dataset, lot))
        if row is None:
            return None
        items = self.manifests.lot_objects(row.manifest)
        numbers = [number for item in items for number in json.loads(self.objects.get(item.uri)[0])]
        assert len(numbers) == row.rows == sum(item.rows or 0 for item in items)
        assert sum(item.size for item in items) == row.size
        return sorted(numbers)

    def table(self, dataset: DatasetId) -> dict[str, list[int] | None]:
        return {event.lot: self.rows(dataset, event.lot) for event in self.events(dataset)}

    def keys_under(self, prefix: str) -> list[str]:
        return [info.key for info in self.objects.list(prefix)]

    def orphans(self) -> list[str]:
        """List data without a published manifest, manifests without a published lot, and rows of ended
        work.
        """
        roots = [
            self.run(lots.resolve, self.lots, dataset, event.lot, event.generation).manifest
            for dataset in self.tables
            for event in self.events(dataset)
        ]
        leftovers = unlisted(self.objects, self.manifests, roots)
        leftovers += self.run(attempts.open_ids, self.keys.publish)
        leftovers += [attempt.draft.id for attempt in self.run(attempts.to_sweep, self.keys.publish)]
        leftovers += [repr(row) for row in self.store.run(lambda tx: tx.range(*self.keys.running.all()))]
        return leftovers


def lapse(stage: ArcStage) -> None:
    """Let time pass until every node with the default ttl is gone."""
    stage.clock.advance(20)


def repair_projections(stage: ArcStage, projections: Projections, spec: ArcSpec) -> None:
    """Correct the projections of all lots of an arc and its sinks, as the cleaner does after an attempt."""
    for sink in spec.sinks:
        for row in stage.rows_of(sink.dataset):
            projections.repair_lot(sink.dataset, row.lot)
    for status in stage.run(lot_status.listed, stage.keys, spec.id):
        state = status.state.value
        projections.repair_arc(
            spec.pipeline, spec.version, spec.name, status.lot, lambda _, state=state: state
        )
