"""Every Spark type in Arrow: compared exactly, stored, grouped, ordered and summed, or refused."""

import datetime as dt
import itertools
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit import spark_hash
from tidemill.errors import TypeRefused
from tidemill.objects.memory import MemoryObjects
from tidemill.testing import FakeClock
from tidemill.views.kernels.canonical_keys import canonical_values
from tidemill.views.kernels.extremes import order_of
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import GroupKernel
from tidemill.views.kernels.join import JoinKernel
from tidemill.views.kernels.set_operations import SetKernel
from tidemill.views.trace import byte_shuffle
from tidemill.views.trace.bundle import Bundle
from tidemill.views.trace.cache import Cache
from tidemill.views.trace.consolidation import consolidate
from tidemill.views.trace.layout import Layout
from tidemill.views.trace.row_equality import (
    CodedRows,
    code_column,
    code_rows,
    equal_rows,
    group_equal,
    value_ids,
)
from tidemill.views.trace.trace import Trace
from tidemill.views.trace.version import TraceVersion

NAN = float("nan")
INF = float("inf")
UTC = dt.UTC
VARIANT = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])

# Spark type -> (its Arrow type, distinct values, in the order of Spark if the type has one)
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "BOOLEAN": (pa.bool_(), [False, True]),
    "TINYINT": (pa.int8(), [-128, 0, 127]),
    "SMALLINT": (pa.int16(), [-(2**15), 0, 1]),
    "INT": (pa.int32(), [-(2**31), -1, 0, 2**31 - 1]),
    "BIGINT": (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    "FLOAT": (pa.float32(), [-INF, -1.5, 0.0, 1.5, INF, NAN]),
    "DOUBLE": (pa.float64(), [-INF, -1e300, -5e-324, 0.0, 5e-324, 1e300, INF, NAN]),
    "DECIMAL(10,2)": (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal(0), Decimal("1.50")]),
    "DECIMAL(38,0)": (pa.decimal128(38, 0), [Decimal(-(10**37)), Decimal(2**64), Decimal(2**64 + 1)]),
    "STRING": (pa.string(), ["", "a", "a\0", "a" * 65, "a" * 65 + "b", "b", "é", "\U0001f600"]),
    "STRING as large": (pa.large_string(), ["", "12345678", "123456789"]),
    "BINARY": (pa.binary(), [b"", b"\0", b"\0\0", b"\x80"]),
    "DATE": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "TIMESTAMP": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(2024, 1, 1, tzinfo=UTC)],
    ),
    "TIMESTAMP_NTZ": (
        pa.timestamp("us"),
        [-1, 0, 2**40],
    ),
    "TIME": (pa.time64("ns"), [dt.time(0), dt.time(10), dt.time(23, 59, 59, 999999)]),
    "INTERVAL DAY TO SECOND": (
        pa.duration("us"),
        [dt.timedelta(days=-1), dt.timedelta(0), dt.timedelta(days=1)],
    ),
    "INTERVAL": (pa.month_day_nano_interval(), [(0, 0, 0), (0, 30, 0), (1, 0, 0), (1, 0, 1)]),
    "VOID": (pa.null(), []),
    "ARRAY<INT>": (pa.list_(pa.int32()), [[], [None], [1], [1, 2], [2, 1], [None, 1]]),
    "ARRAY<DOUBLE>": (pa.list_(pa.float64()), [[0.0], [NAN], [NAN, 0.0]]),
    "ARRAY<ARRAY<STRING>>": (pa.list_(pa.list_(pa.string())), [[[]], [["a"], ["b"]], [["a", "b"]], [None]]),
    "MAP<STRING,INT>": (
        pa.map_(pa.string(), pa.int32()),
        [[], [("a", 1)], [("a", None)], [("a", 1), ("b", 2)]],
    ),
    "ARRAY<MAP<INT,STRING>>": (
        pa.list_(pa.map_(pa.int32(), pa.string())),
        [[], [[]], [[(1, "x")]], [[(1, "y")]]],
    ),
    "STRUCT": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": None, "b": None}, {"a": 1, "b": "x"}, {"a": 1, "b": None}],
    ),
    "VARIANT": (
        VARIANT,
        [{"value": b"\x0c", "metadata": b"\x01"}, {"value": b"\x0c\0", "metadata": b"\x01"}],
    ),
}
EVERY = pytest.mark.parametrize("name", TYPES)
UNORDERED = {"INTERVAL", "VOID", "ARRAY<INT>", "ARRAY<DOUBLE>", "ARRAY<ARRAY<STRING>>", "MAP<STRING,INT>"}
UNORDERED |= {"ARRAY<MAP<INT,STRING>>", "STRUCT", "VARIANT"}
NUMBERS = {"TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,0)"}


