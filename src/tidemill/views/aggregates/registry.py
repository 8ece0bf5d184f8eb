"""The registry of aggregates: one entry for each aggregate function of Spark.

The parser, the rungs, the rewrites, the kernels, tie breaking and certification all look up aggregates here.

An aggregate with a `kernel` is *native*: each group stores an accumulator, and a step updates it from the
changed rows alone. An aggregate without a kernel is *keyed*: Spark recomputes the groups that changed. To
make an aggregate native, give its entry a kernel. If no `Accumulator` fits, add one, and compute it in
`tidemill.views.kernels.group_by`.

    accumulator   stored for each group and column          raw columns of a group
    COUNT         the number of rows or values              the number
    SUM           an exact sum (see `sums`)                 integers, decimals: sum, whether it overflows 38
                                                            digits, and with `counts` the number of values;
                                                            floats: one double, rounded once
    MOMENTS       exact sums of values and of products      one double (see `moments`)
    BITS          how many values have each bit             the value
    LEAST         the lowest values (see `extremes`)        the value
    GREATEST      the highest values                        the value

The kernel's `final` converts the raw columns to the values of Spark's aggregate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidemill.views.aggregates import finals, moments
from tidemill.views.aggregates.moments import Mask, Moments, Result
from tidemill.views.aggregates.sums import Doubles, averages, totals
from tidemill.views.trace.order import I64


class Accumulator(Enum):
    """What each group stores for a native aggregate."""

    COUNT = "count"
    SUM = "sum"
    MOMENTS = "moments"
    BITS = "bits"
    LEAST = "least"
    GREATEST = "greatest"

    @property
    def is_extreme(self) -> bool:
        return self in {Accumulator.LEAST, Accumulator.GREATEST}


class Argument(Enum):
    """How the arguments of a call become the one column that a kernel takes."""

    VALUE = "value"
    """The call has one argument, and the kernel takes it."""
    ALL_PRESENT = "all present"
    """The call has any number of arguments; the kernel takes the rows in which no argument is NULL."""
    TRUE = "true"
    """The call has one condition; the kernel takes the rows in which the condition is true."""
    PAIR = "pair"
    """The call has two arguments; the kernel takes the rows in which both are present."""
    ORDERED = "ordered"
    """The kernel takes a struct of the order that chooses a row (`ties.row_order`), and of the value."""


class Empty(Enum):
    """The result of an aggregate over no rows."""

    NULL = "NULL"
    ZERO = "0"
    UNKNOWN = "unknown"


class TieBreak(Enum):
    """How `circuit.ties` makes the result of an aggregate independent of the order of rows."""

    FIRST = "the row with the lowest hash"
    LAST = "the row with the highest hash"
    BY = "its key, then the hash"
    MODE = "the lowest of the most frequent values"
    TEXT = "texts in the order of the hash"
    LIST = "a list sorted by the hash"


class Precision(Enum):
    """How close a result must be to Spark's (DBSP-20)."""

    EXACT = "exact"
    FLOAT = "float"
    APPROXIMATE = "approximate"


def _total(group: I64, bins: I64, sums: I64, rows: I64) -> Doubles:
    return totals(group, bins, sums, len(rows))


def _average(moments: Moments) -> Result:
    return moments.x, moments.rows > 0


def _any_has_it(having: I64, _all: I64) -> Mask:
    return having > 0


def _of_bits(has_bit: Callable[[I64, I64], Mask]) -> "Kernel":
    return Kernel(Accumulator.BITS, takes=finals.takes_bits, has_bit=has_bit)


@dataclass(frozen=True)
class Kernel:
    """How a native aggregate is computed.

    Args:
        accumulator: what each group stores.
        argument: how the arguments become the accumulated column.
        value: SQL that computes the accumulated value from the argument `{}`.
        counts: whether the result needs the number of values in addition to the sum.
        of_doubles: computes the result over floats from the bins of the groups (see `sums.totals`).
        products: the products whose sums the result needs: xx, yy, xy (see `moments`).
        of_moments: computes the result from the moments of the groups.
        has_bit: tells from the number of values that have a bit, and from that of all values, whether the
            result has it.
        takes: tests whether the kernel supports an argument type and a result type.
        final: computes the aggregate's values from the raw columns, the argument type and the result type.
    """

    accumulator: Accumulator
    argument: Argument = Argument.VALUE
    value: str = "{}"
    counts: bool = False
    of_doubles: Callable[[I64, I64, I64, I64], Doubles] = _total
    products: tuple[str, ...] = ()
    of_moments: Callable[[Moments], Result] = _average
    has_bit: Callable[[I64, I64], Mask] = _any_has_it
    takes: Callable[[pa.DataType | None, pa.DataType], bool] = finals.any_types
    final: Callable[[Sequence[pa.Array], pa.DataType, pa.DataType], pa.Array] = finals.unchanged

    def raw_width(self, argument: pa.DataType | None) -> int:
        """Return how many raw columns the kernel has for an argument of this type."""
        if self.accumulator is not Accumulator.SUM or pat.is_floating(argument):
            return 1
        return 3 if self.counts else 2


