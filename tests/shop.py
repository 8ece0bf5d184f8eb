"""A small pipeline for tests: a folder, two chained arcs with parts and two sinks, and a view over both.

`seen` is all there is of it that readers could tell apart, whoever made it and however often it was tried.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow.parquet as pq

import tidemill as tm
from tests.orphans import make_sweeps_due, unlisted
from tests.servers.process import wait_until
from tidemill.arcs import lot_status
from tidemill.arcs.keys import ArcKeys
from tidemill.lots import events, lots
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject
from tidemill.pipeline.context import PipelineContext
from tidemill.pipeline.declarations import Refresh
from tidemill.publish import attempts
from tidemill.publish.cleaner import READERS_S, Cleaner
from tidemill.publish.manifests import Manifests
from tidemill.publish.projections import Projections
from tidemill.runner import future_run
from tidemill.runner.part_futures import PartFutures
from tidemill.runner.part_maker import make_part
from tidemill.runner.upkeep import AttemptLeftovers
from tidemill.spark.sessions import SparkSettings
from tidemill.testing.threads import STUCK_S
from tidemill.triggers import subscriptions
from tidemill.views.steps import commits, groups
from tidemill.views.trace.version_file import read_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Upto = Literal["source", "clean", "double", "views"]
STAGES: tuple[Upto, ...] = get_args(Upto)
NAME = "shop"
TABLES = ("orders", "cleaned", "odd", "doubled")
VIEW = "totals"


def declare(
    home: Path | str | None,
    landing: Path | str,
    spark: "SparkSession | SparkSettings | str | None",
    *,
    upto: Upto = "views",
    notes: str = "",
    max_files: int = 500,
    refresh: Refresh = "auto",
    gate: str = "",
    together: int = 0,
    **options: Any,
) -> tm.Pipeline:
    """The pipeline, or its first stages.

    - notes: a file in which the arcs' functions note who called them: once for each plan, and once for each
      part.
    - gate: a file without which no part but the first is made.
    - together: no part of the second arc is made before so many runners have begun one.
    - refresh: of the view; one that is always recomputed need not be certified in every new home.
    """
    shop = tm.Pipeline(NAME, home=home, spark=spark, **options)
    orders = shop.dataset("orders", "id BIGINT, region STRING, amount BIGINT")
    shop.source(orders, tm.folder(f"{landing}/*.json", settle_s=0.0, max_files=max_files))
    if upto == "source":
        return shop

    @shop.arc(reads=orders, writes=("cleaned", "odd"), partition_by="region")
    def clean(df: "DataFrame") -> "tuple[DataFrame, DataFrame]":
        note(notes, "clean")
        if gate:
            wait_until(lambda: Path(gate).exists() or len(noted(notes, "clean")) <= 2, timeout_s=STUCK_S)
        return df.where("amount > 0"), df.where("amount % 2 = 1")

    if upto == "clean":
        return shop

    @shop.arc(reads="cleaned", writes="doubled", partition_by="region", parts=2)
    def double(df: "DataFrame") -> "DataFrame":
        note(notes, "double")
        if together and _runner():
            wait_until(lambda: len(runners(notes, "double")) == together, timeout_s=STUCK_S)
        return df.selectExpr("id", "region", "amount * 2 AS amount")

    if upto == "views":
        shop.view(
            VIEW,
            "SELECT region, sum(amount) AS amount, count(*) AS n FROM"
            " (SELECT region, amount FROM doubled UNION ALL SELECT region, amount FROM odd) GROUP BY region",
            refresh=refresh,
        )
    return shop


def note(file: str, what: str) -> None:
    """Note that something was done, and by whom: the runner that makes a part, or another process."""
    if file:
        with Path(file).open("a") as notes:
            notes.write(f"{_runner() or os.getpid()} {what}\n")


def noted(file: str, what: str) -> list[str]:
    """Who noted it, one for each time."""
    notes = [line.split() for line in Path(file).read_text().splitlines()]
    return [who for who, word in notes if word == what]


def _runner() -> str:
    """The runner whose part this thread makes; empty in a thread that makes none, such as one that plans."""
    run = future_run._run.get()
    return run.job.claim.row.holder if run is not None else ""


def runners(file: str, what: str) -> Counter[str]:
    """The runners that noted it, without those who planned, and how often."""
    return Counter(who for who in noted(file, what) if not who.isdigit())


def expected(*ids: range) -> dict[str, object]:
    """What the tables and the view hold of these orders."""
    orders = sorted((n, region(n), n) for some in ids for n in some)
    cleaned = [row for row in orders if row[2] > 0]
    odd = [row for row in orders if row[2] % 2 == 1]
    doubled = [(n, where, 2 * amount) for n, where, amount in cleaned]
    totals: dict[str, list[int]] = {}
    for _, where, amount in (*doubled, *odd):
        totals.setdefault(where, []).append(amount)
    view = {(where, sum(amounts), len(amounts)): 1 for where, amounts in totals.items()}
    return {"orders": orders, "cleaned": cleaned, "odd": odd, "doubled": doubled, VIEW: view}


def held(shop: tm.Pipeline) -> dict[str, object]:
    """The same of the pipeline itself."""
    return {**{name: table(shop, name) for name in TABLES}, VIEW: view(shop)}


def region(n: int) -> str:
    return "south" if n % 2 else "north"


def land(landing: Path, name: str, first: int, count: int = 6) -> None:
    """A file of orders arrives, whole."""
    landing.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": n, "region": "north south"[6 * (n % 2) :][:5], "amount": n}
        for n in range(first, first + count)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (landing / f".{name}").write_text(text)
    (landing / f".{name}").rename(landing / f"{name}.json")


def clean_up(shop: tm.Pipeline, readers_s: float = READERS_S) -> None:
    """What the runner does every so often, but as if a day had passed."""
    context = shop.context
    scope = context.scope
    parts = PartFutures(scope, context.place.key, make_part)
    cleaner = Cleaner(
        scope,
        drop=AttemptLeftovers(scope, parts, Projections(scope)),
        grace_s=0.0,
        keep_s=0.0,
        readers_s=readers_s,
    )
    make_sweeps_due(scope.store, context.keys)
    while cleaner.clean():
        pass
    parts.forget_ended()


# --- what there is


def seen(shop: tm.Pipeline, *, steps: bool = True) -> dict[str, object]:
    """Tables, manifests, events, states and names, as readers find them.

    - steps: the steps of the views as well; how many there are depends on how the work was spread.
    """
    return {
        "tables": {name: table(shop, name) for name in TABLES if name in shop.names},
        "lots": {name: _lots(shop, name) for name in TABLES if name in shop.names},
        "view": view(shop) if VIEW in shop.views else None,
        "steps": _steps(shop) if steps and VIEW in shop.views else None,
        "arcs": {name: _standings(shop, name) for name in shop.arcs},
        "progress": {name: _progress(shop, name) for name in shop.arcs},
        "names": [name for name in _names(shop) if steps or not re.search("name=views?%3A", name)],
    }


def table(shop: tm.Pipeline, name: str) -> list[tuple[Any, ...]]:
    """The rows of a table, through the store and its manifests."""
    context = shop.context
    manifests = Manifests(context.objects, context.clock)
    all_rows: list[tuple[Any, ...]] = []
    for row in _rows(shop, name):
        items = manifests.lot_objects(row.manifest)
        rows = read(context, items)
        assert len(rows) == row.rows == sum(item.rows or 0 for item in items)
        assert row.size == sum(item.size for item in items)
        all_rows += rows
    return sorted(all_rows, key=_order)


def _order(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in row]


def read(context: PipelineContext, items: Iterable[StoredObject]) -> list[tuple[Any, ...]]:
    """The rows of objects, with the columns inside of the files."""
    rows: list[tuple[Any, ...]] = []
    for item in items:
        read = pq.ParquetFile(BytesIO(context.objects.get(item.uri)[0])).read()
        assert read.num_rows == item.rows
        rows += [tuple(row.values()) for row in read.to_pylist()]
    return rows


def view(shop: tm.Pipeline, name: str = VIEW) -> dict[tuple[Any, ...], int]:
    """The view's rows and how often each is there: the sum of its files' weights."""
    context = shop.context
    group = context.store.run(lambda tx: groups.read(tx, context.keys, shop.name, shop.views[name].group))
    manifests = Manifests(context.objects, context.clock)
    counts: Counter[tuple[Any, ...]] = Counter()
    for part in manifests.load(group.tables[name]).parts:
        for *row, weight in read(context, manifests.load(part).objects):
            counts[tuple(row[:-2])] += weight
    return {row: count for row, count in counts.items() if count}


def orphans(shop: tm.Pipeline) -> list[str]:
    """Data and manifests that nothing published lists, and rows of work that has ended."""
    context = shop.context
    live: set[str] = set()
    roots = [row.manifest for name in _stored(shop) for row in _rows(shop, name)]
    for row in _step_rows(shop):
        roots += [key for output in row.outputs for key in (output.changes, output.table) if key]
        if row.version:  # each step's own, until it is collected
            live |= {row.version, *read_version(context.objects, row.version).files()}
    orphaned = unlisted(context.objects, Manifests(context.objects, context.clock), roots, live)
    keys = [info.key for info in context.objects.list("")]
    orphaned += [key for key in keys if not key.startswith(("data/", "datasets/", "arcs/"))]
    orphaned += [
        f"open {attempt}" for attempt in context.store.run(lambda tx: attempts.open_ids(tx, context.keys))
    ]
    arcs = ArcKeys(context.place.cluster)
    orphaned += [
        f"running {row.key!r}" for row in context.store.run(lambda tx: tx.range(*arcs.running.all()))
    ]
    futures = [
        name
        for name in ("future", "part", "pin")
        if context.store.run(lambda tx, n=name: _any(tx, context, n))
    ]
    return orphaned + futures


def _any(tx: Any, context: PipelineContext, space: str) -> bool:
    from tidemill.store import Space

    return bool(tx.range(*Space(context.place.cluster, space).all(), limit=1))


def _stored(shop: tm.Pipeline) -> list[str]:
    return [name for name in (*TABLES, "orders_quarantine") if name in (*shop.names, "orders_quarantine")]


def _rows(shop: tm.Pipeline, name: str) -> list[lots.LotRow]:
    context = shop.context
    return context.store.run(lambda tx: lots.listed(tx, context.keys.lots, DatasetId(name), "", 1000))


def _lots(shop: tm.Pipeline, name: str) -> list[object]:
    """The events in order, each with what the manifests of its lot contain."""
    context = shop.context
    published = context.store.run(lambda tx: events.read(tx, context.keys.lots, DatasetId(name), 0, 1000))
    assert [event.position for event in published] == list(range(1, len(published) + 1))
    rows = {row.lot: row for row in _rows(shop, name)}
    assert len(published) == len(rows)
    return [
        (event.position, event.lot, event.generation, event.state, *_manifest(shop, rows[event.lot]))
        for event in published
    ]


def _manifest(shop: tm.Pipeline, row: lots.LotRow) -> tuple[object, ...]:
    manifests = Manifests(shop.context.objects, shop.context.clock)
    root = manifests.load(row.manifest)
    listed = sorted(
        (sorted(item.partition.items()), item.rows) for item in manifests.lot_objects(row.manifest)
    )
    return root.state, root.inputs, len(root.parts), root.schema_fingerprint, row.rows, listed


def _step_rows(shop: tm.Pipeline) -> list[commits.StepRow]:
    context = shop.context
    if VIEW not in shop.views:
        return []
    group = shop.views[VIEW].group
    return context.store.run(lambda tx: commits.rows(tx, context.keys, shop.name, group, 0, 1 << 60))


def _steps(shop: tm.Pipeline) -> list[tuple[int, int, int]]:
    return [(row.after, row.step, sum(output.rows for output in row.outputs)) for row in _step_rows(shop)]


def _standings(shop: tm.Pipeline, arc: str) -> list[tuple[object, ...]]:
    context, keys = shop.context, ArcKeys(shop.context.place.cluster)
    statuses = context.store.run(lambda tx: lot_status.listed(tx, keys, f"arc:{shop.name}/{arc}", "", 1000))
    return [(status.lot, status.generation, status.state) for status in statuses]


def _progress(shop: tm.Pipeline, arc: str) -> Mapping[DatasetId, int]:
    context = shop.context
    row = context.store.run(
        lambda tx: subscriptions.must_read(tx, context.keys.triggers, f"arc:{shop.name}/{arc}")
    )
    assert row.state.value == "waiting"
    return row.tally.seen


def _names(shop: tm.Pipeline) -> list[str]:
    """All keys, without what is drawn anew for every try."""
    drawn = (
        ("attempt=[^/]+", "attempt=T"),
        (r"part=(\d+)-[^/]+", r"part=\1"),
        (r"part-\d+-[0-9a-f-]+", "part"),
        (r"/(\d+-\d+)-[0-9a-f-]+\.runs", r"/\1.runs"),
    )
    names = []
    for info in shop.context.objects.list(""):
        key = info.key
        for pattern, name in drawn:
            key = re.sub(pattern, name, key)
        if "/state=removed/" not in key:
            names.append(key)
    return sorted(names)
