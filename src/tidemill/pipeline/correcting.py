"""Correcting lots of a dataset: replaced by other rows, or taken back (LOT-30).

The order is that of an append: the attempt's row, data, manifest, and one transaction that makes it the lot.
So a crash leaves the lot as it was, or as it is to be; what a dead one wrote is found by the cleaner.
"""

from typing import Any

from tidemill.errors import CorrectionRefused, LotConflict
from tidemill.lots import datasets
from tidemill.lots.datasets import Kind
from tidemill.lots.lots import LotRow
from tidemill.lots.producers import Receipt
from tidemill.pipeline.context import Site
from tidemill.pipeline.declarations import DatasetDecl
from tidemill.pipeline.writes import body_of, made, spelled
from tidemill.publish.attempts import Hold
from tidemill.spark.drift import evolved
from tidemill.spark.operations import Operation


def replace(site: Site, decl: DatasetDecl, lot: str, rows: Any) -> Receipt:
    """Make these rows the lot's next generation."""
    _refuse_keyed(decl, lot)
    body = body_of(decl, rows, Operation.APPEND)
    hold = _begun(site, decl, lot)
    return _published(site, hold, made(site, decl, body, hold))


def remove(site: Site, decl: DatasetDecl, lot: str, *, why: str = "") -> Receipt:
    """Take a lot back."""
    _refuse_keyed(decl, lot)
    hold = _begun(site, decl, lot, remove=True)
    return _published(site, hold, site.manifests.taken_back(hold, why or "taken back"))


def _refuse_keyed(decl: DatasetDecl, lot: str) -> None:
    if decl.dataset.kind is Kind.KEYED:
        raise CorrectionRefused(
            f"lot {lot} of {decl.id}, which has a key, cannot be corrected",
            hint="correct it by another upsert",
        )


def _begun(site: Site, decl: DatasetDecl, lot: str, *, remove: bool = False) -> Hold:
    dataset = spelled(decl.dataset)
    site.store.run(lambda tx: datasets.declare(tx, site.keys.lots, dataset, evolved))
    return site.publisher.begin_correction(decl.id, lot, site.scope.new_attempt(), remove=remove)


def _published(site: Site, hold: Hold, row: LotRow) -> Receipt:
    try:
        position = site.publisher.publish(hold, [row]).positions[0]
    except LotConflict as conflict:
        site.publisher.abandon(hold, conflict.message)
        raise CorrectionRefused(
            f"lot {row.lot} of {row.dataset} was corrected by somebody else meanwhile"
        ) from conflict
    wall_us = site.store.run(lambda tx: tx.wall())
    return Receipt(dataset=row.dataset, lot=row.lot, position=position, visible_at=wall_us)