@dataclass(frozen=True)
class AggregateFunction:
    """What Tidemill knows about one aggregate function.

    Args:
        name: in lower case.
        kernel: how the function is computed natively; None if Spark recomputes the groups that changed.
        same_as: the aggregate that replaces this one in a rewritten call, such as avg for mean; or empty.
        ignores_duplicates: whether DISTINCT does not change the result.
        empty: its result over no rows.
        precision: how close the result must be to Spark's.
        ties: how its result is made independent of the order of rows; None if the order of rows does not
            matter.
    """

    name: str
    kernel: Kernel | None = None
    same_as: str = ""
    ignores_duplicates: bool = False
    empty: Empty = Empty.UNKNOWN
    precision: Precision = Precision.EXACT
    ties: TieBreak | None = None

    @property
    def rung(self) -> str:
        """The rung of an operator that computes this function: native or keyed (`circuit.rungs`)."""
        return "keyed" if self.kernel is None else "native"


def _of_one(of_moments: Callable[[Moments], Result]) -> Kernel:
    """Return the kernel of a variance or standard deviation."""
    takes = finals.takes_moments
    return Kernel(Accumulator.MOMENTS, takes=takes, products=("xx",), of_moments=of_moments)


def _of_two(of_moments: Callable[[Moments], Result], *products: str) -> Kernel:
    """Return the kernel of a covariance, correlation or regression: y is the first argument, x the second."""
    return Kernel(
        Accumulator.MOMENTS,
        Argument.PAIR,
        takes=finals.takes_moments,
        products=products,
        of_moments=of_moments,
    )


_OF_LEAST = Kernel(Accumulator.LEAST, Argument.ORDERED, takes=finals.takes_ordered, final=finals.value_of_row)
_OF_GREATEST = Kernel(
    Accumulator.GREATEST, Argument.ORDERED, takes=finals.takes_ordered, final=finals.value_of_row
)
_COUNT = Kernel(Accumulator.COUNT, Argument.ALL_PRESENT)
_COUNT_TRUE = Kernel(Accumulator.COUNT, Argument.TRUE)
_SUM = Kernel(Accumulator.SUM, takes=finals.takes_sum, final=finals.sums)
_AVERAGE = Kernel(
    Accumulator.SUM, counts=True, of_doubles=averages, takes=finals.takes_average, final=finals.averages
)
_LEAST = Kernel(Accumulator.LEAST)
_GREATEST = Kernel(Accumulator.GREATEST)
# Spark casts texts in the arguments of these functions, but not in those of count, min and max.
_COUNT_NUMBERS = Kernel(Accumulator.COUNT, Argument.ALL_PRESENT, value="CAST({} AS DOUBLE)")
_ALL_TRUE = Kernel(Accumulator.LEAST, value="CAST({} AS BOOLEAN)")
_ANY_TRUE = Kernel(Accumulator.GREATEST, value="CAST({} AS BOOLEAN)")
_VARIANCE, _VARIANCE_OF_ALL = _of_one(moments.sample("xx")), _of_one(moments.population("xx"))
_DEVIATION = _of_one(moments.root(moments.sample("xx")))
_DEVIATION_OF_ALL = _of_one(moments.root(moments.population("xx")))
_CORRELATION = _of_two(moments.correlation, "xx", "yy", "xy")
_INTERCEPT = _of_two(moments.intercept, "xx", "xy")
_DETERMINATION = _of_two(moments.determination, "xx", "yy", "xy")
_NULL, _ZERO, _FLOAT = Empty.NULL, Empty.ZERO, Precision.FLOAT
_APPROXIMATE = Precision.APPROXIMATE

