"""Results of several queries by one Spark job: rows travel as JSON text, and come back as comparable values.

JSON tells NULL from a field that is not there, keeps decimals as they are written and timestamps to the
microsecond; which numbers are floats is known from Spark's schema, never guessed from the text.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemill.views.certify.compare import Real, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPTIONS = (
    "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS',"
    " 'timestampNTZFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS', 'dateFormat', 'yyyyyy-MM-dd')"
)


def collected(frames: "Sequence[DataFrame]") -> list[list[Row]]:
    """The rows of each frame, all by one job."""
    if not frames:
        return []
    whole = None
    kinds = []
    for place, frame in enumerate(frames):
        kinds.append(frame.schema.jsonValue())
        said = frame.selectExpr(f"{place} AS place", f"to_json(struct(*), {_OPTIONS}) AS said")
        whole = said if whole is None else whole.unionAll(said)
    assert whole is not None
    found: list[list[Row]] = [[] for _ in frames]
    for place, text in whole.collect():
        body = json.loads(text, parse_float=str, parse_constant=str)
        found[place].append(_value(kinds[place], body))
    return found


def _value(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if kind in ("double", "float"):
        return Real.of(float(value))
    if isinstance(kind, str):
        return str(value)
    match kind["type"]:
        case "struct":
            return tuple(_value(one["type"], value.get(one["name"])) for one in kind["fields"])
        case "array":
            return ("array", *(_value(kind["elementType"], item) for item in value))
        case "map":
            items = [(key, _value(kind["valueType"], item)) for key, item in value.items()]
            return ("map", *sorted(items, key=repr))
        case _:
            return json.dumps(value, sort_keys=True)
