"""Digests of weighted rows, which Spark computes while it writes the rows (DBSP-42).

To compute a digest, the H128 of each row is multiplied by the row's weight, and the products are added up,
modulo 2^128. The digest does not depend on the order of rows or on their division into files, and the digests
of steps add up to the digest of the table. A rewritten table must have the same digest.
`kernels.zsets.digest` computes the same digest without Spark.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.spark.operations import WEIGHT
from tidemill.views.kernels.zsets import SPAN
from tidemill.views.spark.weighted_rows import HIGH, LOW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LIMBS = ((HIGH, 1, 96), (HIGH, 0, 64), (LOW, 1, 32), (LOW, 0, 0))
"""H128 in limbs of 32 bits: the column, which half of it, and the shift in the sum."""


def observed(df: "DataFrame") -> "tuple[DataFrame, Callable[[], int]]":
    """Return the frame, and a function that returns the digest of its rows after the frame has run."""
    from pyspark.sql import Observation

    observation = Observation()
    return df.observe(observation, *_sums()), lambda: _digest(dict(observation.get))


def text_of(digest: int) -> str:
    """Format a digest for manifests and store rows."""
    return f"{digest % SPAN:032x}"


def number_of(text: str) -> int:
    """Parse a digest; the empty text is 0, the digest of no rows."""
    return int(text or "0", 16)


def _sums() -> "list[Column]":
    from pyspark.sql import functions as sf

    sums = []
    for column, half, shift in _LIMBS:
        bits = sf.shiftrightunsigned(sf.col(column), 32 * half).bitwiseAND(sf.lit(0xFFFFFFFF))
        # Decimals, because limbs have 32 bits and weights 63, and the sum of many products must not overflow.
        product = sf.col(WEIGHT).cast("decimal(19,0)") * bits.cast("decimal(10,0)")
        sums.append(sf.sum(product).alias(f"at{shift}"))
    return sums


def _digest(sums: dict[str, object]) -> int:
    return sum(int(sums.get(f"at{shift}") or 0) << shift for _, _, shift in _LIMBS) % SPAN  # type: ignore[call-overload]