def values_of(name: str) -> tuple[pa.DataType, list[Any]]:
    kind, values = TYPES[name]
    return kind, [*values, None]


def canonical_text(value: Any) -> str:
    return repr(
        sorted(value, key=repr)
        if isinstance(value, list) and value and isinstance(value[0], tuple)
        else value
    )


class MemoryTraces:
    """Traces in memory; each append creates the next version."""

    def __init__(self) -> None:
        self.objects = MemoryObjects(FakeClock())
        self.version = TraceVersion()
        self.names: set[str] = set()

    def trace(self, name: str, layout: Layout) -> Trace:
        return Trace(name, layout, self.version.traces.get(name, ()), Cache(self.objects, None))

    def append(self, name: str, layout: Layout, table: pa.Table) -> None:
        step = self.version.step + 1
        bundle = Bundle(self.objects, f"run-{step}")
        extended = self.trace(name, layout).extend(table, bundle)
        bundle.write()
        fresh = {name} - self.names
        self.names.add(name)
        self.version = self.version.apply(step, extended.added, extended.merged, rebuilt=fresh).version


def with_hashes(table: pa.Table, hashes: list[int]) -> pa.Table:
    return table.add_column(0, "_h", pa.array(hashes, pa.int64()))


@EVERY
def test_only_equal_values_compare_as_equal(name: str) -> None:
    kind, values = values_of(name)
    pairs = list(itertools.product(range(len(values)), repeat=2))
    left = pa.array([values[left_index] for left_index, _ in pairs], kind)
    right = pa.array([values[right_index] for _, right_index in pairs], kind)
    assert equal_rows([left], [right]).tolist() == [
        left_index == right_index for left_index, right_index in pairs
    ]
    ids = value_ids(code_column(left)).tolist()
    assert len(set(ids)) == len(values)
    assert all(
        (ids[a] == ids[b]) == (pairs[a][0] == pairs[b][0])
        for a, b in itertools.combinations(range(len(ids)), 2)
    )


@EVERY
def test_the_order_of_rows_does_not_depend_on_other_rows_of_the_array(name: str) -> None:
    kind, values = values_of(name)
    array = pa.array(values, kind)
    longer = pa.concat_arrays([pa.array(values[::-1], kind), array, array])
    assert code_column(longer.slice(len(values), len(values))).mix.tolist() == code_column(array).mix.tolist()


@EVERY
def test_a_stored_column_is_read_back_unchanged(name: str) -> None:
    kind, values = values_of(name)
    layout = Layout(pa.schema([("k", pa.int64()), ("p", kind)]), 1)
    traces = MemoryTraces()
    for weights in ([1] * len(values), [2] * len(values), [-1] * len(values)):
        table = pa.table({"k": list(range(len(values))), "p": pa.array(values, kind), "_w": weights})
        traces.append("t", layout, with_hashes(table, [n % 2 for n in range(len(values))]))
    rows = pa.concat_tables(traces.trace("t", layout).scan())
    assert Counter(map(canonical_text, rows["p"].to_pylist())) == Counter(
        map(canonical_text, pa.array(values, kind).to_pylist())
    )
    assert set(rows["_w"].to_pylist()) == {2}


@EVERY
@pytest.mark.parametrize("nulls", [True, False])
def test_a_column_is_unchanged_after_shuffle_and_unshuffle(name: str, nulls: bool) -> None:
    kind, values = values_of(name)
    array = pa.array([*values, *values] if nulls else [*TYPES[name][1], *TYPES[name][1]], kind)
    schema = pa.schema([("p", kind)])
    stored = byte_shuffle.stored_schema(schema)
    for start in range(len(array)):
        for count in range(1, len(array) - start + 1):
            expected = array.slice(start, count)
            parts = byte_shuffle.shuffle(pa.record_batch([expected], schema=schema), stored)
            parts.validate(full=True)
            (restored,) = byte_shuffle.unshuffle(parts, schema)
            restored.validate(full=True)
            assert restored.type == kind
            assert repr(restored.to_pylist()) == repr(expected.to_pylist())


