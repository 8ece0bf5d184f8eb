"""Rows from object storage: a sample of a table, the rows that a step changed, and records in quarantine.

Every answer has few rows and reads small parts of few files. A sample of a view covers a small range of the
hash space, in which the rows of all its pieces are added up: so a row that was deleted is never shown.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from tidemill.clock import SYSTEM
from tidemill.errors import ObjectMissing, ObjectUnreadable, TidemillError, UsageError
from tidemill.lots import lots
from tidemill.lots.checks import quarantine_of
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import Manifest, StoredObject
from tidemill.objects import Objects
from tidemill.publish.manifests import Manifests
from tidemill.schemas import ddl
from tidemill.spark.operations import OP, ORDINAL, WEIGHT
from tidemill.spark.parquet_files import open_parquet
from tidemill.ui.model import table, views
from tidemill.ui.model.answers import RecordLine, RecordPage, RowPage
from tidemill.ui.model.catalog import ViewEntry
from tidemill.ui.model.reader import StoreReader
from tidemill.views.spark import table_merges, weighted_rows
from tidemill.views.spark.table_pieces import EVERY, TablePiece, pieces_of
from tidemill.views.steps import commits

MOST_CHARS = 300
"""A longer value is shown without its end."""

MOST_FILES = 20
"""How many files one answer opens at most, except those of a view's pieces."""

WINDOW_ROWS = 500
"""About how many rows of a view one sample adds up."""

GONE = "Its files have expired or were replaced. Reload the page."
RECORD_COLUMNS = ("file", "line", "record", "error", "check")
BUFFER_BYTES = 1 << 16
PAGE = 100


def sample(reader: StoreReader, name: str, version: str = "", pipeline: str = "", limit: int = 20) -> RowPage:
    """Return some rows of a table: of its newest lot, or of a view as it is now."""
    catalog = reader.catalog()
    if any(entry.name == name and pipeline in ("", entry.pipeline) for entry in catalog.views.values()):
        return _of_view(reader, views.find(catalog, name, pipeline), limit)
    dataset = table.find(catalog, name, version)
    columns = [column.name for column in ddl.parse(catalog.datasets[dataset].schema).columns]
    row = next(_lots_with_rows(reader, dataset), None)
    if row is None:
        return RowPage(why="The table has no rows yet.")
    try:
        return _read_lot(reader, row, columns, limit)
    except ObjectMissing:
        return RowPage(lot=row.lot, why=GONE)


def changes(reader: StoreReader, view: str, pipeline: str = "", step: int = 0, limit: int = 50) -> RowPage:
    """Return rows that a step of a view inserted and deleted; by default of the last step that changed it."""
    entry = views.find(reader.catalog(), view, pipeline)
    newest = reader.run(
        partial(
            commits.before,
            keys=reader.keys,
            pipeline=entry.pipeline,
            group=entry.group.spec.name,
            to=step or 1 << 60,
            limit=1 if step else PAGE,
        )
    )
    for row in newest:
        output = next((out for out in row.outputs if out.view == view and out.changes), None)
        if output is not None and step in (0, row.step):
            try:
                page = _read_files(reader, _load(reader, output.changes).objects, [], limit)
            except ObjectMissing:
                return RowPage(lot=f"step {row.step}", why=GONE)
            page = _with_weights(page, f"step {row.step}", more=output.rows > len(page.rows))
            return page if page.more else _sorted(page)
    return RowPage(lot=f"step {step}" if step else "", why="No rows of the view changed.")


def records(reader: StoreReader, name: str, version: str = "", limit: int = 50) -> RecordPage:
    """Return records in the quarantine of a table, the newest lots first."""
    catalog = reader.catalog()
    dataset = table.find(catalog, name, version)
    quarantine = dataset if dataset in catalog.quarantines else quarantine_of(dataset)
    if quarantine not in catalog.datasets:
        return RecordPage(items=(), records=0)
    held = list(_lots_with_rows(reader, quarantine))
    items: list[RecordLine] = []
    for row in held[:MOST_FILES]:
        if len(items) < limit:
            with contextlib.suppress(ObjectMissing):  # the lot has changed since
                page = _read_lot(reader, row, RECORD_COLUMNS, limit - len(items))
                items += (
                    _record(row.lot, dict(zip(page.columns, values, strict=True))) for values in page.rows
                )
    return RecordPage(items=tuple(items), records=sum(row.rows for row in held))


def _record(lot: str, values: dict[str, str | None]) -> RecordLine:
    texts = {name: values.get(name) or "" for name in RECORD_COLUMNS}
    return RecordLine(lot=lot, **texts)


# --- files


def _lots_with_rows(reader: StoreReader, dataset: DatasetId) -> Iterator[LotRow]:
    """Yield the lots with rows among the newest lots of a dataset, newest first."""
    page = reader.run(partial(lots.newest, keys=reader.keys.lots, dataset=dataset, limit=5 * PAGE))
    yield from (row for row in page if row.rows and row.manifest)


def _objects(reader: StoreReader) -> Objects:
    if reader.objects is None:
        raise UsageError(
            "this page has no access to the rows of tables",
            hint="start it with --home, with -f, or with --objects next to --store",
        )
    return reader.objects


def _load(reader: StoreReader, key: str) -> Manifest:
    return Manifests(_objects(reader), SYSTEM).load(key)


def _read_lot(reader: StoreReader, row: LotRow, columns: Sequence[str], limit: int) -> RowPage:
    """Read the first rows of a lot; open its parts only until there are enough rows."""
    root = _load(reader, row.manifest)
    leaves: Iterable[Manifest] = (_load(reader, part) for part in root.parts) if root.parts else (root,)
    page = _read_files(reader, (item for leaf in leaves for item in leaf.objects), columns, limit)
    return _with_weights(page, row.lot, more=row.rows > len(page.rows))


