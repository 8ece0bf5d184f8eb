"""Compute the results of several queries in one Spark job. Rows arrive as JSON and become comparable values.

The queries are combined into one query with UNION ALL, because for small tables Spark needs more time to
analyse a query than to run it. JSON distinguishes NULL from a missing field, keeps all digits of decimals,
and keeps timestamps to the microsecond. Spark's `typeof` tells which numbers are floats.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from tidemill.errors import BadSchema
from tidemill.schemas.columns import Array, Map, Struct, Type
from tidemill.schemas.type_table import Family, family_of
from tidemill.spark import schema
from tidemill.spark.queries import quoted
from tidemill.views.certify.bounds import Bounds
from tidemill.views.certify.equality import FloatValue, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import Row as SparkRow

_views = count()
_OPTIONS = (
    "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS',"
    " 'timestampNTZFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS', 'dateFormat', 'yyyyyy-MM-dd')"
)


JSON_COLUMNS = f"to_json(struct(*), {_OPTIONS}) AS json, typeof(struct(*)) AS kind"
"""The columns to select from a query; `ResultReader` decodes them."""


def collect_rows(
    spark: "SparkSession", texts: Sequence[str], *, small: bool = False, bounds: Bounds | None = None
) -> list[list[Row]]:
    """Run several queries in one job and return the rows of each.

    - small: whether the tables have few rows, so that one task computes all queries.
    - bounds: limits on the size of results and on the time; exceeding one raises `BoundExceeded`.
    """
    if not texts:
        return []
    # Each query is on separate lines, because it may end with a comment.
    parts = [
        f"SELECT {number} AS number, {JSON_COLUMNS} FROM (\n{text}\n)"  # noqa: S608
        for number, text in enumerate(texts)
    ]
    query = "\nUNION ALL\n".join(parts)
    if small:
        query = f"SELECT /*+ COALESCE(1) */ * FROM (\n{query}\n)"  # noqa: S608
    readers = [ResultReader(spark, text) for text in texts]
    return _read(_collect(spark, query, bounds), readers)


NUMBER = "__number"
"""The column of a frame with the number of the result that a row belongs to."""


def collect_numbered(
    spark: "SparkSession", frames: "Mapping[range, DataFrame]", *, bounds: Bounds | None = None
) -> list[list[Row]]:
    """Return the rows of several results in one job. Each frame has the rows of some results.

    - frames: the frames, by the numbers in their column `NUMBER`; together from 0, without gaps.
    - bounds: as for `collect_rows`.
    """
    views: list[str] = []
    parts, readers = [], []
    try:
        for numbers, frame in frames.items():
            view = f"tidemill_results_{next(_views)}"
            frame.createOrReplaceTempView(view)
            views.append(view)
            columns = ", ".join(quoted(name) for name in frame.columns if name != NUMBER)
            rendered = JSON_COLUMNS.replace("*", columns)
            parts.append(f"SELECT {NUMBER} AS number, {rendered} FROM {view}")  # noqa: S608
            readers += [ResultReader(spark, f"SELECT {columns} FROM {view}")] * len(numbers)  # noqa: S608
        if not parts:
            return []
        query = "\nUNION ALL\n".join(parts)
        collected = _collect(spark, f"SELECT /*+ COALESCE(1) */ * FROM (\n{query}\n)", bounds)  # noqa: S608
        return _read(collected, readers)
    finally:
        for view in views:
            spark.catalog.dropTempView(view)


def _read(collected: "Iterable[SparkRow]", readers: "Sequence[ResultReader]") -> list[list[Row]]:
    rows: list[list[Row]] = [[] for _ in readers]
    for number, json_text, kind in collected:
        rows[number].append(readers[number].row(json_text, kind))
    return rows


def _collect(spark: "SparkSession", query: str, bounds: Bounds | None) -> "list[SparkRow]":
    if bounds is None:
        return spark.sql(query).collect()
    bounds.check()
    try:
        return spark.sql(bounds.limited(query)).collect()
    except Exception as error:
        bounds.check(error)
        raise


class ResultReader:
    """Decodes the rows of one query from `JSON_COLUMNS`."""

    def __init__(self, spark: "SparkSession", text: str) -> None:
        self._spark = spark
        self._text = text
        self._type: Struct | None = None

    def row(self, text: str, kind: str) -> Row:
        """Decode one row."""
        body = json.loads(text, parse_float=str, parse_constant=str)
        if self._type is None:
            row_type = _kind(kind)
            if not isinstance(row_type, Struct) or {field.name for field in row_type.fields} != body.keys():
                # `typeof` does not quote names, so the schema of a query with special names is read
                # separately.
                row_type = Struct(schema.of_spark(self._spark.sql(self._text).schema).columns)
            self._type = row_type
        return cast(Row, _value(self._type, body))


@lru_cache(maxsize=1024)
def _kind(text: str) -> Type | None:
    try:
        return schema.parse(f"r {text}").columns[0].type
    except BadSchema:
        return None


def _value(kind: Type, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case Struct():
            return tuple(_value(field.type, value.get(field.name)) for field in kind.fields)
        case Array():
            return ("array", *(_value(kind.element, item) for item in value))
        case Map():
            items = [(key, _value(kind.value, item)) for key, item in value.items()]
            return ("map", *sorted(items, key=repr))
        case _:
            if family_of(kind) is Family.FLOAT:
                return FloatValue.of(float(value))
            return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)
