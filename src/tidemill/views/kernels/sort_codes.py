"""Sort keys as integers: two values compare like their codes, in Spark's order.

Codes are comparable only within one call. A second code tells NULLs apart, so that each key can place them
first or last.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidemill.views.kernels.canonical_keys import canonical_values
from tidemill.views.trace.order import I64


@dataclass(frozen=True)
class SortColumn:
    """A sort key: the place of its column, and how it is sorted."""

    place: int
    descending: bool = False
    nulls_first: bool = True


def sortable(kind: pa.DataType) -> bool:
    """Return whether values of the type have sort codes."""
    return bool(
        pat.is_boolean(kind)
        or pat.is_signed_integer(kind)
        or pat.is_floating(kind)
        or pat.is_decimal128(kind)
        or pat.is_string(kind)
        or pat.is_binary(kind)
        or pat.is_date32(kind)
        or pat.is_timestamp(kind)
    )


def sort_codes(array: pa.Array, *, descending: bool = False, nulls_first: bool = True) -> list[I64]:
    """Return the codes of the values, and of NULLs if there are any, the most significant codes first.

    >>> [codes.tolist() for codes in sort_codes(pa.array(["b", None, "a"]), descending=True)]
    [[1, 0, 1], [-3, -3, -2]]
    """
    codes = _codes(array.fill_null(_any_value(array)) if array.null_count else array)
    codes = ~codes if descending else codes
    if not array.null_count:
        return [codes]
    present: I64 = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    return [present if nulls_first else 1 - present, codes]


def _any_value(array: pa.Array) -> Any:
    present = array.drop_null()
    return present[0] if len(present) else pa.scalar(_zero(array.type), array.type)


def _zero(kind: pa.DataType) -> Any:
    return "" if pat.is_string(kind) else b"" if pat.is_binary(kind) else False if pat.is_boolean(kind) else 0


def _codes(array: pa.Array) -> I64:
    kind = array.type
    codes: I64
    if pat.is_floating(kind):
        values = canonical_values(array).to_numpy(zero_copy_only=False).astype(np.float64)
        bits = values.view(np.int64)
        # Negative numbers sort in the reverse order of their bits.
        codes = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    elif pat.is_string(kind) or pat.is_binary(kind) or pat.is_decimal(kind):
        codes = pc.rank(array, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    elif pat.is_boolean(kind):
        codes = array.cast(pa.int8()).to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        small = kind.bit_width < 64
        numbers = array.view(pa.int32()) if pat.is_date32(kind) else array
        codes = (numbers if small else array.view(pa.int64())).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes
