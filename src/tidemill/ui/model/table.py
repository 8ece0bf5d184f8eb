"""One table: its columns over time, its lots, its quarantine, and its neighbours."""

from functools import partial

from tidemill.errors import DatasetUnknown
from tidemill.lots import expiry, lots
from tidemill.lots.checks import quarantine_of
from tidemill.lots.keys import DatasetId
from tidemill.obs import declared_checks
from tidemill.pipeline import descriptions
from tidemill.store import Tx
from tidemill.ui.model import grid
from tidemill.ui.model.answers import CheckLine, LotPage, SchemaRevision, TableDetail
from tidemill.ui.model.catalog import Declarations, ViewEntry
from tidemill.ui.model.overview import ages, trigger_line
from tidemill.ui.model.reader import StoreReader

MOST_REVISIONS = 100
MOST_QUARANTINED = 1_000


def detail(reader: StoreReader, name: str, version: str = "") -> TableDetail:
    """Describe a table that is not a view; raise `DatasetUnknown` if there is none."""
    catalog = reader.catalog()
    table = find(catalog, name, version)
    row = catalog.datasets[table]
    keys = reader.keys.lots

    def read(tx: Tx) -> tuple[float | None, int, list[SchemaRevision]]:
        keep = expiry.policies(tx, keys).get(table)
        earlier = tx.range(*keys.columns.under(*table.parts), limit=MOST_REVISIONS, snapshot=True)
        revisions = [
            SchemaRevision(revision=_revision(keys.columns.unpack(old.key)), schema=old.value.decode())
            for old in earlier
        ]
        keep_s = None if keep is None else keep.keep_us / 1e6
        return keep_s, expiry.read(tx, keys, table).lots, revisions

    keep_s, expired, revisions = reader.run(read)
    quarantine = quarantine_of(table)
    held = []
    if quarantine in catalog.datasets:
        page = reader.run(partial(lots.newest, keys=keys, dataset=quarantine, limit=MOST_QUARANTINED))
        held = [lot for lot in page if lot.rows]
    spec = catalog.makers.get(table)
    owners = [pipeline for pipeline, retired in catalog.owners.get(table, {}).items() if not retired]
    checks = [
        check
        for pipeline in owners
        for check in reader.run(
            partial(declared_checks.read, keys=reader.observations, pipeline=pipeline, table=name)
        )
    ]
    limits = [age for pipeline in owners for age in ages(reader, pipeline) if age.table == name]
    return TableDetail(
        table=grid.table_line(reader, catalog, table),
        schemas=(*revisions, SchemaRevision(revision=row.revision, schema=row.schema)),
        key=row.key,
        drift=row.drift.value,
        totals=reader.totals.of(table),
        keep_s=keep_s,
        expired=expired,
        quarantine=quarantine.name if quarantine in catalog.datasets else "",
        quarantined=sum(lot.rows for lot in held),
        quarantined_lots=len(held),
        reads=() if spec is None else tuple(read.name for read in spec.reads),
        read_by=tuple(sorted(_readers(catalog, table))),
        read_by_views=tuple(sorted(entry.name for entry in _views(catalog, table))),
        trigger=None if spec is None else trigger_line(reader, spec.id),
        source=_source(reader, table),
        fresh_within_s=limits[0].within_s if limits else None,
        stale=any(age.is_stale for age in limits),
        checks=tuple(
            CheckLine(name=each.name, on_fail=each.on_fail, problem=each.problem) for each in checks
        ),
    )


def _source(reader: StoreReader, table: DatasetId) -> str:
    """Return where the rows of a table come from: each of its sources; empty if it has none."""
    described = reader.run(partial(descriptions.sources, keys=reader.descriptions))
    origins = [row.origin for (_, name), row in described.items() if (row.dataset or name) == table.name]
    return "; ".join(origins)


def lot_page(
    reader: StoreReader, name: str, version: str = "", before: str = "", limit: int = 100
) -> LotPage:
    """Return a page of a table's lots, newest first."""
    catalog = reader.catalog()
    return grid.LotGrid(reader, catalog).page(find(catalog, name, version), before, limit)


def find(catalog: Declarations, name: str, version: str = "") -> DatasetId:
    """Return the id of a table; without a version, of its newest one that is not retired."""
    versions = [table for table in catalog.datasets if table.name == name]
    if version:
        versions = [table for table in versions if table.version == version]
    live = [table for table in versions if not catalog.is_retired(table)]
    if not versions:
        raise DatasetUnknown(f"there is no table {name!r:.200}", hint="choose a table of the overview")
    return max(live or versions)


def _revision(parts: tuple[object, ...]) -> int:
    assert isinstance(parts[-1], int)
    return parts[-1]


def _readers(catalog: Declarations, table: DatasetId) -> set[str]:
    names = {
        sink.dataset.name for spec in catalog.arcs.values() if table in spec.reads for sink in spec.sinks
    }
    return names | {entry.name for entry in _views(catalog, table)}


def _views(catalog: Declarations, table: DatasetId) -> list[ViewEntry]:
    return [entry for entry in catalog.views.values() if table in entry.spec.reads]
