"""What is in a home: its tables, changes and traces as digests, and every row and object of it, decoded."""

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import tidemill as tm
from tests.formats import store_rows
from tidemill.lots import layout, manifest
from tidemill.objects import Objects
from tidemill.pipeline.plan.circuits import chain_of
from tidemill.pipeline.plan.plan import Plan
from tidemill.store import Store
from tidemill.views.steps import groups
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.hash_space import ALL
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version_file import decode_version, encode_version, read_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Digests = dict[str, str]
PAGE = 500


# --- digests


def digest(rows: Iterable[Iterable[object]]) -> str:
    """How many rows there are, and a hash of them in any order."""
    lines = sorted(repr([_plain(value) for value in row]) for row in rows)
    return f"{len(lines)} rows {_short(chr(10).join(lines))}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _plain(value: Any) -> Any:
    """A value without what differs between releases of libraries, such as the class of a time zone."""
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, dict):
        return [[name, _plain(field)] for name, field in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def table_digest(table: pa.Table) -> str:
    """Of rows in any order, with the names and types of their columns."""
    columns = ", ".join(f"{each.name} {each.type}" for each in table.schema)
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return f"{digest(rows)}, columns {_short(columns)[:8]}"


def frame_digests(frames: "Mapping[str, DataFrame]") -> Digests:
    """Of the rows of each frame, with its columns; by one job, since most tables are small."""
    from pyspark.sql import functions

    texts = [
        frame.select(functions.lit(name).alias("name"), functions.to_json(functions.struct("*"), _JSON))
        for name, frame in frames.items()
    ]
    lines: dict[str, list[str]] = {name: [] for name in frames}
    for name, line in _together(texts).collect():
        lines[name].append(line)
    return {
        name: f"{digest((line,) for line in lines[name])}, columns {_short(frame.schema.simpleString())[:8]}"
        for name, frame in frames.items()
    }


def _together(frames: "Sequence[DataFrame]") -> "DataFrame":
    """The union of frames, as flat as it can be: Spark analyses a deep one again and again."""
    if len(frames) == 1:
        return frames[0]
    half = len(frames) // 2
    return _together(frames[:half]).unionAll(_together(frames[half:]))


_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def tables(pipeline: tm.Pipeline, names: Iterable[str]) -> Digests:
    """Of each table as it is now."""
    return frame_digests({name: pipeline[name].df() for name in names})


def changes(pipeline: tm.Pipeline, after: dict[str, int]) -> Digests:
    """Of what each table published behind a position: rows, weights and positions."""
    return frame_digests({name: pipeline[name].changes(at).drop("_inputs") for name, at in after.items()})


# --- traces


def layouts(plan: Plan, pipeline: tm.Pipeline, group: str) -> dict[str, Layout]:
    """The traces of a group as its operators want them now, by their ids."""
    (members,) = (planned.views for planned in plan.program.groups.values() if planned.spec.name == group)
    with pipeline.context.spark() as spark:
        chain = chain_of(spark, members, plan.program.datasets).chain
    if chain is None:
        return {}
    return {
        trace: placed.operator.layouts[name]
        for placed in chain.operators
        for name, trace in placed.traces.items()
    }


def version_of(pipeline: tm.Pipeline, group: str) -> str:
    """The key of a group's newest version file."""
    context = pipeline.context
    return context.store.run(lambda tx: groups.read(tx, context.keys, pipeline.name, group)).version


def traces(objects: Objects, version_key: str, wanted: dict[str, Layout]) -> Digests:
    """Of the rows of each stored trace, added up over its runs. All are current.

    The traces that operators want differ if a later release added operators or changed what they store; the
    next step builds these.
    """
    version, cache = read_version(objects, version_key), Cache(objects, None)
    digests = {}
    for name, trace_layout in sorted(wanted.items()):
        if name not in version.steps:
            continue
        spine = Trace.of(version, name, trace_layout, cache, ALL, version.step)
        parts = list(spine.scan())
        digests[name] = table_digest(pa.concat_tables(parts) if parts else trace_layout.empty())
    return digests


# --- all of it


def store_rows_of(store: Store, cluster: str) -> Iterator[tuple[str, Any]]:
    """Every row of the store: the name of its space, and what it holds; `ValueError` for one nobody reads."""
    after = b"\x00"
    while True:
        page = store.run(lambda tx, lo=after: tx.range(lo, b"\xfe", limit=PAGE))  # type: ignore[misc]
        for row in page:
            yield store_rows.decoded(row.key, row.value, cluster)
        if len(page) < PAGE:
            return
        after = page[-1].key + b"\x00"


def row_kinds(pipeline: tm.Pipeline) -> Counter[str]:
    """Decode every row of the store, and count them by space."""
    context = pipeline.context
    return Counter(kind for kind, _ in store_rows_of(context.store, context.place.cluster))


def objects_of(objects: Objects) -> Counter[str]:
    """Decode every object, and count them by kind; `ValueError` for one that nobody reads."""
    kinds: Counter[str] = Counter()
    for info in objects.list(""):
        kinds[_object_kind(info.key, objects.get(info.key)[0])] += 1
    return kinds


def _object_kind(key: str, body: bytes) -> str:
    if key.startswith("futures/"):
        return "/".join(key.split("/")[:2])
    parts = layout.parse_key(key)
    file = parts["file"]
    if file.endswith(".arc"):
        names = (parts["project"], parts["version"], parts["arc"], parts["lot"], file.removesuffix(".arc"))
        if layout.arc_key(*names) == key and not body:
            return f"arc {names[-1]}"
    elif file in ("manifest.json", "manifest-root.json"):
        decoded = manifest.decode(body, key)
        if manifest.encode(decoded) == body:
            return f"manifest {decoded.state.value}"
    elif file == "version":
        version = decode_version(body, key)
        if encode_version(version, key) == body:
            return "version file"
    elif file.endswith(".runs"):
        return "run file"  # decoded by `traces`
    elif file.endswith(".parquet"):
        pq.read_table(BytesIO(body))
        return "parquet"
    raise ValueError(f"nobody writes an object {key} like that")
