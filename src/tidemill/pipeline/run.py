"""Running a pipeline in this process: a runner, with the user's own session where one was given."""

import contextlib
import threading
from typing import TYPE_CHECKING

from tidemill.cluster.leases import TTL_S, LeaseTiming
from tidemill.crash import Crashed
from tidemill.events import Emit, ignore
from tidemill.pipeline import run_report as report
from tidemill.pipeline.run_report import Report
from tidemill.runner.part_futures import resource_of
from tidemill.runner.presence import OwnPresence, Presence
from tidemill.runner.runner import Runner
from tidemill.runner.slots import slot
from tidemill.spark.sessions import pin
from tidemill.views.spark.malloc import keep_memory

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

THREADS = 4


def run(
    pipeline: "Pipeline",
    *,
    watch: bool = False,
    emit: Emit = ignore,
    stop: threading.Event | None = None,
    ttl_s: float = TTL_S,
) -> Report:
    """Be a runner of this pipeline until it has caught up, or, if it watches, until told to stop."""
    keep_memory()  # before there are threads
    site = pipeline.site
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(slot(site.place, site.chance))
        presence = OwnPresence(
            site.store,
            site.place.cluster,
            own.node_id,
            epoch=own.epoch,
            names=frozenset({resource_of(pipeline.name)}),
            threads=THREADS,
            clock=site.clock,
            chance=site.chance,
            emit=emit,
            timing=LeaseTiming(ttl_s),
        )
        presence.start()
        try:
            found = run_as(pipeline, presence, watch=watch, emit=emit, stop=stop)
        except Crashed:
            presence.abandon()
            raise
        except BaseException:  # interrupted, say: whoever comes next waits for no lease of ours
            presence.close()
            raise
        presence.close()
        return found


def run_as(
    pipeline: "Pipeline",
    presence: Presence,
    *,
    watch: bool = False,
    emit: Emit = ignore,
    stop: threading.Event | None = None,
    threads: int = THREADS,
    starts: bool = True,
) -> Report:
    """Run as a node that somebody keeps in the list."""
    site = pipeline.site
    began = site.clock.monotonic()
    plan = pipeline.plan()
    plan.apply(presence.node.id, emit)
    with site.spark() as spark:
        pin(spark)  # planning has called functions of the user's
        runner = Runner(
            site.store,
            site.keys,
            site.objects,
            site.place.key,
            presence,
            plan.program,
            spark,
            threads=threads,
            clock=site.clock,
            chance=site.chance,
            emit=emit,
        )
        tally = runner.run(watch=watch, starts=starts, stop=stop)
    return report.of(pipeline.name, tally, site.clock.monotonic() - began)
