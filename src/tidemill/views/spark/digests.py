"""Digests of rows with weights, computed by Spark in the pass that writes them (DBSP-42).

A digest is the sum over rows of weight times H128, modulo 2^128: it adds up, whatever the order, the files
and the steps. The content of a table after a step is the content before and the step's digest; a table
written anew must have the digest that the steps have come to. The same as `kernels.digest`, in Spark's terms.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.spark.operations import WEIGHT
from tidemill.views.kernels.zsets import SPAN
from tidemill.views.spark.weighted_rows import HIGH, LOW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LIMBS = ((HIGH, 1, 96), (HIGH, 0, 64), (LOW, 1, 32), (LOW, 0, 0))
"""32 bits of H128 each: the column, which half of it, and where it stands in the sum."""


def observed(df: "DataFrame") -> "tuple[DataFrame, Callable[[], int]]":
    """The frame, and what gives the digest of its rows once it has been run: no pass of its own is needed."""
    from pyspark.sql import Observation

    seen = Observation()
    return df.observe(seen, *_sums()), lambda: _digest(dict(seen.get))


def measured(df: "DataFrame") -> int:
    """The digest of a frame of rows with identity and weight, by a job of its own."""
    return _digest(df.agg(*_sums()).collect()[0].asDict())


def text_of(digest: int) -> str:
    """As manifests and rows of the store have it."""
    return f"{digest % SPAN:032x}"


def number_of(text: str) -> int:
    """A digest from its text; 0, which nothing has, for the empty text."""
    return int(text or "0", 16)


def _sums() -> "list[Column]":
    from pyspark.sql import functions as sf

    found = []
    for column, half, shift in _LIMBS:
        bits = sf.shiftrightunsigned(sf.col(column), 32 * half).bitwiseAND(sf.lit(0xFFFFFFFF))
        # Decimals: limbs have 32 bits and weights 63, and a sum of many must not overflow.
        product = sf.col(WEIGHT).cast("decimal(19,0)") * bits.cast("decimal(10,0)")
        found.append(sf.sum(product).alias(f"at{shift}"))
    return found


def _digest(sums: dict[str, object]) -> int:
    return sum(int(sums.get(f"at{shift}") or 0) << shift for _, _, shift in _LIMBS) % SPAN  # type: ignore[call-overload]
