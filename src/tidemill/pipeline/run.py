"""Run a pipeline as a node of its cluster: apply the plan, then process new data.

`run_as_node` needs a node. `Pipeline.run()` joins the cluster itself (`join_cluster`) and then calls
`run_as_node`. The child process of `tidemill run` also calls `run_as_node`, but there the supervisor holds
the lease of the node.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tidemill.cluster.leases import TTL_S, LeaseTiming
from tidemill.cluster.membership import ClusterContext
from tidemill.crash import Crashed
from tidemill.errors import SparkDied
from tidemill.events import Emit, ignore
from tidemill.lots import events
from tidemill.lots.keys import DatasetId
from tidemill.obs.event_log import all_of
from tidemill.obs.lineage import lineage_of
from tidemill.obs.traces import traces_of
from tidemill.pipeline import lineage, observing, reader, retention
from tidemill.pipeline.run_events import RunPlanned, SparkStarting
from tidemill.pipeline.run_report import Report, report_of
from tidemill.pipeline.selection import Selection
from tidemill.runner.part_futures import resource_of
from tidemill.runner.presence import OwnPresence, Presence
from tidemill.runner.program import Program
from tidemill.runner.runner import Runner
from tidemill.runner.slots import slot
from tidemill.spark.sessions import pin
from tidemill.views.spark.memory import keep_memory
from tidemill.views.steps import step_limit

if TYPE_CHECKING:
    from tidemill.pipeline.context import PipelineContext
    from tidemill.pipeline.pipeline import Pipeline

THREADS = 4


@contextlib.contextmanager
def join_cluster(pipeline: "Pipeline", emit: Emit = ignore, *, ttl_s: float = TTL_S) -> Iterator[Presence]:
    """Join the cluster as a node, and renew the node's lease until the end of the block."""
    keep_memory()  # must come before the first thread
    context = pipeline.context
    with slot(context.place, context.chance) as own_slot:
        cluster = ClusterContext(
            store=context.store,
            cluster=context.place.cluster,
            clock=context.clock,
            chance=context.chance,
            emit=emit,
            timing=LeaseTiming(ttl_s),
        )
        presence = OwnPresence(
            cluster,
            own_slot.node_id,
            epoch=own_slot.epoch,
            names=frozenset({resource_of(pipeline.name)}),
            threads=THREADS,
            objects=lambda: context.objects,
        )
        presence.start()
        try:
            yield presence
        except (Crashed, SparkDied):  # the next runner counts a death for each of our claims
            presence.abandon()
            raise
        except BaseException:  # such as an interrupt: the next runner must not wait for our lease
            presence.close()
            raise
        presence.close()


def run_as_node(
    pipeline: "Pipeline",
    presence: Presence,
    *,
    watch: bool = False,
    emit: Emit = ignore,
    stop: threading.Event | None = None,
    left_s: Callable[[], float] | None = None,
    threads: int = THREADS,
    starts: bool = True,
    selection: Selection | None = None,
) -> Report:
    """Apply the plan and run the pipeline, as a node whose lease the caller renews.

    - selection: what to start; None for everything. All declarations are applied nevertheless.
    - stop: set this event to end the run early.
    - left_s: returns how many seconds of the grace period remain after `stop` is set; see `Runner.run`.
    """
    context = pipeline.context
    started_at = context.clock.monotonic()
    with (
        observing.observed(pipeline, presence.node.id, emit, presence.timing) as emit_all,
        context.announcing_spark(
            lambda settings: emit_all(SparkStarting(pipeline=pipeline.name, where=settings.where))
        ),
    ):
        plan = pipeline.plan()
        context.store.run(lambda tx: step_limit.write(tx, context.keys, pipeline.name, pipeline.step_limit))
        plan.apply(presence.node.id, emit_all)
        program = plan.program if selection is None else _selected(plan.program, selection)
        emit_all(_planned(program, selection, watch=watch))
        retention.apply(pipeline)
        graph = lineage.graph_of(pipeline, plan.program)
        run = f"{presence.node.id} {presence.node.epoch} {started_at}"
        target = (pipeline.lineage, graph, pipeline.lineage_namespace)
        with (
            lineage_of(*target, run, emit_all, context.clock) as sent,
            traces_of(
                graph,
                emit_all,
                cluster=context.place.cluster,
                node=presence.node.id,
                lots_between=partial(_lots_between, context),
                clock=context.clock,
            ) as traced,
            context.spark() as spark,
        ):
            pin(spark)  # planning called functions of the user, which may have changed settings
            scope = context.scope_of(presence.node, all_of(emit_all, sent, traced), presence.timing)
            jobs = None if selection is None else selection.jobs
            runner = Runner(
                scope, context.place.key, presence, program, spark, threads=threads, selected=jobs
            )
            totals = runner.run(watch=watch, starts=starts, stop=stop, left_s=left_s)
        context.store_analyses()
    for name, row in reader.failed(pipeline).items():
        if row.is_aside:
            totals.failures.setdefault(f"view:{pipeline.name}/{name}", []).append(row.text)
    return report_of(pipeline.name, totals, context.clock.monotonic() - started_at)


def _lots_between(context: "PipelineContext", dataset: str, after: int, to: int, limit: int) -> list[str]:
    name, _, version = dataset.partition("@")
    id_, keys = DatasetId(name, version), context.keys.lots
    page = context.store.run(lambda tx: events.read(tx, keys, id_, after, min(limit, to - after)))
    return [event.lot for event in page]


def _selected(program: Program, selection: Selection) -> Program:
    """Leave out the tests of views that are not selected: no step of this run computes these views."""
    tests = {name: test for name, test in program.tests.items() if name in selection.views}
    return dataclasses.replace(program, tests=tests)


def _planned(program: Program, selection: Selection | None, *, watch: bool) -> RunPlanned:
    jobs = {*program.sources, *program.arcs, *program.groups} if selection is None else selection.jobs
    sources = [source for id_, source in program.sources.items() if id_ in jobs]
    return RunPlanned(
        pipeline=program.pipeline,
        sources={source.target.label: source.source.description for source in sources},
        arcs=len(program.arcs.keys() & jobs),
        views=sum(len(group.views) for id_, group in program.groups.items() if id_ in jobs),
        watch=watch,
        selected="" if selection is None else selection.text,
        together=() if selection is None else selection.together,
    )
