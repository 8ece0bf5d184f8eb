"""Compacting the lots of a table from here, now: `table.compact()`, `tidemill compact TABLE` (LOT-37)."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidemill.errors import UsageError
from tidemill.events import Emit, ignore
from tidemill.lots import lots
from tidemill.lots.datasets import Dataset
from tidemill.pipeline import reader as reading
from tidemill.pipeline.context import Site
from tidemill.publish.projections import Projections
from tidemill.runner.compacting import Compacted, Compactor, on_spark
from tidemill.spark.lot_writer import TARGET_BYTES

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

PAGE = 500


def compact(
    pipeline: "Pipeline",
    name: str,
    wanted: Sequence[str] = (),
    *,
    target_bytes: int = TARGET_BYTES,
    emit: Emit = ignore,
    tell: Callable[[str, Compacted | None], None] = lambda _lot, _done: None,
) -> list[Compacted]:
    """Compact some lots of a table, or all; those whose files cannot be fewer are left as they are.

    - tell: is told of each lot that was looked at, with what became of it.
    """
    if name in pipeline.views:
        raise UsageError(
            f"{name} is a view, and views keep few files by themselves", hint="compact what it reads instead"
        )
    site = pipeline.site
    dataset = reading.declared(pipeline, name)
    found = []
    scope = dataclasses.replace(site.scope, emit=emit)
    with site.spark() as spark:
        compactor = Compactor(
            scope,
            on_spark(spark, site.storage),
            projections=Projections(scope),
            target_bytes=target_bytes,
        )
        for lot in wanted or _all(site, dataset):
            done = compactor.compact(dataset.id, lot)
            tell(lot, done)
            if done is not None:
                found.append(done)
    return found


def _all(site: Site, dataset: Dataset) -> Iterator[str]:
    after = ""
    while True:
        page = site.store.run(
            lambda tx, after=after: lots.listed(tx, site.keys.lots, dataset.id, after, PAGE)  # type: ignore[misc]
        )
        yield from (row.lot for row in page)
        if len(page) < PAGE:
            return
        after = page[-1].lot
