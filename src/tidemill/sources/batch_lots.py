"""Write a batch of pushed or fetched rows as one lot, in one process."""

from collections.abc import Mapping

import pyarrow as pa

from tidemill.cluster.nodes import Node
from tidemill.lots import lots
from tidemill.lots.datasets import DatasetRow, Drift, Kind
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.publish import attempts
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.manifests import Manifests
from tidemill.publish.parts import SinkWritten
from tidemill.schemas import ddl
from tidemill.scope import Scope
from tidemill.sources.keys import SourceKeys
from tidemill.spark.drift import RESCUED
from tidemill.spark.lot_writer import write_table
from tidemill.spark.operations import RowOperation, stored_table
from tidemill.store import Tx


def begin(
    tx: Tx,
    keys: SourceKeys,
    node: Node,
    source: str,
    attempt: str,
    dataset: DatasetId,
    quarantine: DatasetId | None = None,
) -> Hold:
    """Open an attempt to write the next lot of a dataset, and optionally a lot of its quarantine dataset."""
    lot = str(lots.next_append(tx, keys.publish.lots, dataset))
    targets = [Target(dataset, lot)]
    if quarantine is not None:
        targets.append(Target(quarantine, lot, optional=True))
    draft = Draft(id=attempt, author=source, lot=lot, targets=tuple(targets))
    return attempts.begin(tx, keys.publish, node, draft)


def stored(rows: pa.Table, dataset: DatasetRow) -> pa.Table:
    """Return rows as a lot stores them: upserts for a dataset with a key, otherwise appends."""
    operation = RowOperation.UPSERT if dataset.kind is Kind.KEYED else RowOperation.APPEND
    return stored_table(rows, dataset, operation)


def write(
    scope: Scope,
    hold: Hold,
    dataset: DatasetRow,
    rows: pa.Table,
    *,
    counts: Mapping[str, int],
    columns: str,
    quarantined: pa.Table | None = None,
) -> list[LotRow]:
    """Write the data and the manifests of a lot; return a `LotRow` for each lot, to publish.

    Args:
        scope: the node.
        hold: the attempt, opened by `begin`.
        dataset: the dataset of the lot.
        rows: the rows in the form that `stored` returns.
        counts: how many rows failed each check.
        columns: the columns of the lot if it adds new ones to the dataset; otherwise empty.
        quarantined: the rows of the quarantine lot; None if the source has no quarantine.
    """

    def write_data(folders: Mapping[DatasetId, str]) -> list[SinkWritten]:
        data, *other_folders = [
            (sink, write_table(table, scope.objects, folder))
            for (sink, folder), table in zip(folders.items(), (rows, quarantined), strict=False)
        ]
        sink, written = data
        of_rows = SinkWritten(
            dataset=sink,
            objects=written.objects,
            rows=written.rows,
            checks={**counts, **_rescued(dataset, rows)},
            schema=columns,
        )
        of_quarantine = [
            SinkWritten(dataset=sink, objects=written.objects, rows=written.rows)
            for sink, written in other_folders
        ]
        return [of_rows, *of_quarantine]

    fingerprint = ddl.parse(columns).fingerprint if columns else dataset.fingerprint
    return Manifests(scope.objects, scope.clock).write_lot(hold, write_data, {dataset.id: fingerprint})


def _rescued(dataset: DatasetRow, rows: pa.Table) -> dict[str, int]:
    """Count the rows with values that did not fit, if the dataset keeps such values."""
    if dataset.drift is not Drift.RESCUE:
        return {}
    column = rows.column(RESCUED)
    return {"rescued": len(column) - column.null_count}
