"""Canonical keys: like Spark, treat -0.0 as 0.0 and all NaNs as one NaN, including inside nested values."""

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidemill.views.trace.consolidation import chunk


def canonical_keys(table: pa.Table, names: list[str]) -> pa.Table:
    """Return the table with these columns in canonical form; only types with floats change."""
    for name in names:
        place = table.column_names.index(name)
        if has_floats(table.schema.field(place).type):
            table = table.set_column(place, table.schema.field(place), canonical_values(chunk(table, name)))
    return table


def has_floats(kind: pa.DataType) -> bool:
    """Return whether values of the type contain floats."""
    if pat.is_nested(kind):
        return any(has_floats(kind.field(n).type) for n in range(kind.num_fields))
    return bool(pat.is_floating(kind))


def canonical_values(array: pa.Array) -> pa.Array:
    """Return the array in canonical form."""
    kind = array.type
    if not has_floats(kind):
        return array
    if pat.is_floating(kind):
        values = array.to_numpy(zero_copy_only=False)
        values = values + values.dtype.type(0)
        values[np.isnan(values)] = np.nan
        return pa.array(values, kind, mask=array.is_null().to_numpy(zero_copy_only=False))
    copy = pa.concat_arrays([array]) if array.offset else array
    if copy.offset:  # concatenating one array may only copy the reference
        copy = copy.take(pa.array(np.arange(len(copy))))
    return _canonical_nested(copy, kind)


def _canonical_nested(array: pa.Array, kind: pa.DataType) -> pa.Array:
    mask = array.is_null() if array.null_count else None
    if pat.is_struct(kind):
        fields = [canonical_values(array.field(n)) for n in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    if pat.is_map(kind):
        keys, items = canonical_values(array.keys), canonical_values(array.items)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
    if pat.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(canonical_values(array.values), type=kind, mask=mask)
    build = pa.LargeListArray if pat.is_large_list(kind) else pa.ListArray
    return build.from_arrays(array.offsets, canonical_values(array.values), type=kind, mask=mask)
