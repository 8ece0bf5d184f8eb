"""Futures: a list, and one future with its last failure and its lineage (FUT-58)."""

import msgspec

from tidemill.futures.client import queries
from tidemill.futures.client.lineage import Lineage, trace
from tidemill.futures.client.queries import FutureSummary
from tidemill.ui.model.answers import FutureDetail, FutureLine, FutureList, FutureNode
from tidemill.ui.model.reader import StoreReader

MOST_LINEAGE = 200


def page(
    reader: StoreReader, state: str = "", name: str = "", before: str = "", limit: int = 100
) -> FutureList:
    """Return a page of futures, newest first. `before` is the `next` of the page before."""
    listed = queries.list_page(
        reader.store,
        reader.futures,
        states=(state,) if state else (),
        name=name,
        before=bytes.fromhex(before),
        limit=limit,
    )
    return FutureList(items=tuple(_line(future) for future in listed.futures), next=listed.before.hex())


def _line(future: FutureSummary) -> FutureLine:
    return FutureLine(
        id=future.id,
        name=future.name,
        state=future.state,
        age_s=future.age_s,
        node=future.node,
        tries=future.tries,
        queue=future.queue,
        detail=future.detail,
    )


def detail(reader: StoreReader, future_id: str) -> FutureDetail:
    """Describe a future by its id or the beginning of its id."""
    id_ = queries.find_id(reader.store, reader.futures, future_id)
    details = queries.show_future(reader.store, reader.futures, id_)
    tree = trace(reader.store, reader.futures, id_, most=MOST_LINEAGE)
    spec, row, failure = details.spec, details.row, details.failure
    counts = {name: int(count) for name, count in msgspec.structs.asdict(row.tally).items() if count}
    return FutureDetail(
        id=id_.hex(),
        name=spec.name,
        state=row.state.value,
        age_s=details.age_s,
        owner=spec.owner,
        node=getattr(row, "holder", "") or getattr(row, "assigned", ""),
        status=details.status,
        queue=spec.queue,
        priority=spec.priority,
        max_retries=spec.max_retries,
        key=spec.key,
        parent=spec.parent.hex(),
        actor=spec.actor.hex(),
        counts=counts,
        copies=details.copies,
        failure_kind="" if failure is None else failure.kind,
        failure="" if failure is None else ": ".join(filter(None, (failure.type, failure.message))),
        traceback="" if failure is None else failure.traceback,
        failed_on="" if failure is None else failure.node,
        caused_by=() if failure is None else failure.upstream,
        lineage=tuple(_nodes(tree, 0)) if spec.inputs else (),
    )


def _nodes(tree: Lineage, depth: int) -> list[FutureNode]:
    node = FutureNode(
        depth=depth,
        id=tree.id.hex(),
        name=tree.name,
        state=tree.state,
        error=tree.error,
        again=tree.again,
        more=tree.more,
    )
    return [node, *(line for child in tree.children for line in _nodes(child, depth + 1))]