def _read_files(
    reader: StoreReader, files: Iterable[StoredObject], columns: Sequence[str], limit: int
) -> RowPage:
    """Return the first rows of some files. The given columns come first."""
    names: list[str] = list(columns)
    rows: list[dict[str, str | None]] = []
    for _, item in zip(range(MOST_FILES), files, strict=False):
        if len(rows) >= limit:
            break
        batch = _first_rows(_objects(reader), item, limit - len(rows))
        texts = {name: _texts(batch.column(place)) for place, name in enumerate(batch.schema.names)}
        texts |= {name: [value] * batch.num_rows for name, value in item.partition.items()}
        names += [name for name in texts if name not in names]
        rows += ({name: texts[name][place] for name in texts} for place in range(batch.num_rows))
    return RowPage(
        columns=tuple(names), rows=tuple(tuple(row.get(name) for name in names) for row in rows[:limit])
    )


def _first_rows(objects: Objects, item: StoredObject, limit: int) -> pa.Table:
    file = open_parquet(objects, item.uri, item.size, buffer_bytes=BUFFER_BYTES)
    try:
        batches = file.iter_batches(batch_size=limit)
        first = next(batches, None)
    except (pa.ArrowException, OSError) as error:
        raise ObjectUnreadable(f"{item.uri!r} cannot be read: {error}") from error
    return file.schema_arrow.empty_table() if first is None else pa.Table.from_batches([first])


def _with_weights(page: RowPage, lot: str, *, more: bool) -> RowPage:
    """Move Tidemill's own columns out of the rows: a weight, or the operation of a keyed dataset."""
    names = list(page.columns)
    weights: tuple[int, ...] = ()
    if WEIGHT in names:
        place = names.index(WEIGHT)
        weights = tuple(int(row[place] or 0) for row in page.rows)
    elif OP in names:
        place = names.index(OP)
        weights = tuple(-1 if row[place] == "delete" else 1 for row in page.rows)
    own = (WEIGHT, OP, ORDINAL, weighted_rows.HIGH, weighted_rows.LOW)
    kept = [place for place, name in enumerate(names) if name not in own]
    return RowPage(
        columns=tuple(names[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in page.rows),
        weights=weights,
        lot=lot,
        more=more,
    )


def _sorted(page: RowPage) -> RowPage:
    """Sort changes, so that the old and the new row of an update are next to each other."""
    pairs = zip(page.rows, page.weights, strict=True)
    ordered = sorted(pairs, key=lambda pair: ([text or "" for text in pair[0]], pair[1]))
    return msgspec.structs.replace(
        page, rows=tuple(row for row, _ in ordered), weights=tuple(weight for _, weight in ordered)
    )


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return values as text. Any value has a text, also one that Python's types cannot hold."""
    if not pa.types.is_binary(column.type) and not pa.types.is_nested(column.type):
        try:
            return [_cut(text) for text in column.cast(pa.string()).to_pylist()]
        except (pa.ArrowException, UnicodeDecodeError):
            pass
    return [_text_of(scalar) for scalar in column]


def _text_of(scalar: Any) -> str | None:
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError, UnicodeDecodeError):
        return _cut(str(scalar))
    return None if value is None else _cut(value.hex() if isinstance(value, bytes) else str(value))


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"


# --- views


def _of_view(reader: StoreReader, entry: ViewEntry, limit: int) -> RowPage:
    key = entry.group.tables.get(entry.name, "")
    if not key:
        return RowPage(why="The view has not been computed yet.")
    step = f"step {entry.group.step}"
    try:
        root = _load(reader, key)
        leaves = [_load(reader, part) for part in root.parts]
        pieces = pieces_of(root, leaves)
        objects = {part: leaf.objects for part, leaf in zip(root.parts, leaves, strict=True)}
        total = sum(piece.rows for piece in pieces)
        share = min(1.0, WINDOW_ROWS / total) if total else 1.0
        rows = _net(reader, pieces, objects, share)
        if rows is not None and rows.num_rows < limit and share < 1 and total <= 4 * WINDOW_ROWS:
            rows = _net(reader, pieces, objects, 1.0)
    except ObjectMissing:
        return RowPage(lot=step, why=GONE)
    if rows is None:
        return RowPage(lot=step, why="The view has no rows.")
    texts = [_texts(column) for column in rows.slice(0, limit).columns]
    page = RowPage(columns=tuple(rows.column_names), rows=tuple(zip(*texts, strict=True)))
    page = _with_weights(page, step, more=rows.num_rows > limit or share < 1)
    return page if page.rows else RowPage(lot=step, why="The view has no rows.")


def _net(
    reader: StoreReader,
    pieces: Sequence[TablePiece],
    objects: dict[str, list[StoredObject]],
    share: float,
) -> pa.Table | None:
    """Add up the rows of all pieces in the first grains of the hash space; None without any file."""
    last = max(0, int((EVERY[1] + 1) * share) - 1)
    arrow: pa.Schema | None = None
    parts = []
    for piece in pieces:
        cut = piece.within(0, last)
        for item in objects[piece.part] if cut is not None else ():
            if arrow is None:
                arrow = open_parquet(_objects(reader), item.uri, item.size).schema_arrow
            assert cut is not None
            parts.append(table_merges.read_piece(_objects(reader), item, cut, arrow))
    if not parts:
        return None
    try:
        return table_merges.netted(pa.concat_tables(parts))
    except (TidemillError, pa.ArrowException) as error:
        raise ObjectUnreadable(f"the rows cannot be added up without Spark: {error}") from error
