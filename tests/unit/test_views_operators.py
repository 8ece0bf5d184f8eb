"""Joins, set operations and keyed operators compared with plain Python."""

from collections import Counter
from typing import Any, get_args

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.unit.spark_hash import hashed
from tests.unit.test_views_types import MemoryTraces
from tidemill.errors import UsageError, WeightNegative, WeightOverflow
from tidemill.views.kernels.join import JoinKernel
from tidemill.views.kernels.keyed_rows import AdmissionKernel, replacement, rows_of_keys
from tidemill.views.kernels.set_operations import Kind, SetKernel
from tidemill.views.kernels.zsets import net_rows
from tidemill.views.trace import trace
from tidemill.views.trace.layout import Layout

WEAK = 0x8000_0000_0000_0001
SIDE = Layout(pa.schema([("a", pa.int64()), ("b", pa.string()), ("x", pa.int64())]), 2)
JOIN = JoinKernel(SIDE, SIDE, (False, True), (("a", "a"), ("x", "left")), (("b", "b"), ("x", "right")))

sides = st.dictionaries(
    st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "", "k"]), st.integers(0, 2)),
    st.integers(-2, 3),
    max_size=6,
)


def side(rows: dict[Any, int]) -> pa.Table:
    schema = pa.schema([*SIDE.columns, ("_w", pa.int64())])
    listed = [{"a": a, "b": b, "x": x, "_w": weight} for (a, b, x), weight in rows.items()]
    return hashed(pa.Table.from_pylist(listed, schema), ["a", "b"], WEAK)


def joined(left: Counter[Any], right: Counter[Any]) -> Counter[Any]:
    """a = a AND b <=> b"""
    rows: Counter[Any] = Counter()
    for (a, b, x), weight in left.items():
        for (other_a, other_b, y), times in right.items():
            if a is not None and a == other_a and b == other_b:
                rows[a, x, b, y] += weight * times
    return Counter({row: weight for row, weight in rows.items() if weight})


@settings(max_examples=40)
@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=4))
def test_the_sum_of_a_joins_changes_is_the_join(steps: list[tuple[dict[Any, int], dict[Any, int]]]) -> None:
    left_traces, right_traces = MemoryTraces(), MemoryTraces()
    left, right, out = Counter[Any](), Counter[Any](), Counter[Any]()
    for left_delta, right_delta in steps:
        left.update(left_delta)
        right.update(right_delta)
        left_change, right_change = (
            JOIN.consolidate_side(side(delta), SIDE) for delta in (left_delta, right_delta)
        )
        for piece in JOIN.step(
            left_change, right_change, left_traces.trace("l", SIDE), right_traces.trace("r", SIDE)
        ):
            assert piece.schema == JOIN.schema
            for row in piece.to_pylist():
                out[row["a"], row["left"], row["b"], row["right"]] += row["_w"]
        left_traces.append("l", SIDE, left_change)
        right_traces.append("r", SIDE, right_change)
        assert {row: weight for row, weight in out.items() if weight} == joined(left, right)


