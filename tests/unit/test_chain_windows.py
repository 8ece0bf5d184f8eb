"""Window functions over ordered traces, compared with loops in Python over the sorted rows of each group."""

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.memory_chain import built, project, source
from tests.unit.single_operator import Row, SingleOperator
from tests.unit.views_stage import output
from tidemill.views.chain.window_operators import StatefulWindow
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import Expr, call, column
from tidemill.views.circuit.operators import Filter, Operator, Window, WindowCall
from tidemill.views.circuit.window_calls import kernel_call
from tidemill.views.kernels import ordered_trace
from tidemill.views.kernels.row_identity import row_identity
from tidemill.views.kernels.sort_codes import SortColumn
from tidemill.views.kernels.window_functions import Frame, WindowFunction
from tidemill.views.kernels.windows import RankLimit

BIG, TEXT, INT, REAL, MONEY = pa.int64(), pa.string(), pa.int32(), pa.float64(), pa.decimal128(8, 2)
TYPES = (TEXT, BIG, MONEY)
NAMES = ("k0", "p1", "p2")
POOLS: list[list[Any]] = [
    ["a", None],
    [None, *range(-5, 6)],
    [None, *(Decimal(n).scaleb(-2) for n in (-150, 0, 25, 99999))],
]


def sorted_group(rows: list[Row], order: tuple[SortColumn, ...]) -> list[Row]:
    """Sort rows like Spark; the hash of the row breaks ties."""
    arrays = [pa.chunked_array([pa.array([row[n] for row in rows], kind)]) for n, kind in enumerate(TYPES)]
    high, low = (half.to_pylist() for half in row_identity(arrays))
    numbers = sorted(range(len(rows)), key=lambda n: (high[n], low[n]))
    for key in reversed(order):

        def compared(first: int, second: int, key: SortColumn = key) -> int:
            left, right = rows[first][key.place], rows[second][key.place]
            if left is None or right is None:
                return ((right is None) - (left is None)) * (1 if key.nulls_first else -1)
            larger = int(left > right) - int(left < right)
            return -larger if key.descending else larger

        numbers.sort(key=cmp_to_key(compared))
    return [rows[n] for n in numbers]


def result(function: WindowFunction, rows: list[Row], at: int, order: tuple[SortColumn, ...]) -> Any:
    """Compute one function for one row of a sorted group."""
    keys = [tuple(row[key.place] for key in order) for row in rows]
    same = [n for n, key in enumerate(keys) if key == keys[at]]
    count = len(rows)
    values = [row[NAMES.index(function.argument)] if function.argument else 1 for row in rows]
    match function.name:
        case "row_number":
            return at + 1
        case "rank":
            return same[0] + 1
        case "dense_rank":
            return len(set(keys[: at + 1]))
        case "percent_rank":
            return same[0] / max(count - 1, 1)
        case "cume_dist":
            return (same[-1] + 1) / count
        case "ntile":
            size, extra = divmod(count, function.offset)
            sizes = [size + (n < extra) for n in range(function.offset)]
            return next(n + 1 for n in range(function.offset) if at < sum(sizes[: n + 1]))
        case "lag" | "lead":
            other = at + (function.offset if function.name == "lead" else -function.offset)
            default = None if function.default is None else rows[at][NAMES.index(function.default)]
            return values[other] if 0 <= other < count else default
    return over_frame(function, values, at, (same[0], same[-1] + 1))


def over_frame(function: WindowFunction, values: list[Any], at: int, peers: tuple[int, int]) -> Any:
    """Compute a function of the values in the frame of a row; its peers are given by their places."""
    count = len(values)
    frame = function.frame
    if frame.rows:
        low = 0 if frame.start is None else at + frame.start
        high = count if frame.end is None else at + frame.end + 1
    else:
        low = 0 if frame.start is None else peers[0]
        high = count if frame.end is None else peers[1]
    inside = values[max(low, 0) : max(high, 0)]
    present = [value for value in inside if value is not None]
    match function.name:
        case "count":
            return len(present)
        case "sum":
            return sum(present[1:], present[0]) if present else None
        case "avg":
            return sum(present) / len(present) if present else None
        case "min":
            return min(present, default=None)
        case "max":
            return max(present, default=None)
        case "nth_value":
            return inside[function.offset - 1] if len(inside) >= function.offset else None
        case "first_value":
            return inside[0] if inside else None
        case "last_value":
            return inside[-1] if inside else None
    raise AssertionError(function.name)


