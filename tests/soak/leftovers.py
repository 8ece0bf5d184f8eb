"""What a pipeline leaves behind when every node has left: it must be nothing.

`clean_up` does what runners do regularly, as if a day had passed. `leftovers` then lists the objects that
nothing published leads to, leases that are still held, items on the heap, and rows of futures, attempts and
runs.
"""

from collections.abc import Iterator
from functools import partial

import tidemill as tm
from tests.futures_invariants import scan_invariants
from tests.orphans import unlisted
from tests.soak.oracle import ALL
from tests.soak.pipeline import NAME
from tidemill.arcs.keys import ArcKeys
from tidemill.cluster import leases, nodes
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.lots import lots
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.context import PipelineContext
from tidemill.publish import attempts
from tidemill.publish.cleaner import Cleaner
from tidemill.publish.manifests import Manifests
from tidemill.publish.projections import Projections
from tidemill.runner.keys import RunnerKeys
from tidemill.runner.part_futures import PartFutures
from tidemill.runner.part_maker import make_part
from tidemill.runner.upkeep import AttemptLeftovers
from tidemill.sources.keys import SourceKeys
from tidemill.store import Space, Tx
from tidemill.triggers import subscriptions
from tidemill.triggers.due import NEVER
from tidemill.triggers.heap import MINUTE_US
from tidemill.triggers.scheduler import Scheduler, open_heap
from tidemill.triggers.subscriptions import Waiting
from tidemill.views.steps import commits, groups
from tidemill.views.steps.collector import Collector, listed_run_files
from tidemill.views.trace.version_file import read_version

FUTURES = (
    "future spec ready assigned own dep cursor error copy key deadline stranded hold pin inbox garbage loose"
    " status"
)


def clean_up(pipeline: tm.Pipeline) -> None:
    """Delete what attempts, steps and the heap no longer need, without any grace period."""
    context = pipeline.context
    scope = context.scope
    parts = PartFutures(scope, context.place.key, make_part)
    cleaner = Cleaner(
        scope,
        drop=AttemptLeftovers(scope, parts, Projections(scope)),
        lists=partial(listed_run_files, scope.objects),
        grace_s=0.0,
        keep_s=0.0,
        readers_s=0.0,
    )
    while cleaner.clean():
        pass
    parts.forget_ended()
    collector = Collector(context.store, context.keys, NAME, context.objects, grace_s=0.0)
    while collector.collect():
        pass
    Scheduler(scope, open_heap(scope)).prune()


def leftovers(pipeline: tm.Pipeline) -> list[str]:
    """Return everything that is left although no node works any more; empty if all is well."""
    context = pipeline.context
    rows = context.store.run(lambda tx: list(_rows(tx, context)))
    items = open_heap(context.scope).listed(0, NEVER + MINUTE_US)
    return [*rows, *(f"heap item {item.name} epoch {item.epoch}" for item in items), *_objects(pipeline)]


def _rows(tx: Tx, context: PipelineContext) -> Iterator[str]:
    keys, cluster, now = context.keys, context.place.cluster, tx.now()
    for node in nodes.read_all(tx, keys.cluster):
        if node.id != context.node.id:
            yield f"node {node.id} ({node.kind}, {node.slots} threads)"
    for row in tx.range(*keys.cluster.lease.all()):
        lease = leases.decode(row.value)
        if lease.expires_at > now:
            yield f"lease {keys.cluster.lease.unpack(row.key)} of {lease.holder}"
    for row in tx.range(*keys.triggers.subscription.all()):
        subscription = subscriptions.decode(row.value)
        if not isinstance(subscription, Waiting) or subscription.tally.dead:
            yield f"{keys.triggers.subscription.unpack(row.key)[0]} is not waiting: {subscription}"
    for attempt in attempts.open_ids(tx, keys, "", ALL):
        yield f"open attempt {attempt}"
    arcs, runners, sources, futures = (
        ArcKeys(cluster),
        RunnerKeys(cluster),
        SourceKeys(cluster),
        FutureKeys(cluster),
    )
    spaces = {
        "running lot": arcs.running,
        "lot that failed": arcs.trouble,
        "requested lot": arcs.request,
        "open window": sources.open,
        "page of an open window": sources.page,
        "reader of a topic": sources.member,
        "debt of the heap": keys.triggers.owed,
        "part": runners.part,
        "wake row": keys.triggers.wake,
    }
    spaces |= {f"futures: {name}": getattr(futures, name) for name in FUTURES.split()}
    for what, space in spaces.items():
        yield from (f"{what} {_shown(space, row.key)}" for row in tx.range(*space.all()))
    yield from (f"future {problem}" for problem in scan_invariants(tx, futures))


def _shown(space: Space, key: bytes) -> str:
    return " ".join(part.hex() if isinstance(part, bytes) else str(part) for part in space.unpack(key))


def _objects(pipeline: tm.Pipeline) -> list[str]:
    """Return the keys of objects that no lot, step, table or state lists; also rows in quarantine."""
    context = pipeline.context
    tables = {*pipeline.names, *pipeline.quarantines} - set(pipeline.views)
    roots: list[str] = []
    problems: list[str] = []
    for name in tables:
        rows = context.store.run(
            lambda tx, name=name: lots.listed(tx, context.keys.lots, DatasetId(name), "", ALL)  # type: ignore[misc]
        )
        roots += [row.manifest for row in rows]
        if name in pipeline.quarantines and rows:
            problems.append(f"{len(rows)} lots in quarantine {name}")
    live: set[str] = set()
    for group in context.store.run(lambda tx: groups.listed(tx, context.keys, NAME)):
        steps = context.store.run(
            lambda tx, name=group.spec.name: commits.newest(tx, context.keys, NAME, name, ALL)  # type: ignore[misc]
        )
        roots += [output.changes for row in steps for output in row.outputs if output.changes]
        problems += [
            f"rows in quarantine at step {row.step} of {group.spec.name}" for row in steps if row.quarantined
        ]
        for view in group.spec.views:
            outputs = [output.table for row in steps for output in row.outputs if output.view == view.name]
            roots += _newest_two(outputs)
        for version in _newest_two([row.version for row in steps]):
            live |= {version, *read_version(context.objects, version).files()}
    orphans = unlisted(context.objects, Manifests(context.objects, context.clock), sorted({*roots}), live)
    keys = [info.key for info in context.objects.list("")]
    orphans += [key for key in keys if not key.startswith(("data/", "datasets/", "arcs/"))]
    orphans += [key for key in keys if key.startswith("arcs/") and not key.endswith("/complete.arc")]
    return problems + [f"object {key}" for key in orphans]


def _newest_two(names: list[str]) -> list[str]:
    """Return the current list and the one before it; readers may still use that one."""
    return list(dict.fromkeys(name for name in names if name))[:2]
