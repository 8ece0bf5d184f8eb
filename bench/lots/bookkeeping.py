"""Measure the cost of a lot without its job: a runner processes 200 lots of an arc whose parts take no time.

Everything is as in a real run (subscription, attempt, intent, future, claim, manifests, the one transaction,
projections, clean-up), but the part writes one small object instead of running Spark. The time for this is
subtracted.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path

from bench.lots.prefill import BODY, attempt_id, fill, manifest_key
from bench.report import Report, at_most
from tidemill.arcs import declarations
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.work import LotEnd
from tidemill.clock import SYSTEM
from tidemill.cluster import nodes
from tidemill.cluster.membership import ClusterContext
from tidemill.cluster.nodes import Node
from tidemill.futures.values.signatures import ClusterKey
from tidemill.lots import datasets
from tidemill.lots.datasets import DatasetRow
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import StoredObject
from tidemill.lots.states import LotState
from tidemill.objects.local import LocalObjects
from tidemill.publish.attempts import Hold
from tidemill.publish.parts import PartSink, PartTask, SinkWritten
from tidemill.publish.publisher import Publisher
from tidemill.runner import future_run
from tidemill.runner.in_process_worker import InProcessWorker
from tidemill.runner.loop import Loop
from tidemill.runner.node_work import Engine
from tidemill.runner.part_futures import PartFutures, resource_of
from tidemill.runner.presence import OwnPresence
from tidemill.runner.program import ArcProgram, Program
from tidemill.scope import Scope
from tidemill.store import Store, Tx, open_store
from tidemill.triggers import subscriptions
from tidemill.triggers.subscriptions import Terms
from tidemill.views.steps.commits import StepBatch, StepOutput
from tidemill.views.steps.keys import StepKeys

SIZES = (100, 10_000, 100_000)
LOTS = 200
SOURCE, SINK = DatasetId("orders"), DatasetId("clean")


class Tools:
    """Where the parts write, and how long it took."""

    def __init__(self, objects: LocalObjects) -> None:
        self.objects = objects
        self.took_s = 0.0


def make(task: PartTask) -> Sequence[SinkWritten]:
    """Write one object, as a job would."""
    tools: Tools = future_run.tools()
    began = time.perf_counter()
    (sink,) = task.sinks
    key = future_run.current().data_prefix(task, sink) + "part-00000.parquet"
    info = tools.objects.put(key, BODY)
    item = StoredObject(uri=key, size=info.size, rows=10, etag=info.etag)
    tools.took_s += time.perf_counter() - began
    return (SinkWritten(dataset=sink.dataset, objects=(item,), rows=10),)


def measure(report: Report, folder: Path) -> None:
    """Measure `bookkeeping_ms_100k` and its growth."""
    sizes = (20, 100) if report.quick else SIZES
    took = {
        size: per_lot_ms(report, folder / str(size), size, 10 if report.quick else LOTS) for size in sizes
    }
    raw = {"lots_before": list(took), "ms_per_lot": [round(value, 2) for value in took.values()]}
    report.figure("bookkeeping_ms_100k", took[sizes[-1]], raw, target=at_most(15))
    report.figure("bookkeeping_growth", took[sizes[-1]] / took[sizes[0]], target=at_most(1.5))


def per_lot_ms(report: Report, folder: Path, before: int, lots: int) -> float:
    """Return the milliseconds per lot of `lots` lots, in a home with `before` lots."""
    folder.mkdir(parents=True)
    chance = random.Random(3)
    objects = LocalObjects(folder / "objects", SYSTEM, chance)
    keys = StepKeys("bench")
    spec = ArcSpec(
        pipeline="bench", name="clean", reads=(SOURCE,), sinks=(PartSink(dataset=SINK),), max_concurrent=4
    )
    with open_store(f"sqlite://{folder}/store.db") as store:
        arc_keys = ArcKeys("bench")

        def declare(tx: Tx) -> None:
            for dataset in (SOURCE, SINK):
                datasets.declare(tx, keys.lots, DatasetRow(name=dataset.name, schema="id bigint"))
            declarations.declare(tx, arc_keys, spec)

        store.run(declare)
        report.say(f"filling a home with {before:,} lots")
        fill(store, arc_keys, objects, SOURCE, SINK, spec.id, before)
        store.run(
            lambda tx: subscriptions.subscribe(
                tx, keys.triggers, keys.lots, spec.id, Terms(sources=(SOURCE,)), {SOURCE: before}
            )
        )
        program = Program(
            pipeline="bench",
            datasets={},
            arcs={spec.id: ArcProgram(spec=spec, function=_nothing, where="")},
            sources={},
            groups={},
        )
        secret = ClusterKey(bytes(32))
        context = ClusterContext(store=store, cluster="bench", chance=chance)
        presence = OwnPresence(context, "runner-0", names=frozenset({resource_of("bench")}))
        presence.start()
        tools = Tools(objects)
        scope = _scope(store, objects, presence.node, chance)
        worker = InProcessWorker(
            scope, secret, presence, names={resource_of("bench")}, threads=4, tools=tools
        )
        worker.start()
        parts = PartFutures(scope, secret, make, check=worker.check)
        loop = Loop(scope, presence, program, Engine(parts=parts, compute=_no_views))
        _arrive(store, objects, keys, before, lots)
        began = time.perf_counter()
        totals = loop.run(watch=False)
        took = time.perf_counter() - began
        assert totals.arcs[spec.id].ended == {LotEnd.COMPLETE: lots}, totals
        loop.end()
        worker.drain()
        presence.close()
    return (took - tools.took_s) / lots * 1000


def _scope(store: Store, objects: LocalObjects, node: Node, chance: random.Random) -> Scope:
    return Scope(store=store, cluster="bench", objects=objects, node=node, chance=chance)


def _arrive(store: Store, objects: LocalObjects, keys: StepKeys, before: int, lots: int) -> None:
    """Publish the lots to process, as an append does; this is not timed."""
    node = store.run(lambda tx: nodes.join(tx, keys.cluster, Node(id="till", epoch=0), 10**12))
    publisher = Publisher(_scope(store, objects, node, random.Random(1)))
    for number in range(before + 1, before + lots + 1):
        attempt = attempt_id("till", number)
        hold = publisher.begin_append(SOURCE, attempt, None)
        assert isinstance(hold, Hold)
        row = LotRow(
            dataset=SOURCE,
            lot=hold.draft.lot,
            state=LotState.COMPLETE,
            manifest=manifest_key(SOURCE, 1),  # any manifest that lists one object
            attempt=attempt,
            rows=10,
            size=len(BODY),
        )
        publisher.commit_append(hold, row, None)


def _nothing() -> None:
    """Fail: no part calls this function."""


def _no_views(batch: StepBatch, attempt: str) -> tuple[StepOutput, ...]:
    raise AssertionError(f"there are no views to step: {batch} {attempt}")
