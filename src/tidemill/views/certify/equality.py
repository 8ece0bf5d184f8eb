"""What "equal to Spark" means for a view (DBSP-20), read off its circuit.

exact     bit for bit, as Spark's own grouping compares: NaN is equal to itself, -0.0 to 0.0
float     sums, averages and variances of floats: within `bound`; all else of the row exact
ordered   where the order of the query leaves ties, Spark itself may give several results: a step in which it
          does is told apart (`Judge`), and every other step is compared exactly
approx    approx_*: within their stated error
"""

from dataclasses import dataclass

from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.functions import LINEAR_AGGREGATES, ORDERED, names
from tidemill.views.circuit.operators import Aggregate, Opaque, Operator, Output, TopK, Window
from tidemill.views.circuit.render import breaks_ties

FLOAT_BOUND = 1e-9
"""How far floats may be apart, relative to the larger of the two and of 1: far above what the order of a
sum can do to a million values of one size, far below any wrong row."""

APPROX_BOUND = 0.05
"""The stated error of approx_count_distinct, and more than that of the sketches."""

_COUNTS = names("any bool_and bool_or count count_if every regr_count some")
_INEXACT = (LINEAR_AGGREGATES - _COUNTS) | names("""
    histogram_numeric kurtosis median percentile percentile_cont percentile_disc skewness vector_avg
    vector_sum
    """)
_BY_ROW = names("row_number ntile lag lead nth_value first first_value last last_value any_value")


@dataclass(frozen=True)
class Equality:
    """How two results of a view are compared.

    - bound: relative, for floats; 0 for bit for bit.
    - ordered: the result may hang on ties.
    """

    bound: float = 0.0
    ordered: bool = False

    @property
    def name(self) -> str:
        """The class, for people."""
        kinds = ["approx"] if self.bound >= APPROX_BOUND else ["float"] if self.bound else []
        return " and ".join([*kinds, *(["ordered"] if self.ordered else [])]) or "exact"


EXACT = Equality()


def equality_of(output: Output) -> Equality:
    """The class of a view."""
    called: set[str] = set()
    ordered = False
    for op in walk(output):
        called |= _calls(op)
        ordered = ordered or _hangs_on_ties(op)
    approx = any(name.startswith(("approx_", "percentile_approx")) for name in called)
    bound = APPROX_BOUND if approx else FLOAT_BOUND if called & _INEXACT else 0.0
    return Equality(bound, ordered)


def _calls(op: Operator) -> set[str]:
    if isinstance(op, Aggregate | Window):
        return {call.name for call in op.calls}
    return set(op.calls) if isinstance(op, Opaque) else set()


def _hangs_on_ties(op: Operator) -> bool:
    if isinstance(op, TopK):
        return True
    if isinstance(op, Aggregate):
        return any(call.name in ORDERED for call in op.calls)
    if isinstance(op, Window):
        return any(call.name in ORDERED or breaks_ties(call.name, call.frame) for call in op.calls)
    if isinstance(op, Opaque):
        return not (ORDERED | _BY_ROW).isdisjoint(op.calls) or " limit " in f" {op.sql.lower()} "
    return False
