"""Compact the lots of a table on request: `table.compact()` and `tidemill compact` (LOT-37)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.errors import UsageError
from tidemill.events import Emit, ignore
from tidemill.pipeline.lot_info import lot_rows
from tidemill.pipeline.reader import stored_dataset
from tidemill.pipeline.tables import View
from tidemill.publish.projections import Projections
from tidemill.runner.compaction import Compacted, Compactor, on_spark
from tidemill.spark.lot_writer import TARGET_BYTES

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


def compact(
    pipeline: "Pipeline",
    name: str,
    only: Sequence[str] = (),
    *,
    target_bytes: int = TARGET_BYTES,
    emit: Emit = ignore,
    report: Callable[[str, Compacted | None], None] = lambda _lot, _result: None,
) -> list[Compacted]:
    """Compact the given lots of a table, or all of them. Skip lots whose number of files cannot be reduced.

    - report: called for each lot, with the result, or with None if the lot was skipped.
    """
    if isinstance(pipeline[name], View):  # an unknown name raises an error
        raise UsageError(
            f"{name} is a view; views are compacted automatically", hint="compact the tables that it reads"
        )
    context = pipeline.context
    dataset = stored_dataset(pipeline, name)
    results = []
    scope = dataclasses.replace(context.scope, emit=emit)
    with context.spark() as spark:
        compactor = Compactor(
            scope,
            on_spark(spark, context.storage),
            projections=Projections(scope),
            target_bytes=target_bytes,
        )
        for lot in only or (row.lot for row in lot_rows(pipeline, name)):
            result = compactor.compact(dataset.id, lot)
            report(lot, result)
            if result is not None:
                results.append(result)
    return results
