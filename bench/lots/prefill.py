"""Fill a home in bulk with the rows and files that many real lots leave.

Each lot has its row, its event, the arc's state, its attempt, a manifest and one object.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec

from tidemill.arcs.keys import ArcKeys
from tidemill.arcs.rows import CompleteLot
from tidemill.lots import layout, manifest
from tidemill.lots.events import LotEvent
from tidemill.lots.ids import AppendId
from tidemill.lots.keys import DatasetId
from tidemill.lots.lots import LotRow
from tidemill.lots.manifest import InputLot, Manifest, ManifestState, StoredObject
from tidemill.lots.states import LotState
from tidemill.objects.local import LocalObjects
from tidemill.publish.attempts import Draft, Published, Target
from tidemill.store import Store, Tx

PAGE, FILES = 100, 1000
BODY = b"PAR1" + bytes(1016) + b"PAR1"


def attempt_id(author: str, number: int) -> str:
    """Return an id of 26 characters, like a real one."""
    return f"{author[:2]}{number:024}"


def fill(
    store: Store,
    keys: ArcKeys,
    objects: LocalObjects,
    source: DatasetId,
    sink: DatasetId,
    arc: str,
    lots: int,
) -> None:
    """Write lots 1 to `lots` of the source, and those that the arc made of them; all are complete."""
    for first in range(1, lots + 1, PAGE):
        numbers = range(first, min(first + PAGE, lots + 1))
        store.run(partial(_rows, keys=keys, source=source, sink=sink, arc=arc, numbers=numbers))
    root = str(objects.path("any").parent)
    for dataset in (source, sink):
        for lot in (manifest_key(dataset, 1), _data_key(dataset, 1)):
            Path(root, lot.partition("/lot=")[0]).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        pages = [range(first, min(first + FILES, lots + 1)) for first in range(1, lots + 1, FILES)]
        for _ in pool.map(partial(_files, root, (source, sink)), pages):
            pass


def _rows(tx: Tx, keys: ArcKeys, source: DatasetId, sink: DatasetId, arc: str, numbers: range) -> None:
    lots, publish = keys.publish.lots, keys.publish
    for number in numbers:
        lot = str(AppendId(number))
        inputs = (InputLot(dataset=source.name, version=source.version, lot=lot, generation=0),)
        for dataset in (source, sink):
            attempt = attempt_id(dataset.name, number)
            row = LotRow(
                dataset=dataset,
                lot=lot,
                state=LotState.COMPLETE,
                manifest=manifest_key(dataset, number),
                attempt=attempt,
                rows=10,
                size=len(BODY),
                position=number,
            )
            event = LotEvent(number, lot, 0, LotState.COMPLETE, attempt, 0, 0)
            tx.set(lots.lot[(*dataset.parts, lot)], msgspec.msgpack.encode(row), quiet=True)
            tx.set(lots.event[(*dataset.parts, number)], msgspec.msgpack.encode(event), quiet=True)
        attempt = attempt_id(sink.name, number)
        done = CompleteLot(attempt=attempt, inputs=inputs, at=0, tries=1)
        tx.set(keys.lot[arc, lot, 0], msgspec.msgpack.encode(done), quiet=True)
        draft = Draft(id=attempt, author=arc, lot=lot, targets=(Target(sink, lot),), inputs=inputs)
        published = Published(draft=draft, positions=(number,), at=0)
        tx.set(publish.attempt[attempt], msgspec.msgpack.encode(published), quiet=True)
        tx.set(publish.of[arc, lot, 0, attempt], b"", quiet=True)
    for dataset in (source, sink):
        tx.set(lots.head[dataset.parts], msgspec.msgpack.encode(numbers[-1]))
        tx.set(lots.append_number[dataset.parts], msgspec.msgpack.encode(numbers[-1]), quiet=True)


def manifest_key(dataset: DatasetId, number: int) -> str:
    """Return the name of a lot's manifest."""
    return layout.manifest_key(
        dataset.name,
        dataset.version,
        str(AppendId(number)),
        ManifestState.COMPLETE,
        0,
        f"{attempt_id(dataset.name, number)}.1",
    )


def _data_key(dataset: DatasetId, number: int) -> str:
    lot, attempt = str(AppendId(number)), attempt_id(dataset.name, number)
    return layout.data_prefix(dataset.name, dataset.version, lot, attempt) + "part-00000.parquet"


def _files(root: str, datasets: tuple[DatasetId, ...], numbers: range) -> None:
    for number in numbers:
        for dataset in datasets:
            for key, body in _objects_of(dataset, number):
                _write(f"{root}/{key}", body)


def _write(path: str, body: bytes) -> None:
    """Write a file without syncing it: it is only test data. A million and a half folders and files take most
    of the time, and `Path` objects would double it.
    """
    _make(path.rpartition("/")[0])
    with open(path, "xb", buffering=0) as file:  # noqa: PTH123
        file.write(body)


def _make(folder: str) -> None:
    try:
        os.mkdir(folder)  # noqa: PTH102
    except FileNotFoundError:
        _make(folder.rpartition("/")[0])
        os.mkdir(folder)  # noqa: PTH102


def _objects_of(dataset: DatasetId, number: int) -> Iterator[tuple[str, bytes]]:
    lot, attempt = str(AppendId(number)), attempt_id(dataset.name, number)
    data = _data_key(dataset, number)
    yield data, BODY
    body = Manifest(
        state=ManifestState.COMPLETE,
        dataset=dataset.name,
        version=dataset.version,
        lot=lot,
        attempt=attempt,
        objects=[StoredObject(uri=data, size=len(BODY), rows=10)],
    )
    yield manifest_key(dataset, number), manifest.encode(body)
