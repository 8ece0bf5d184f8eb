"""What "equal to Spark" means for a view (DBSP-20), read off its circuit.

exact     bit for bit, as Spark's own grouping compares: NaN is equal to itself, -0.0 to 0.0
float     sums, averages and variances of floats: within `bound`; all else of the row exact
ordered   where the order of the query leaves ties, the hash of the row is its last sort key, in the view and
          in the oracle (`circuit.ties`); the query as it was written, which has no such key, must give the
          same wherever Spark has one result for it
approx    approx_*: within their stated error
"""

from dataclasses import dataclass

from tidemill.views.aggregates.registry import Precision, precision_of
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import Aggregate, Opaque, Operator, Output, Window
from tidemill.views.circuit.ties import hanging, settled

FLOAT_BOUND = 1e-9
"""How far floats may be apart, relative to the larger of the two and of 1: far above what the order of a
sum can do to a million values of one size, far below any wrong row."""

APPROX_BOUND = 0.05
"""The stated error of approx_count_distinct, and more than that of the sketches."""


@dataclass(frozen=True)
class Equality:
    """How two results of a view are compared.

    - bound: relative, for floats; 0 for bit for bit.
    - ordered: the result of the query as it was written may hang on ties.
    - settled: that of the circuit does not: all its ties are broken.
    """

    bound: float = 0.0
    ordered: bool = False
    settled: bool = False

    @property
    def name(self) -> str:
        """The class, for people."""
        kinds = ["approx"] if self.bound >= APPROX_BOUND else ["float"] if self.bound else []
        return " and ".join([*kinds, *(["ordered"] if self.ordered else [])]) or "exact"


EXACT = Equality()
_BOUNDS = {Precision.EXACT: 0.0, Precision.FLOAT: FLOAT_BOUND, Precision.APPROXIMATE: APPROX_BOUND}


def equality_of(output: Output) -> Equality:
    """The class of a view."""
    needed = {precision_of(name) for op in walk(output) for name in _calls(op)}
    bound = max((_BOUNDS[precision] for precision in needed), default=0.0)
    order = hanging(output)
    # The hash of a row with an inexact sum in it is another one after another rounding.
    below = {name for op in order for child in op.inputs for one in walk(child) for name in _calls(one)}
    rounded = any(precision_of(name) is not Precision.EXACT for name in below)
    return Equality(bound, bool(order), bool(order) and not rounded and settled(output))


def _calls(op: Operator) -> set[str]:
    if isinstance(op, Aggregate | Window):
        return {call.name for call in op.calls}
    return set(op.calls) if isinstance(op, Opaque) else set()
