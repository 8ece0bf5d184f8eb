"""How Parquet that is written once and read for long is packed: tables of views, and what steps add."""

from typing import Any

import pyarrow as pa
import pyarrow.types as pat

NARROW_BITS = 32


def packed(schema: pa.Schema) -> dict[str, Any]:
    """Options of Arrow's writer for these columns.

    Texts and narrow numbers get dictionaries, as they mostly repeat. Wide numbers mostly do not (identities,
    sums, instants), and a dictionary of such is as large as they are, with a number for each on top; where
    they do repeat, zstd sees it.
    """
    names = [each.name for each in schema if _repeats(each.type)]
    return {"compression": "zstd", "use_dictionary": names or False}


def _repeats(kind: pa.DataType) -> bool:
    fixed = pat.is_primitive(kind) or pat.is_decimal(kind)
    return not fixed or int(kind.bit_width) <= NARROW_BITS