def expected(rows: list[Row], operator: StatefulWindow) -> Counter[str]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[place] for place in operator.keys), []).append(row)
    total: Counter[str] = Counter()
    for group in groups.values():
        ordered = sorted_group(group, operator.order)
        for at, row in enumerate(ordered):
            results = [result(function, ordered, at, operator.order) for function in operator.functions]
            if operator.limit is None or results[operator.limit.function] <= operator.limit.most:
                total[repr((*row, *results))] += 1
    return total


def of(
    name: str, kind: pa.DataType, argument: str | None = None, offset: int = 1, **frame: Any
) -> WindowFunction:
    types = {"p1": BIG, "p2": MONEY}
    used = Frame(**({"rows": True, "start": None, "end": None} | frame))
    return WindowFunction(name, kind, argument, types.get(argument or ""), offset, used)


RANKS = (of("row_number", INT), of("rank", INT), of("dense_rank", INT))
FUNCTIONS = {
    "ranks": RANKS,
    "row number": RANKS[:1],
    "rank": RANKS[1:2],
    "dense rank": RANKS[2:],
    "distributions": (of("percent_rank", REAL), of("cume_dist", REAL), of("ntile", INT, offset=3)),
    "lag": (of("lag", BIG, "p1"),),
    "neighbours": (of("lag", BIG, "p1"), of("lead", MONEY, "p2", 3)),
    "neighbours or else": (WindowFunction("lead", BIG, "p1", BIG, 2, default="p1"), of("lag", MONEY, "p2")),
    "running rows": (of("sum", BIG, "p1", end=0), of("count", BIG, "p2", end=0), of("count", BIG, end=-1)),
    "running peers": (of("sum", pa.decimal128(18, 2), "p2", rows=False, end=0), of("rank", INT)),
    "running averages": (of("avg", REAL, "p1", end=0),),
    "frames": (
        of("sum", BIG, "p1", start=-2, end=1),
        of("min", BIG, "p1", start=-3, end=-1),
        of("max", MONEY, "p2", start=-2, end=2),
        of("last_value", BIG, "p1", start=-1, end=1),
    ),
    "peers": (
        of("count", BIG, rows=False, start=0, end=0),
        of("max", MONEY, "p2", rows=False, start=0, end=0),
    ),
    "whole": (of("sum", BIG, "p1"), of("max", MONEY, "p2"), of("min", BIG, "p1", end=0)),
    "picks": (
        of("first_value", BIG, "p1", end=0),
        of("nth_value", MONEY, "p2", 2),
        of("last_value", BIG, "p1"),
    ),
    "neighbours and sums": (of("lead", BIG, "p1", 2), of("sum", BIG, "p1", end=0), of("row_number", INT)),
}
ORDERS = {
    "number": (SortColumn(1),),
    "descending": (SortColumn(2, descending=True, nulls_first=False), SortColumn(1)),
    "only the hash": (),
}


def run(
    operator: StatefulWindow, count: int, seed: int, check: Callable[[list[Row], SingleOperator], None]
) -> None:
    """Run random steps, mostly small ones, then delete everything."""
    rng = random.Random(seed)
    single = SingleOperator(operator, (TYPES,), count)
    rows: list[Row] = []
    for step in range(7):
        change = []
        for _ in range((40, 3, 0, 20)[step] if step < 4 else rng.randint(1, 6)):
            if rows and rng.random() < (0.5 if step else 0.1):  # many rows at first: several blocks
                change.append((rows.pop(rng.randrange(len(rows))), -1))
            else:
                rows.append(tuple(rng.choice(pool) for pool in POOLS))
                change.append((rows[-1], 1))
        single.step({0: change}, first=step == 0)
        check(rows, single)
    single.step({0: [(row, -1) for row in rows]})
    assert single.output == Counter()
    assert not any(single.state().values())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("functions", FUNCTIONS)