@EVERY
def test_a_join_matches_only_equal_keys_if_all_hashes_collide(name: str) -> None:
    kind, values = values_of(name)
    layout = Layout(pa.schema([("k", kind), ("n", pa.int64())]), 1)
    join = JoinKernel(layout, layout, (True,), (("n", "a"),), (("n", "b"),))
    traces = MemoryTraces()
    table = pa.table({"k": pa.array(values, kind), "n": list(range(len(values))), "_w": [1] * len(values)})
    table = with_hashes(table, [7] * len(values))
    traces.append("right", layout, table)
    change = join.consolidate_side(table, layout)
    pieces = join.step(change, layout.empty(), traces.trace("left", layout), traces.trace("right", layout))
    pairs = [(row["a"], row["b"]) for piece in pieces for row in piece.to_pylist()]
    assert sorted(pairs) == [(n, n) for n in range(len(values))]


@EVERY
def test_distinct_counts_each_value_once_if_all_hashes_collide(name: str) -> None:
    kind, values = values_of(name)
    distinct = SetKernel("distinct", pa.schema([("v", kind)]))
    traces = MemoryTraces()
    table = with_hashes(
        pa.table({"v": pa.array(values * 2, kind), "_w": [1] * (2 * len(values))}), [7] * (2 * len(values))
    )
    first = distinct.step(table, None, traces.trace("t", distinct.layout))
    traces.append("t", distinct.layout, first.state)
    half = with_hashes(pa.table({"v": pa.array(values, kind), "_w": [-1] * len(values)}), [7] * len(values))
    second = distinct.step(half, None, traces.trace("t", distinct.layout))
    traces.append("t", distinct.layout, second.state)
    third = distinct.step(half, None, traces.trace("t", distinct.layout))
    assert first.out["_w"].to_pylist() == [1] * len(values)
    assert second.out.num_rows == 0
    assert third.out["_w"].to_pylist() == [-1] * len(values)
    assert Counter(map(canonical_text, first.out["v"].to_pylist())) == Counter(
        map(canonical_text, third.out["v"].to_pylist())
    )


@EVERY
def test_min_and_max_follow_the_order_or_refuse_the_type(name: str) -> None:
    kind, values = TYPES[name]
    if name in UNORDERED:
        with pytest.raises(TypeRefused, match=r"MIN and MAX of .* cannot be updated natively"):
            GroupKernel(pa.schema([]), pa.schema([("v", kind)]), (GroupAggregate("max", "v", "x"),))
        return
    order = order_of(pa.array(values, kind)).tolist()
    assert order == sorted(set(order))


@EVERY
def test_only_numbers_can_be_summed(name: str) -> None:
    kind, _ = TYPES[name]
    if name in NUMBERS:
        assert (
            GroupKernel(
                pa.schema([]), pa.schema([("v", kind)]), (GroupAggregate("sum", "v", "x"),)
            ).schema.names[1]
            == "x"
        )
    else:
        with pytest.raises(TypeRefused, match=r"sum of .* cannot be updated exactly"):
            GroupKernel(pa.schema([]), pa.schema([("v", kind)]), (GroupAggregate("sum", "v", "x"),))


def test_zeros_are_equal_as_keys_and_different_as_payloads() -> None:
    plus, minus = pa.array([0.0]), pa.array([-0.0])
    nested_plus, nested_minus = pa.array([[{"a": 0.0}]]), pa.array([[{"a": -0.0}]])
    for first, second in ((plus, minus), (nested_plus, nested_minus)):
        assert equal_rows([first], [second]).tolist() == [True]
        assert equal_rows([first], [second], zeros="differ").tolist() == [False]
        assert (
            canonical_values(pa.concat_arrays([first, second])).to_pylist()
            == canonical_values(first).to_pylist() * 2
        )
    layout = Layout(pa.schema([("k", pa.int64()), ("p", pa.float64())]), 1)
    table = pa.table({"_h": [1, 1], "k": [1, 1], "p": [0.0, -0.0], "_w": [1, 1]})
    assert consolidate(table, layout).num_rows == 2
    assert consolidate(table, layout, zeros="equal")["_w"].to_pylist() == [2]