def products(rows: pa.Table) -> list[pa.Table]:
    """Join rows with themselves."""
    change = JOIN.consolidate_side(rows, SIDE)
    return list(JOIN.step(change, change, MemoryTraces().trace("l", SIDE), MemoryTraces().trace("r", SIDE)))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_many_rows_with_one_partner_each_are_joined_to_its_current_row(gaps: bool, times: int) -> None:
    schema = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    sides = Layout(schema, 1)
    join = JoinKernel(sides, sides, (False,), (("k", "k"), ("x", "x")), (("k", "other"), ("x", "y")))

    def table_of(rows: list[tuple[int, int, int]]) -> pa.Table:
        names = [*schema.names, "_w"]
        return hashed(pa.table([*map(list, zip(*rows, strict=True))], names=names), ["k"])

    right_traces = MemoryTraces()
    for rows in (
        [(k, 0, times) for k in range(300) if not gaps or k % 3],
        [row for k in range(0, 300, 5) for row in ((k, 0, -times), (k, k, times)) if not gaps or k % 3],
        [(7, 0, -times)],
    ):
        right_traces.append("r", sides, join.consolidate_side(table_of(rows), sides))
    partner = {k: (k if k % 5 == 0 else 0) for k in range(300) if k != 7 and (not gaps or k % 3)}
    left = [(n % 300, n, 1 + n % 2) for n in range(2_000)]
    moved = [(10, 10, -times), (10, 99, times), (400, 1, 1)]
    changes = [join.consolidate_side(table_of(rows), sides) for rows in (left, moved)]
    pieces = join.step(*changes, MemoryTraces().trace("l", sides), right_traces.trace("r", sides))
    out = Counter[Any]()
    rows_given = 0
    for piece in pieces:
        for row in piece.to_pylist():
            rows_given += 1
            assert row["k"] == row["other"]
            out[row["k"], row["x"], row["y"]] += row["_w"]
    partner[10] = 99
    expected = {(k, n, partner[k]): w * times for k, n, w in left if k in partner}
    assert {row: weight for row, weight in out.items() if weight} == expected
    assert rows_given == len(expected), "no row is output and deleted again"


present = st.dictionaries(
    st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "k"]), st.integers(0, 2)),
    st.integers(1, 2),
    max_size=5,
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.tuples(present, present), min_size=2, max_size=5))
def test_a_join_outputs_only_rows_of_its_result_before_or_after_the_step(
    states: list[tuple[dict[Any, int], dict[Any, int]]],
) -> None:
    """Other rows would cancel out, but an expression above would see them and might raise an error."""
    traces = MemoryTraces(), MemoryTraces()
    old: tuple[Counter[Any], Counter[Any]] = Counter(), Counter()
    for state in states:
        new = Counter(state[0]), Counter(state[1])
        left_change, right_change = (
            JOIN.consolidate_side(side({row: n[row] - o[row] for row in {*o, *n}}), SIDE)
            for o, n in zip(old, new, strict=True)
        )
        results = {*joined(*old), *joined(*new)}
        for piece in JOIN.step(
            left_change, right_change, traces[0].trace("l", SIDE), traces[1].trace("r", SIDE)
        ):
            assert {(row["a"], row["left"], row["b"], row["right"]) for row in piece.to_pylist()} <= results
        traces[0].append("l", SIDE, left_change)
        traces[1].append("r", SIDE, right_change)
        old = new