@pytest.mark.rule("DBSP-14", "DBSP-20")
def test_results_equal_loops_over_sorted_groups_after_every_step(
    functions: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_trace, "BLOCK_ROWS", 4)

    def check(rows: list[Row], single: SingleOperator) -> None:
        assert single.output == expected(rows, operator)

    for seed, (keys, count) in enumerate((((0,), 1), ((), 3))):
        operator = StatefulWindow(TYPES, keys, ORDERS[order], 3, FUNCTIONS[functions])
        run(operator, count, seed, check)


@pytest.mark.parametrize("function", range(3))
@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.rule("DBSP-14")
def test_only_the_first_ranks_are_returned(function: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_trace, "BLOCK_ROWS", 4)

    def check(rows: list[Row], single: SingleOperator) -> None:
        assert single.output == expected(rows, operator)

    for seed, functions in enumerate((RANKS, RANKS[function : function + 1])):
        limit = RankLimit(function if len(functions) > 1 else 0, most)
        operator = StatefulWindow(TYPES, (0,), (SortColumn(1),), 3, functions, limit)
        for more in range(2):
            run(operator, 2, 10 * seed + more, check)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.rule("DBSP-14", "DBSP-20")
def test_rows_that_keep_coming_first_or_last_get_their_numbers(
    descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block, whose bound is after some of its rows, is divided into blocks with lower bounds."""
    monkeypatch.setattr(ordered_trace, "BLOCK_ROWS", 4)
    operator = StatefulWindow(TYPES, (0,), (SortColumn(1, descending),), 3, RANKS[:1])
    single, rows = SingleOperator(operator, (TYPES,)), list[Row]()
    for step in range(10):
        new: list[Row] = [("a", 7 * step + n, None) for n in range(7)]
        rows += new
        single.step({0: [(row, 1) for row in new]}, first=step == 0)
        assert single.output == expected(rows, operator)
    for step in range(10):
        gone, rows = rows[step::3], [row for n, row in enumerate(rows) if n % 3 != step % 3 or n < step]
        single.step({0: [(row, -1) for row in gone]})
        assert single.output == expected(rows, operator)


# --- which windows have a kernel, and which rows of them are needed

A = source("a", "int", "string", "bigint")


def numbered() -> Window:
    return Window(A, (column(1),), (), (WindowCall(call("row_number"), "row_number", ()),))


def built_windows(*views: Operator) -> list[StatefulWindow]:
    chain = built({f"v{n}": view for n, view in enumerate(views)}, {})
    return [placed.operator for placed in chain.operators if isinstance(placed.operator, StatefulWindow)]


@pytest.mark.parametrize(
    ("parts", "most"),
    [
        ((3, " <= 3"), 3),
        ((3, " < 3"), 2),
        (("3 >= ", 3), 3),
        ((3, " = 1"), 1),
        ((3, " > 3"), None),
        ((0, " < 3"), None),
        ((3, " < ", 0), None),
    ],
)
@pytest.mark.rule("DBSP-14")
def test_a_filter_limits_a_window_that_nothing_else_reads(parts: Any, most: int | None) -> None:
    window = numbered()
    limited = Filter(window, (Expr((0, " > 1")), Expr(parts)))
    (alone,) = built_windows(limited)
    assert alone.limit == (None if most is None else RankLimit(0, most))
    (moved,) = built_windows(Filter(project(window, 0, 1, 2, 3), (Expr(parts),)))
    assert moved.limit == alone.limit
    (shared,) = built_windows(limited, project(window, 0, 3))
    assert shared.limit is None


@pytest.mark.parametrize(
    ("sql", "frame", "form"),
    [
        ("row_number()", "", ("row_number", None, 1)),
        ("lag(k)", "", ("lag", 0, 1)),
        ("lag(k, 2)", "", ("lag", 0, 2)),
        ("lag(k, 2, 0)", "", ("lag", 0, 2)),
        ("lag(k) IGNORE NULLS", "", None),
        ("ntile(4)", "", ("ntile", None, 4)),
        ("count(*)", "ROWS 2 PRECEDING", ("count", None, 1)),
        ("count(DISTINCT k)", "", None),
        ("sum(k) FILTER (WHERE k > 1)", "", ("sum", None, 1)),
        ("count(*) FILTER (WHERE k > 1)", "", ("count", None, 1)),
        ("stddev(k) FILTER (WHERE k > 1)", "", None),
        ("sum(k)", "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", ("sum", 0, 1)),
        ("sum(k)", "RANGE BETWEEN 2 PRECEDING AND CURRENT ROW", None),
        ("sum(k)", "ROWS BETWEEN 2 FOLLOWING AND 1 PRECEDING", None),
        ("first_value(k)", "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW", None),
        ("nth_value(k, 2)", "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW", ("nth_value", 0, 2)),
        ("stddev(k)", "", None),
    ],
)
@pytest.mark.rule("DBSP-14", "DBSP-17")
def test_a_kernel_takes_calls_that_it_knows_completely(
    sql: str, frame: str, form: tuple[str, int | None, int] | None
) -> None:
    query = output(f"SELECT {sql} OVER (ORDER BY k {frame}) AS r FROM (SELECT cust AS k FROM orders)")
    (window,) = (op for op in walk(query) if isinstance(op, Window))
    known = kernel_call(window.calls[0], ordered=True)
    assert (known and (known.name, known.argument and known.argument.column, known.offset)) == form


# --- sessions

MOMENT = pa.timestamp("us")
TIMED = (TEXT, MOMENT, BIG)
GAP = 5


def sessions_of(rows: list[Row]) -> Counter[str]:
    """Return the start of the session of each row."""
    total: Counter[str] = Counter()
    for key in {row[0] for row in rows}:
        start, last = None, None
        for row in sorted((row for row in rows if row[0] == key), key=lambda row: row[1]):
            if last is None or row[1] - last > dt.timedelta(microseconds=GAP):
                start = row[1]
            last = row[1]
            total[repr((*row, start))] += 1
    return total


@pytest.mark.parametrize("span", [20, 100, 400])
@pytest.mark.rule("DBSP-14")
def test_a_session_starts_after_a_gap(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows close together are one session of several blocks; a few far apart are many sessions."""
    monkeypatch.setattr(ordered_trace, "BLOCK_ROWS", 4)
    function = WindowFunction("session_start", MOMENT, "p1", MOMENT, GAP)
    operator = StatefulWindow(TIMED, (0,), (SortColumn(1),), 0, (function,))
    for seed in range(8):
        rng = random.Random(seed)
        single, rows = SingleOperator(operator, (TIMED,), 2), list[Row]()
        for step in range(12):
            change = []
            for _ in range(60 if step == 0 else rng.choice((1, 1, 2, 8, 40))):
                if rows and rng.random() < (0.5 if step else 0.1):  # many rows at first: several blocks
                    change.append((rows.pop(rng.randrange(len(rows))), -1))
                else:
                    moment = dt.datetime(2024, 1, 1)  # noqa: DTZ001
                    moment += dt.timedelta(microseconds=rng.randrange(span))
                    rows.append((rng.choice("ab"), moment, rng.randrange(3)))
                    change.append((rows[-1], 1))
            single.step({0: change}, first=step == 0)
            assert single.output == sessions_of(rows)
        single.step({0: [(row, -1) for row in rows]})
        assert single.output == Counter()
        assert not any(single.state().values())


@pytest.mark.rule("DBSP-14")
def test_a_row_appended_to_a_session_rewrites_no_other_row() -> None:
    function = WindowFunction("session_start", MOMENT, "p1", MOMENT, GAP)
    operator = StatefulWindow(TIMED, (0,), (SortColumn(1),), 0, (function,))
    single = SingleOperator(operator, (TIMED,))
    start = dt.datetime(2024, 1, 1)  # noqa: DTZ001
    rows: list[Row] = [("a", start + dt.timedelta(microseconds=n), 0) for n in range(2_000)]
    single.step({0: [(row, 1) for row in rows]}, first=True)
    assert single.step({0: [(("a", rows[-1][1], 1), 1)]}).total() == 1
    assert sum(report.rewritten for report in single.reports) == 0
