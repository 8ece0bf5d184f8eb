"""Values of many kinds, and what it means that one came back unchanged."""

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.datetimes()
    | st.decimals(allow_nan=False)
)
_LARGE = st.sampled_from(
    [b"x" * 65_535, b"y" * 65_536, b"z" * 70_001, bytearray(b"w" * 80_000), "s" * 70_000, b"", bytearray()]
)

dtypes = (
    npst.scalar_dtypes()
    | npst.unicode_string_dtypes(max_len=5)
    | npst.byte_string_dtypes(max_len=5)
    | npst.array_dtypes(subtype_strategy=npst.scalar_dtypes(), max_size=3)
)


@st.composite
def arrays(draw: st.DrawFn) -> "np.ndarray[Any, Any]":
    """Arrays of any type, shape and order, parts of others among them."""
    shape = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    dtype = draw(dtypes)
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = draw(st.binary(min_size=count, max_size=count)) if count <= 400 else bytes(count)
    plain = dtype.kind in "US" or dtype.hasobject or dtype.names is not None or dtype.kind == "b"
    array = np.zeros(shape, dtype) if plain else np.frombuffer(raw, dtype).reshape(shape)
    how = draw(st.sampled_from(["as it is", "copy", "fortran", "step", "reversed"]))
    if how == "copy":
        return array.copy()
    if how == "fortran":
        return np.asfortranarray(array)
    if how == "step" and array.ndim:
        return array[::2]
    if how == "reversed" and array.ndim:
        return array[::-1]
    return array


plain = st.recursive(
    _SCALARS | _LARGE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.frozensets(st.integers(), max_size=4)
    ),
    max_leaves=10,
)

_LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint8(), st.integers(0, 255)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(st.characters(codec="utf-8"), max_size=5)),
    (pa.large_string(), st.text(st.characters(codec="utf-8"), max_size=5)),
    (pa.string_view(), st.text(st.characters(codec="utf-8"), max_size=20)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.decimal128(20, 2), st.decimals(-1000, 1000, places=2)),
    (pa.null(), st.none()),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "c"])),
]


@st.composite
def _types(draw: st.DrawFn, depth: int = 3) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    kind = draw(st.sampled_from(["leaf", "list", "struct", "map"] if depth else ["leaf"]))
    if kind == "leaf":
        return draw(st.sampled_from(_LEAVES))
    inner, values = draw(_types(depth - 1))
    if kind == "list":
        return pa.list_(inner), st.lists(st.none() | values, max_size=3)
    if kind == "struct":
        return pa.struct([("a", inner), ("b", pa.int32())]), st.fixed_dictionaries(
            {"a": st.none() | values, "b": st.integers(0, 9)}
        )
    return pa.map_(pa.string(), inner), st.lists(
        st.tuples(st.text(st.characters(codec="utf-8"), max_size=3), values), max_size=2
    )


@st.composite
def arrow(draw: st.DrawFn) -> Any:
    """Arrow arrays, batches and tables of nested types, and slices of them."""
    type_, values = draw(_types())
    rows = draw(st.lists(st.none() | values, max_size=8))
    array = pa.array(rows, type_)
    low = draw(st.integers(0, len(rows)))
    array = array.slice(low) if draw(st.booleans()) else array
    form = draw(st.sampled_from(["array", "chunked", "batch", "table"]))
    if form == "array":
        return array
    if form == "chunked":
        return pa.chunked_array([array, array], type=array.type)
    batch = pa.record_batch([array, pa.array(range(len(array)))], names=["x", "n"])
    return (
        batch
        if form == "batch"
        else pa.Table.from_batches([batch, batch]).replace_schema_metadata({"k": "v"})
    )


def same(value: Any, other: Any) -> bool:
    """Whether a value came back as it was: type, structure and bits."""
    if type(value) is not type(other):
        return False
    if isinstance(value, np.ndarray):
        return (
            value.dtype == other.dtype and value.shape == other.shape and value.tobytes() == other.tobytes()
        )
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, dict):
        return list(value) == list(other) and all(same(value[key], other[key]) for key in value)
    if hasattr(value, "equals"):
        return bool(value.equals(other)) and getattr(value, "schema", None) == getattr(other, "schema", None)
    return bool(value == other)