@pytest.mark.parametrize("rows", [2, 6, 40])
def test_inserted_and_deleted_rows_are_not_joined_with_new_rows(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results would cancel out, but an expression above would see them and might raise an error."""
    monkeypatch.setattr(trace, "_CHUNK_ROWS", 4)  # reads 16 rows at once, so larger keys are read in pieces
    traces = MemoryTraces()
    stored = {(k, "k", x): 1 for k in (1, 2) for x in range(rows)}
    for change in (stored, {row: -weight for row, weight in stored.items() if row[:1] == (1,)}):
        traces.append("t", SIDE, JOIN.consolidate_side(side(change), SIDE))
    inserted = JOIN.consolidate_side(side({(1, "k", 7): 1, (2, "k", 8): 1}), SIDE)
    nothing = JOIN.consolidate_side(side({}), SIDE)
    for sides in ((inserted, nothing), (nothing, inserted)):
        pieces = JOIN.step(*sides, traces.trace("t", SIDE), traces.trace("t", SIDE))
        output = [row for piece in pieces for row in piece.to_pylist()]
        deleted = {row["a"] for row in output if row["_w"] < 0}
        assert not deleted, "not even for a key whose rows do not fit into one table"
        assert Counter(row["a"] for row in output if row["_w"] > 0)[2] == rows


def test_rows_that_cannot_match_are_not_stored() -> None:
    rows = side({(None, "k", 1): 1, (1, None, 1): 1, (1, "k", 1): 0})
    stored = JOIN.consolidate_side(rows, SIDE)
    assert stored.num_rows == 1
    assert [row["_w"] for piece in products(rows) for row in piece.to_pylist()] == [1]


def test_a_join_whose_keys_have_different_types_is_refused() -> None:
    other = Layout(pa.schema([("a", pa.int32()), ("b", pa.string())]), 2)
    with pytest.raises(UsageError, match="differ"):
        JoinKernel(SIDE, other, (False, False), (), ())


def test_a_weight_that_overflows_in_a_join_is_refused() -> None:
    rows = side({(1, "k", 1): 2**40})
    with pytest.raises(WeightOverflow):
        products(rows)


def test_a_join_with_a_very_common_key_outputs_its_rows_in_pieces() -> None:
    rows = side({(1, "k", n): 1 for n in range(700)})
    pieces = products(rows)
    assert len(pieces) > 1
    assert sum(piece.num_rows for piece in pieces) == 700 * 700


# --- set operations

MODELS: dict[str, Any] = {
    "distinct": lambda left, right: Counter(set(left)),
    "union": lambda left, right: Counter(set(left) | set(right)),
    "intersect": lambda left, right: Counter(set(left) & set(right)),
    "intersect_all": lambda left, right: left & right,
    "except": lambda left, right: Counter(set(left) - set(right)),
    "except_all": lambda left, right: left - right,
    "matched": lambda left, right: Counter({row: left[row] for row in left if row in right}),
    "unmatched": lambda left, right: Counter({row: left[row] for row in left if row not in right}),
}
COLUMNS = pa.schema([("v", pa.float64()), ("t", pa.string())])
WHOLE = Layout(COLUMNS, 2)
values = st.tuples(st.sampled_from([None, 0.0, 1.5]), st.sampled_from([None, "a"]))
changes = st.lists(st.tuples(st.booleans(), values, st.integers(-2, 3)), max_size=5)


def rows_of(rows: list[tuple[Any, int]]) -> pa.Table:
    schema = pa.schema([*COLUMNS, ("_w", pa.int64())])
    listed = [{"v": v, "t": t, "_w": weight} for (v, t), weight in rows]
    return hashed(pa.Table.from_pylist(listed, schema), ["v", "t"], WEAK)


@pytest.mark.slow
@pytest.mark.parametrize("kind", get_args(Kind))
@settings(max_examples=15)
@given(st.lists(changes, min_size=1, max_size=4))
def test_the_sum_of_a_set_operations_changes_is_its_result(
    kind: Kind, steps: list[list[tuple[bool, Any, int]]]
) -> None:
    operation, traces = SetKernel(kind, COLUMNS), MemoryTraces()
    contents: dict[bool, Counter[Any]] = {True: Counter(), False: Counter()}
    out: Counter[Any] = Counter()
    for step in steps:
        delta: dict[bool, list[tuple[Any, int]]] = {True: [], False: []}
        for is_left, row, wish in step:
            weight = max(wish, -contents[is_left][row])
            contents[is_left][row] += weight
            delta[is_left].append((row, weight))
        right = None if kind == "distinct" else rows_of(delta[False])
        result = operation.step(rows_of(delta[True]), right, traces.trace("t", operation.layout))
        traces.append("t", operation.layout, result.state)
        for row in result.out.to_pylist():
            out[row["v"], row["t"]] += row["_w"]
        expected = MODELS[kind](+contents[True], +contents[False])
        assert {row: weight for row, weight in out.items() if weight} == expected


def test_a_negative_weight_is_an_error() -> None:
    operation = SetKernel("distinct", COLUMNS)
    with pytest.raises(WeightNegative):
        operation.step(rows_of([((1.0, "a"), -1)]), None, MemoryTraces().trace("t", operation.layout))


def test_distinct_treats_zeros_as_equal_and_nans_as_equal() -> None:
    operation = SetKernel("distinct", COLUMNS)
    rows = [((-0.0, "a"), 1), ((0.0, "a"), 1), ((float("nan"), "a"), 1), ((float("nan"), "a"), 2)]
    result = operation.step(rows_of(rows), None, MemoryTraces().trace("t", operation.layout))
    assert sorted(map(str, result.out["v"].to_pylist())) == ["0.0", "nan"]


# --- union all


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.tuples(values, st.integers(-2, 2)), max_size=6), min_size=1, max_size=3),
    st.randoms(),
)
def test_a_union_adds_weights_independent_of_the_order(
    parts: list[list[tuple[Any, int]]], chance: Any
) -> None:
    model: Counter[Any] = Counter()
    for part in parts:
        for row, weight in part:
            model[row] += weight
    result = net_rows(pa.concat_tables([rows_of(part).drop_columns("_h") for part in parts]))
    assert {(row["v"], row["t"]): row["_w"] for row in result.to_pylist()} == {
        row: w for row, w in model.items() if w
    }
    shuffled = [item for part in parts for item in part]
    chance.shuffle(shuffled)
    assert net_rows(rows_of(shuffled).drop_columns("_h")).equals(result.combine_chunks())


# --- keyed operators and sources


def counted(table: pa.Table, names: list[str]) -> Counter[Any]:
    rows: Counter[Any] = Counter()
    for row in table.to_pylist():
        rows[tuple(row[name] for name in names)] += row["_w"]
    return rows


@settings(max_examples=30)
@given(
    sides,
    sides,
    st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "", "k"])), max_size=4),
)
def test_rows_of_keys_returns_only_rows_of_these_keys(
    old: dict[Any, int], new: dict[Any, int], keys: list[Any]
) -> None:
    traces = MemoryTraces()
    traces.append("t", SIDE, side({row: abs(weight) for row, weight in old.items()}))
    delta = {row: abs(weight) for row, weight in new.items()}
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    requested = pa.Table.from_pylist([{"a": a, "b": b} for a, b in keys], schema)
    rows = rows_of_keys(hashed(requested, ["a", "b"], WEAK), traces.trace("t", SIDE), side(delta))
    model = Counter({row: abs(weight) for row, weight in old.items()}) + Counter(delta)
    assert counted(rows, ["a", "b", "x"]) == {row: w for row, w in model.items() if w and row[:2] in keys}


def test_a_replacement_deletes_stored_rows_and_inserts_new_ones() -> None:
    traces = MemoryTraces()
    traces.append("t", SIDE, side({(1, "k", 1): 1, (1, "k", 2): 1, (2, "k", 5): 1, (1, "other", 9): 1}))
    keys = hashed(pa.table({"a": [1, 2, 1], "b": ["k", "k", "k"]}), ["a", "b"], WEAK)
    results = side({(1, "k", 2): 1, (1, "k", 3): 1})
    change = replacement(results, rows_of_keys(keys, traces.trace("t", SIDE)), SIDE)
    assert counted(change, ["a", "b", "x"]) == {(1, "k", 1): -1, (1, "k", 3): 1, (2, "k", 5): -1}
    traces.append("t", SIDE, change)
    assert replacement(results, rows_of_keys(keys, traces.trace("t", SIDE)), SIDE).num_rows == 0


def test_a_negative_weight_in_a_keyed_operator_is_an_error() -> None:
    traces = MemoryTraces()
    traces.append("t", SIDE, side({(1, "k", 1): -1}))
    with pytest.raises(WeightNegative):
        rows_of_keys(hashed(pa.table({"a": [1], "b": ["k"]}), ["a", "b"], WEAK), traces.trace("t", SIDE))


@settings(max_examples=40)
@given(st.lists(st.lists(st.tuples(values, st.integers(-3, 3)), max_size=4), min_size=1, max_size=5))
def test_rows_deleted_before_they_are_inserted_are_quarantined_and_netted(
    steps: list[list[tuple[Any, int]]],
) -> None:
    source, traces = AdmissionKernel(WHOLE), MemoryTraces()
    contents, out, quarantine = Counter[Any](), Counter[Any](), Counter[Any]()
    for step in steps:
        for row, weight in step:
            contents[row] += weight
        result = source.step(
            rows_of(step), traces.trace("t", source.layout), traces.trace("aside", source.layout)
        )
        traces.append("t", source.layout, result.state)
        traces.append("aside", source.layout, result.quarantine)
        out.update(counted(result.out, ["v", "t"]))
        quarantine.update(counted(result.quarantine, ["v", "t"]))
        assert {row: w for row, w in out.items() if w} == {row: w for row, w in contents.items() if w > 0}
        assert {row: w for row, w in quarantine.items() if w} == {
            row: w for row, w in contents.items() if w < 0
        }


def test_a_deletion_matches_only_an_identical_row() -> None:
    source, traces = AdmissionKernel(WHOLE), MemoryTraces()
    for row, out, quarantined in (((-0.0, 1), 1, 0), ((0.0, -1), 0, 1), ((-0.0, -1), 1, 0), ((0.0, 1), 0, 1)):
        rows = rows_of([((row[0], "a"), row[1])])
        result = source.step(rows, traces.trace("t", source.layout), traces.trace("aside", source.layout))
        traces.append("t", source.layout, result.state)
        traces.append("aside", source.layout, result.quarantine)
        assert (result.out.num_rows, result.quarantine.num_rows) == (out, quarantined)
    assert not list(traces.trace("t", source.layout).scan())


class SmallTables:
    """The stored rows of one frequent key, in tables of two rows."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def lookups(self, hashes: Any, columns: Any = None) -> Any:
        for first in range(0, self.rows.num_rows, 2):
            yield self.rows.slice(first, 2)


@pytest.mark.rule("DBSP-20")
def test_a_frequent_key_does_not_join_deleted_rows() -> None:
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64())])
    sides = Layout(schema, 1)
    join = JoinKernel(sides, sides, (False,), (("k", "k"), ("x", "x")), (("x", "y"),))

    def table_of(*rows: tuple[int, float, int]) -> pa.Table:
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
        table = pa.table(columns, schema=pa.schema([*schema, ("_w", pa.int64())]))
        return hashed(table, ["k"])

    stored = SmallTables(
        table_of((7, 1.0, 1), (7, 0.0, 1), (7, 2.0, 2), (7, -0.0, 1), (7, 0.0, -1), (7, 3.0, 1))
    )
    inserted = join.consolidate_side(table_of((7, 10.0, 1)), sides)
    deleted = join.consolidate_side(table_of((7, 11.0, -1)), sides)
    change = join.consolidate_side(table_of((7, 1.0, -1), (7, 4.0, 1)), sides)
    nothing = SmallTables(table_of())

    def pairs(left: pa.Table, right: pa.Table, before: Any = nothing) -> list[tuple[float, str, int]]:
        pieces = list(join.step(left, right, before, stored))
        return sorted((row["x"], str(row["y"]), row["_w"]) for piece in pieces for row in piece.to_pylist())

    assert pairs(inserted, sides.empty()) == [
        (10.0, "-0.0", 1), (10.0, "1.0", 1), (10.0, "2.0", 2), (10.0, "3.0", 1)
    ]  # fmt: skip
    assert pairs(inserted, change) == [
        (10.0, "-0.0", 1), (10.0, "2.0", 2), (10.0, "3.0", 1), (10.0, "4.0", 1)
    ]  # fmt: skip
    assert pairs(deleted, change, SmallTables(table_of((7, 11.0, 1)))) == [
        (11.0, "-0.0", -1), (11.0, "1.0", -1), (11.0, "2.0", -2), (11.0, "3.0", -1)
    ]  # fmt: skip
