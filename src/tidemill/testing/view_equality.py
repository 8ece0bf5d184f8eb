"""Compare a view of a pipeline with the result that Spark computes for its query."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.errors import UsageError
from tidemill.pipeline import reader
from tidemill.views.certify.equality import FLOAT_BOUND, Equality, FloatValue, Row, difference

if TYPE_CHECKING:
    from tidemill.pipeline.tables import View


def assert_equal_to_spark(view: "View") -> None:
    """Raise `AssertionError` if a view differs from its query, as Spark computes it over the current tables.

    Floats may differ by a small relative bound, because the order of additions changes their sums. If the
    query leaves ties, as `LIMIT` after an incomplete `ORDER BY` does, Spark may return other rows.
    """
    if not view.sql:
        raise UsageError(f"the view {view.name} is a function, not a query", hint="compare its rows yourself")
    expected, actual = reader.query(view.pipeline, view.sql), view.df()
    differing = difference(_rows(expected), _rows(actual), Equality(bound=FLOAT_BOUND))
    assert differing is None, f"the view {view.name} differs from Spark: {differing}"


def _rows(frame: Any) -> Iterator[Row]:
    return (tuple(_comparable(value) for value in row) for row in frame.collect())


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return FloatValue.of(value)
    if isinstance(value, dict):
        return tuple(sorted(((_comparable(key), _comparable(item)) for key, item in value.items()), key=repr))
    if isinstance(value, list | tuple):
        return tuple(_comparable(item) for item in value)
    return bytes(value) if isinstance(value, bytearray) else value