_ENTRIES: Final = (
    # --- native; for booleans, the least value is true if all values are, the greatest if any is
    AggregateFunction("any", _ANY_TRUE, same_as="max", ignores_duplicates=True, empty=_NULL),
    AggregateFunction("avg", _AVERAGE, empty=_NULL, precision=_FLOAT),
    AggregateFunction("bit_and", _of_bits(np.equal), ignores_duplicates=True, empty=_NULL),
    AggregateFunction("bit_or", _of_bits(_any_has_it), ignores_duplicates=True, empty=_NULL),
    AggregateFunction("bit_xor", _of_bits(lambda having, _all: having % 2 == 1), empty=_NULL),
    AggregateFunction("bool_and", _ALL_TRUE, same_as="min", ignores_duplicates=True, empty=_NULL),
    AggregateFunction("bool_or", _ANY_TRUE, same_as="max", ignores_duplicates=True, empty=_NULL),
    AggregateFunction("count", _COUNT, empty=_ZERO),
    AggregateFunction("count_if", _COUNT_TRUE, same_as="count", empty=_ZERO),
    AggregateFunction("every", _ALL_TRUE, same_as="min", ignores_duplicates=True, empty=_NULL),
    AggregateFunction("max", _GREATEST, ignores_duplicates=True, empty=_NULL),
    AggregateFunction("mean", _AVERAGE, same_as="avg", empty=_NULL, precision=_FLOAT),
    AggregateFunction("min", _LEAST, ignores_duplicates=True, empty=_NULL),
    AggregateFunction("regr_count", _COUNT_NUMBERS, same_as="count", empty=_ZERO),
    AggregateFunction("some", _ANY_TRUE, same_as="max", ignores_duplicates=True, empty=_NULL),
    AggregateFunction("sum", _SUM, empty=_NULL, precision=_FLOAT),
    AggregateFunction("corr", _CORRELATION, empty=_NULL, precision=_FLOAT),
    AggregateFunction("covar_pop", _of_two(moments.population("xy"), "xy"), empty=_NULL, precision=_FLOAT),
    AggregateFunction("covar_samp", _of_two(moments.sample("xy"), "xy"), empty=_NULL, precision=_FLOAT),
    AggregateFunction("regr_avgx", _of_two(_average), empty=_NULL, precision=_FLOAT),
    AggregateFunction("regr_avgy", _of_two(moments.moment("y")), empty=_NULL, precision=_FLOAT),
    AggregateFunction("regr_intercept", _INTERCEPT, empty=_NULL, precision=_FLOAT),
    AggregateFunction("regr_r2", _DETERMINATION, empty=_NULL, precision=_FLOAT),
    AggregateFunction("regr_slope", _of_two(moments.slope, "xx", "xy"), empty=_NULL, precision=_FLOAT),
    AggregateFunction("regr_sxx", _of_two(moments.moment("xx"), "xx"), empty=_NULL, precision=_FLOAT),
    AggregateFunction("regr_sxy", _of_two(moments.moment("xy"), "xy"), empty=_NULL, precision=_FLOAT),
    AggregateFunction("regr_syy", _of_two(moments.moment("yy"), "yy"), empty=_NULL, precision=_FLOAT),
    AggregateFunction("std", _DEVIATION, same_as="stddev_samp", empty=_NULL, precision=_FLOAT),
    AggregateFunction("stddev", _DEVIATION, same_as="stddev_samp", empty=_NULL, precision=_FLOAT),
    AggregateFunction("stddev_pop", _DEVIATION_OF_ALL, empty=_NULL, precision=_FLOAT),
    AggregateFunction("stddev_samp", _DEVIATION, empty=_NULL, precision=_FLOAT),
    AggregateFunction("var_pop", _VARIANCE_OF_ALL, empty=_NULL, precision=_FLOAT),
    AggregateFunction("var_samp", _VARIANCE, empty=_NULL, precision=_FLOAT),
    AggregateFunction("variance", _VARIANCE, same_as="var_samp", empty=_NULL, precision=_FLOAT),
    # --- native, with a result that depends on the order of rows
    AggregateFunction("any_value", _OF_LEAST, same_as="min_by", empty=_NULL, ties=TieBreak.FIRST),
    AggregateFunction("first", _OF_LEAST, same_as="min_by", empty=_NULL, ties=TieBreak.FIRST),
    AggregateFunction("first_value", _OF_LEAST, same_as="min_by", empty=_NULL, ties=TieBreak.FIRST),
    AggregateFunction("last", _OF_GREATEST, same_as="max_by", empty=_NULL, ties=TieBreak.LAST),
    AggregateFunction("last_value", _OF_GREATEST, same_as="max_by", empty=_NULL, ties=TieBreak.LAST),
    AggregateFunction("max_by", _OF_GREATEST, empty=_NULL, ties=TieBreak.BY),
    AggregateFunction("min_by", _OF_LEAST, empty=_NULL, ties=TieBreak.BY),
    # --- keyed, with a result that depends on the order of rows
    AggregateFunction("array_agg", ties=TieBreak.LIST),
    AggregateFunction("collect_list", ties=TieBreak.LIST),
    AggregateFunction("listagg", ties=TieBreak.TEXT),
    AggregateFunction("mode", empty=_NULL, ties=TieBreak.MODE),
    AggregateFunction("string_agg", ties=TieBreak.TEXT),
    # --- keyed
    AggregateFunction("approx_count_distinct", empty=_ZERO, precision=_APPROXIMATE),
    AggregateFunction("approx_percentile", empty=_NULL, precision=_APPROXIMATE),
    AggregateFunction("approx_top_k", precision=_APPROXIMATE),
    AggregateFunction("approx_top_k_accumulate", precision=_APPROXIMATE),
    AggregateFunction("approx_top_k_combine", precision=_APPROXIMATE),
    AggregateFunction("bitmap_and_agg"),
    AggregateFunction("bitmap_construct_agg"),
    AggregateFunction("bitmap_or_agg"),
    AggregateFunction("collect_set"),
    AggregateFunction("collect_union"),
    AggregateFunction("count_min_sketch"),
    AggregateFunction("histogram_numeric", precision=_FLOAT),
    AggregateFunction("hll_sketch_agg"),
    AggregateFunction("hll_union_agg"),
    AggregateFunction("kll_merge_agg_bigint"),
    AggregateFunction("kll_merge_agg_double"),
    AggregateFunction("kll_merge_agg_float"),
    AggregateFunction("kll_sketch_agg_bigint"),
    AggregateFunction("kll_sketch_agg_double"),
    AggregateFunction("kll_sketch_agg_float"),
    AggregateFunction("kurtosis", empty=_NULL, precision=_FLOAT),
    AggregateFunction("measure"),
    AggregateFunction("median", empty=_NULL, precision=_FLOAT),
    AggregateFunction("percentile", empty=_NULL, precision=_FLOAT),
    AggregateFunction("percentile_approx", empty=_NULL, precision=_APPROXIMATE),
    AggregateFunction("percentile_cont", empty=_NULL, precision=_FLOAT),
    AggregateFunction("percentile_disc", empty=_NULL, precision=_FLOAT),
    AggregateFunction("schema_of_variant_agg"),
    AggregateFunction("skewness", empty=_NULL, precision=_FLOAT),
    AggregateFunction("theta_intersection_agg"),
    AggregateFunction("theta_sketch_agg"),
    AggregateFunction("theta_union_agg"),
    AggregateFunction("try_avg", empty=_NULL, precision=_FLOAT),
    AggregateFunction("try_sum", empty=_NULL, precision=_FLOAT),
    AggregateFunction("tuple_intersection_agg_double"),
    AggregateFunction("tuple_intersection_agg_integer"),
    AggregateFunction("tuple_sketch_agg_double"),
    AggregateFunction("tuple_sketch_agg_integer"),
    AggregateFunction("tuple_union_agg_double"),
    AggregateFunction("tuple_union_agg_integer"),
    AggregateFunction("vector_avg", precision=_FLOAT),
    AggregateFunction("vector_sum", precision=_FLOAT),
)

AGGREGATES: Final[Mapping[str, AggregateFunction]] = {entry.name: entry for entry in _ENTRIES}
"""Every aggregate function, by its name."""

_UNKNOWN: Final = AggregateFunction("")


def aggregate(name: str) -> AggregateFunction:
    """Return the entry of an aggregate; an empty entry for any other name, such as a user's function."""
    return AGGREGATES.get(name, _UNKNOWN)


def kernel_of(name: str) -> Kernel | None:
    """Return the kernel of an aggregate; None if it has none or is replaced by another one (`same_as`)."""
    entry = aggregate(name)
    return None if entry.same_as else entry.kernel


def precision_of(name: str) -> Precision:
    """Return how close the result of a function, aggregate or not, must be to Spark's."""
    if name.startswith(("approx_", "percentile_approx")):
        return Precision.APPROXIMATE
    return aggregate(name).precision