def test_every_nan_is_the_same_value() -> None:
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert equal_rows([pa.array(odd)], [pa.array(odd[::-1])], zeros="differ").tolist() == [True, True]
    bits = canonical_values(pa.array(odd)).to_numpy().view(np.uint64)
    assert len(set(bits.tolist())) == 1


def test_canonical_nested_values_keep_their_shape_in_slices() -> None:
    kinds = {
        "map": (pa.map_(pa.float64(), pa.float64()), [[(-0.0, 1.0)], None, [(2.0, -0.0), (3.0, NAN)], []]),
        "list": (pa.large_list(pa.float32()), [[-0.0], None, [1.0, -0.0], []]),
        "fixed": (pa.list_(pa.float64(), 2), [[-0.0, 1.0], None, [1.0, -0.0], [2.0, 2.0]]),
        "struct": (pa.struct([("a", pa.list_(pa.float64()))]), [{"a": [-0.0]}, None, {"a": None}, {"a": []}]),
    }
    for kind, values in kinds.values():
        array = pa.array(values, kind).slice(1, 3)
        clean = canonical_values(array)
        assert repr(clean.to_pylist()) == repr(array.to_pylist()).replace("-0.0", "0.0")


def test_the_order_of_entries_does_not_change_a_map() -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.int64()))
    first = pa.array([[("a", [1]), ("b", [2])], [("a", [1])]], kind)
    second = pa.array([[("b", [2]), ("a", [1])], [("a", [2])]], kind)
    assert equal_rows([first], [second]).tolist() == [True, False]
    assert code_column(first).mix[0] == code_column(second).mix[0]


def test_rows_with_colliding_mixes_stay_separate() -> None:
    values = pa.array([n % 7 for n in range(200)])
    texts = pa.array([str(n % 3) for n in range(200)])
    keys = np.array([n % 2 for n in range(200)], np.int64)
    honest = code_rows([values, texts], 200)
    for weak in (
        honest,
        honest._replace(mix=honest.mix & np.uint64(1)),
        CodedRows(honest.codes, honest.mix * np.uint64(0)),
    ):
        order, starts = group_equal(weak, keys)
        assert sorted(order.tolist()) == list(range(200))
        groups = [{(n % 7, n % 3, n % 2) for n in part} for part in np.split(order, starts[1:])]
        assert all(len(group) == 1 for group in groups)
        assert len(groups) == 42


def test_different_types_are_not_compared() -> None:
    with pytest.raises(TypeRefused, match="int32 with int64"):
        equal_rows([pa.array([1], pa.int32())], [pa.array([1], pa.int64())])


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1, pa.int64(), -7001672635703045582),
        (-1, pa.int64(), 3858142552250413010),
        (1, pa.int32(), -6698625589789238999),
        (True, pa.bool_(), -6698625589789238999),
        ("", pa.string(), -7444071767201028348),
        ("abc", pa.string(), 1423657621850124518),
        ("0123456789" * 4, pa.string(), 5508798028064852934),
        (Decimal("1.50"), pa.decimal128(10, 2), -6873856301616164681),
        (1.5, pa.float64(), 7738255526519901366),
        (-0.0, pa.float64(), -5252525462095825812),
        (NAN, pa.float64(), -3127944061524951246),
        (dt.date(2024, 1, 1), pa.date32(), 3242891694566951137),
    ],
)
def test_the_hash_function_of_the_tests_equals_that_of_spark(
    value: Any, kind: pa.DataType, expected: int
) -> None:
    assert spark_hash.signed(spark_hash.of_value(value, kind, spark_hash.SEED)) == expected


def test_the_hash_of_a_key_includes_a_null_flag_for_each_column() -> None:
    table = pa.table({"a": [7], "b": ["ab"]})
    assert spark_hash.hashes(table, ["a", "b"]).to_pylist() == [-1611451375151355562]
    assert spark_hash.hashes(pa.table({"a": pa.array([None], pa.int32())}), ["a"]).to_pylist() == [
        -6698625589789238999
    ]
