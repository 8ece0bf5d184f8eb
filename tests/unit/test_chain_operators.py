"""Stateful operators: the result does not depend on how steps are split, merged, ordered or spread."""

import functools
import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from operator import and_, or_, xor
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.memory_chain import masked_hashes
from tests.unit.single_operator import Row, SingleOperator, add, table
from tests.unit.test_views_types import TYPES, values_of
from tidemill.errors import TypeRefused
from tidemill.views.chain import native_operators, source_operators
from tidemill.views.chain.join_operators import StatefulJoin, StatefulMatches
from tidemill.views.chain.keyed_operators import GatherRows, ReplaceRows
from tidemill.views.chain.native_operators import StatefulAggregate, StatefulSet
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.chain.source_operators import ChangesSource, UpsertsSource
from tidemill.views.chain.stateful_operator import StatefulOperator, hash_column
from tidemill.views.circuit.operators import JoinKind
from tidemill.views.kernels.group_aggregate import GroupAggregate
from tidemill.views.kernels.group_by import GroupKernel
from tidemill.views.trace.hash_space import ranges

INT, BIG, TEXT, REAL, MONEY = pa.int32(), pa.int64(), pa.string(), pa.float64(), pa.decimal128(10, 2)
MEAN = pa.decimal128(14, 6)
NAN = float("nan")
Bag = Counter[Row]

POOLS: dict[pa.DataType, list[Any]] = {
    INT: [None, 0, 1, 2, -1],
    BIG: [None, 0, 1, -1, 2**50],
    TEXT: [None, "", "a", "b", "ü"],
    REAL: [None, 0.0, -0.0, 0.1, 1e16, NAN],
    MONEY: [None, Decimal("0.01"), Decimal("-0.01"), Decimal("99999999.99")],
}
KEYS: dict[pa.DataType, list[Any]] = POOLS | {REAL: [None, 0.0, -0.0, NAN, 1.5]}


@dataclass(frozen=True)
class Kind:
    """An operator, the types of its sides, and its result by plain Python."""

    operator: StatefulOperator
    sides: tuple[tuple[pa.DataType, ...], ...]
    plain: Callable[..., Counter[str]]
    pools: dict[pa.DataType, list[Any]] | None = None


def key_of(value: Any) -> Any:
    """Return the key of a value: Spark groups equal keys together."""
    return "nan" if value != value else value + 0.0 if isinstance(value, float) else value


def join(null_safe: bool) -> Callable[..., Counter[str]]:
    def plain(left: Bag, right: Bag) -> Counter[str]:
        joined: Counter[str] = Counter()
        for left_row, weight in left.items():
            for right_row, times in right.items():
                left_key, right_key = (left_row[0], key_of(left_row[1])), (right_row[1], key_of(right_row[0]))
                if left_key == right_key and (null_safe or None not in left_key):
                    joined[repr((*left_row, *right_row))] += weight * times
        return joined

    return plain


def outer(kind: str, null_safe: bool) -> Callable[..., Counter[str]]:
    """Return a join that keeps rows without a match, or only tells whether rows have one."""

    def plain(left: Bag, right: Bag) -> Counter[str]:
        matches = {
            (left_row, right_row)
            for left_row in left
            for right_row in right
            if (left_row[0], key_of(left_row[1])) == (right_row[1], key_of(right_row[0]))
            and (null_safe or None not in (left_row[0], left_row[1]))
        }
        lefts, rights = ({pair[side] for pair in matches} for side in (0, 1))
        rows = {left_row: left[left_row] for left_row in left if (left_row in lefts) == (kind == "semi")}
        if kind in {"semi", "anti"}:
            return Counter({repr(row): weight for row, weight in rows.items()})
        joined = join(null_safe)(left, right)
        if kind != "right":
            joined.update({repr((*row, None, None)): weight for row, weight in rows.items()})
        if kind != "left":
            unmatched = {row: weight for row, weight in right.items() if row not in rights}
            joined.update({repr((None, None, None, *row)): weight for row, weight in unmatched.items()})
        return joined

    return plain


def matches(*, matched: bool) -> Callable[..., Counter[str]]:
    def plain(rows: Bag, pairs: Bag) -> Counter[str]:
        kept = {row: weight for row, weight in rows.items() if (row in pairs) == matched}
        return Counter({repr(row if matched else (None, *row, None)): kept[row] for row in kept})

    return plain


def sets(kind: str) -> Callable[..., Counter[str]]:
    def plain(left: Bag, right: Bag | None = None) -> Counter[str]:
        lefts, rights = canonical_bag(left), canonical_bag(right or Counter())
        result = {
            "distinct": lambda: dict.fromkeys(lefts, 1),
            "intersect": lambda: {row: 1 for row in lefts if row in rights},
            "intersect_all": lambda: {row: min(lefts[row], rights[row]) for row in lefts},
            "except": lambda: {row: 1 for row in lefts if row not in rights},
            "except_all": lambda: {row: max(lefts[row] - rights[row], 0) for row in lefts},
        }[kind]()
        return Counter({row: weight for row, weight in result.items() if weight})

    return plain


def canonical(value: Any) -> Any:
    return value + 0.0 if isinstance(value, float) else value


def canonical_bag(rows: Bag) -> Counter[str]:
    total: Counter[str] = Counter()
    for row, weight in rows.items():
        total[repr(tuple(map(canonical, row)))] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def groups(*, everything: bool = False) -> Callable[..., Counter[str]]:
    def plain(rows: Bag) -> Counter[str]:
        members: dict[Any, list[Row]] = {"()": []} if everything else {}
        keys: dict[str, Row] = {"()": ()}
        for row, weight in rows.items():
            key = () if everything else (canonical(row[0]),)
            keys[repr(key)] = key
            members.setdefault(repr(key), []).extend([row] * weight)
        result: Counter[str] = Counter()
        for name, rows_of_group in members.items():
            key = keys[name]
            sums = [row[-2] for row in rows_of_group if row[-2] is not None]
            money = [row[-1] for row in rows_of_group if row[-1] is not None]
            result[
                repr(
                    (
                        *key,
                        len(rows_of_group),
                        len(sums),
                        sum(sums) if sums else None,
                        _mean(money),
                        min(sums, default=None),
                        max(money, default=None),
                    )
                )
            ] += 1
        return result

    return plain


def bits(rows: Bag) -> Counter[str]:
    result: Counter[str] = Counter()
    for key in {row[0] for row in rows}:
        members = [row for row in rows.elements() if row[0] == key]
        columns = [[row[place] for row in members if row[place] is not None] for place in (1, 2)]
        combined = [
            functools.reduce(combine, values) if values else None
            for combine in (and_, or_, xor)
            for values in columns
        ]
        result[repr((key, *combined))] += 1
    return result


def with_distinct(rows: Bag, values: Bag) -> Counter[str]:
    """Count rows and add up a column, and average the values that the second side receives for each group."""
    result: Counter[str] = Counter()
    for key in {repr(canonical(row[0])): canonical(row[0]) for row in rows}.values():
        members = [row for row in rows.elements() if repr(canonical(row[0])) == repr(key)]
        sums = [row[1] for row in members if row[1] is not None]
        money = [row[1] for row in values.elements() if repr(canonical(row[0])) == repr(key)]
        present = [value for value in money if value is not None]
        result[repr((key, len(members), sum(sums) if sums else None, len(present), _mean(present)))] += 1
    return result


def _mean(values: list[Decimal]) -> Decimal | None:
    """Return the average, rounded like Spark."""
    if not values:
        return None
    with localcontext(prec=60, rounding=ROUND_HALF_UP):
        return (sum(values, Decimal(0)) / len(values)).quantize(Decimal(1).scaleb(-MEAN.scale))


def admitted(rows: Bag) -> Counter[str]:
    total: Counter[str] = Counter()
    for row, weight in rows.items():
        total[repr(tuple(0.0 if value == 0.0 and isinstance(value, float) else value for value in row))] += (
            weight
        )
    return Counter({row: weight for row, weight in total.items() if weight > 0})


AGGS = (
    GroupAggregate("count", None, "n"),
    GroupAggregate("count", "v0", "some"),
    GroupAggregate("sum", "v0", "total"),
    GroupAggregate("avg", "v1", "mean"),
    GroupAggregate("min", "v0", "least"),
    GroupAggregate("max", "v1", "most"),
)
DISTINCT_AGGS = (
    GroupAggregate("count", None, "n"),
    GroupAggregate("sum", "v0", "total"),
    GroupAggregate("count", "v1", "values"),
    GroupAggregate("avg", "v1", "mean"),
)
VALUES = pa.schema([("v0", BIG), ("v1", MONEY)])
RESULTS = (BIG, BIG, BIG, MEAN, BIG, MONEY)
TWO = (REAL, TEXT)
OUTER: tuple[JoinKind, ...] = ("left", "right", "full", "semi", "anti")
KINDS = {
    "join": Kind(
        StatefulJoin((INT, REAL, TEXT), (REAL, INT), (0, 1), (1, 0), (False, False)),
        ((INT, REAL, TEXT), (REAL, INT)),
        join(null_safe=False),
        KEYS,
    ),
    "null-safe join": Kind(
        StatefulJoin((INT, REAL, TEXT), (REAL, INT), (0, 1), (1, 0), (True, True)),
        ((INT, REAL, TEXT), (REAL, INT)),
        join(null_safe=True),
        KEYS,
    ),
    **{
        f"{kind} join{', null-safe' if safe else ''}": Kind(
            StatefulJoin((INT, REAL, TEXT), (REAL, INT), (0, 1), (1, 0), (safe, safe), kind=kind),
            ((INT, REAL, TEXT), (REAL, INT)),
            outer(kind, safe),
            KEYS,
        )
        for kind in OUTER
        for safe in (False, True)
    },
    "matched rows": Kind(StatefulMatches(TWO, matched=True), (TWO, TWO), matches(matched=True)),
    "unmatched rows": Kind(
        StatefulMatches(TWO, matched=False, before=(INT,), after=(TEXT,)), (TWO, TWO), matches(matched=False)
    ),
    "groups": Kind(
        StatefulAggregate(GroupKernel(pa.schema([("k0", REAL)]), VALUES, AGGS), RESULTS),
        ((REAL, BIG, MONEY),),
        groups(),
    ),
    "everything": Kind(
        StatefulAggregate(GroupKernel(pa.schema([]), VALUES, AGGS, always=True), RESULTS),
        ((BIG, MONEY),),
        groups(everything=True),
    ),
    "groups with distinct values": Kind(
        StatefulAggregate(
            GroupKernel(pa.schema([("k0", REAL)]), VALUES, DISTINCT_AGGS, distinct=("v1",)),
            (BIG, BIG, BIG, MEAN),
        ),
        ((REAL, BIG), (REAL, MONEY)),
        with_distinct,
    ),
    "bits": Kind(
        StatefulAggregate(
            GroupKernel(
                pa.schema([("k0", TEXT)]),
                pa.schema([("v0", INT), ("v1", BIG)]),
                tuple(
                    GroupAggregate(name, column, f"{name} {column}")
                    for name in ("bit_and", "bit_or", "bit_xor")
                    for column in ("v0", "v1")
                ),
            ),
            (INT, BIG) * 3,
        ),
        ((TEXT, INT, BIG),),
        bits,
    ),
    "changes": Kind(ChangesSource((INT, REAL)), ((INT, REAL),), admitted),
    **{
        name: Kind(StatefulSet(name, TWO), (TWO,) if name == "distinct" else (TWO, TWO), sets(name))
        for name in ("distinct", "intersect", "intersect_all", "except", "except_all")
    },
}
EVERY = pytest.mark.parametrize("name", KINDS)
Step = dict[int, list[tuple[Row, int]]]


def history(kind: Kind, seed: int, steps: int = 6) -> list[Step]:
    """Return random steps that insert rows and delete existing ones; one step is empty."""
    rng = random.Random(seed)
    pools = kind.pools or POOLS
    present: list[tuple[int, Row]] = []
    history: list[Step] = []
    for number in range(steps):
        step: Step = {}
        for _ in range(0 if number == 3 else rng.randint(1, 9)):
            if present and rng.random() < 0.4:
                side, row = present.pop(rng.randrange(len(present)))
                step.setdefault(side, []).append((row, -1))
            else:
                side = rng.randrange(len(kind.sides))
                row = tuple(rng.choice(pools[each]) for each in kind.sides[side])
                present.append((side, row))
                step.setdefault(side, []).append((row, 1))
        history.append(step)
    return history


def bag(rows: list[tuple[Row, int]]) -> Bag:
    """Count rows by exact value: 0.0 differs from -0.0, and NaN equals NaN."""
    total: dict[str, tuple[Row, int]] = {}
    for row, weight in rows:
        _, before = total.get(repr(row), (row, 0))
        total[repr(row)] = row, before + weight
    return Counter({_ExactRow(row): weight for row, weight in total.values() if weight})


class _ExactRow(tuple):  # type: ignore[type-arg]
    """A row that equals rows with the same representation."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return repr(tuple(self)) == repr(tuple(other))  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash(repr(tuple(self)))

    def __repr__(self) -> str:
        return repr(tuple(self))


def all_rows(steps: list[Step], sides: int) -> Step:
    return {side: [item for step in steps for item in step.get(side, [])] for side in range(sides)}


def after_steps(kind: Kind, count: int, steps: list[Step]) -> SingleOperator:
    """Return the operator after an empty first step and these steps."""
    operator = SingleOperator(kind.operator, kind.sides, count)
    operator.step({}, first=True)
    for step in steps:
        operator.step(step)
    return operator


def plain(kind: Kind, steps: list[Step]) -> Counter[str]:
    rows = all_rows(steps, len(kind.sides))
    return Counter(kind.plain(*(bag(rows[side]) for side in range(len(kind.sides)))))


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.rule("DBSP-1", "DBSP-8")
def test_after_every_step_and_in_any_number_of_ranges_the_output_equals_plain_python(
    name: str, seed: int
) -> None:
    kind = KINDS[name]
    steps = history(kind, seed)
    operators = [SingleOperator(kind.operator, kind.sides, count) for count in (1, 2, 7)]
    for operator in operators:
        operator.step({}, first=True)
    for number, step in enumerate(steps):
        outs = [operator.step(step, pieces=1 + seed) for operator in operators]
        assert outs[0] == outs[1] == outs[2]
        assert operators[0].output == plain(kind, steps[: number + 1])


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.crash)])
@pytest.mark.rule("DBSP-20")
def test_merged_split_or_loaded_steps_have_the_same_output_and_state(name: str, seed: int) -> None:
    kind = KINDS[name]
    steps = history(kind, seed)
    stepped = after_steps(kind, 2, steps)
    merged = after_steps(kind, 7, [all_rows(steps, len(kind.sides))])
    single = [{side: [item]} for step in steps for side, rows in step.items() for item in rows]
    loaded = SingleOperator(kind.operator, kind.sides, 3)
    loaded.step(all_rows(steps, len(kind.sides)), first=True)
    assert stepped.output == merged.output == loaded.output
    if name != "changes":  # a deletion before its insertion is set aside, so the order matters
        assert after_steps(kind, 1, single).output == stepped.output
    assert stepped.state() == merged.state() == loaded.state()


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.crash)])
@pytest.mark.rule("DBSP-20")
def test_a_change_and_its_inverse_restore_output_and_state(name: str, seed: int) -> None:
    kind = KINDS[name]
    *before, last = history(kind, seed)
    operator = after_steps(kind, 2, before)
    state, output = operator.state(), operator.output
    operator.step(last)
    operator.step({side: [(row, -weight) for row, weight in rows] for side, rows in last.items()})
    assert operator.output == output
    assert operator.state() == state
    everything = all_rows(before, len(kind.sides))
    operator.step({side: [(row, -weight) for row, weight in rows] for side, rows in everything.items()})
    assert operator.output == after_steps(kind, 1, []).output
    assert not any(operator.state().values())


@pytest.mark.slow
@EVERY
def test_keys_with_the_same_hash_stay_different(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    steps = history(kind, 11)
    strong = after_steps(kind, 2, steps)

    def weak(rows: pa.Table, names: list[str]) -> pa.Array:
        return pa.array([value & 1 for value in hash_column(rows, names).to_pylist()], pa.int64())

    monkeypatch.setattr(native_operators, "hash_column", weak)
    assert after_steps(kind, 2, steps).output == strong.output == plain(kind, steps)


# --- sources


@pytest.mark.rule("DBSP-21")
@pytest.mark.parametrize("count", [1, 7])
def test_a_deletion_before_its_insertion_is_set_aside_until_the_insertion_arrives(count: int) -> None:
    operator = SingleOperator(ChangesSource((INT, TEXT)), ((INT, TEXT),), count)

    def aside() -> int:
        return sum(report.aside.get("0", 0) for report in operator.reports)

    assert operator.step({0: [((1, "a"), 1)]}, first=True) == Counter({repr((1, "a")): 1})
    assert operator.step({0: [((1, "a"), -3), ((2, None), -1)]}) == Counter({repr((1, "a")): -1})
    assert aside() == 2
    assert operator.step({0: [((1, "a"), 1), ((2, None), 2)]}) == Counter({repr((2, None)): 1})
    assert aside() == 0, "this step put nothing into quarantine"
    assert operator.step({0: [((3, "c"), 1)]}) == Counter({repr((3, "c")): 1})
    assert aside() == 0
    assert operator.step({0: [((1, "a"), 2)]}) == Counter({repr((1, "a")): 1})
    assert aside() == 0
    assert sum(operator.state()["aside"].values()) == 0


@pytest.mark.rule("DBSP-21")
def test_a_deletion_of_a_zero_of_the_other_sign_removes_the_row() -> None:
    operator = SingleOperator(ChangesSource((REAL,)), ((REAL,),))
    operator.step({0: [((0.0,), 1), ((NAN,), 1)]}, first=True)
    assert operator.step({0: [((-0.0,), -1)]}) == Counter({repr((0.0,)): -1})
    assert operator.reports[0].aside == {}
    assert operator.step({0: [((-0.0,), -1)]}) == Counter()
    assert operator.reports[0].aside == {"0": 1}, "there is no such row any more"


@pytest.mark.parametrize("key", [(), (1,)])
def test_a_zero_that_an_older_release_stored_with_its_sign_is_deleted(
    key: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    types = (REAL, INT, REAL)
    operator = SingleOperator(ChangesSource(types, key), (types,))
    with monkeypatch.context() as older:
        older.setattr(source_operators, "canonical_keys", lambda rows, _: rows)
        operator.step({0: [((-0.0, 1, -0.0), 1), ((0.0, 2, 5.0), 1)]}, first=True)
    removed = operator.step({0: [((0.0, 2, 5.0), -1), ((0.0, 7, 5.0), -1)]})
    assert removed == Counter({repr((0.0, 2, 5.0)): -1})
    assert operator.reports[0].aside == {"0": 1}
    assert operator.step({0: [((0.0, 1, -0.0), -1)]}) == Counter({repr((-0.0, 1, -0.0)): -1})
    assert operator.reports[0].aside == {}


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.rule("DBSP-20")
def test_a_keyed_dataset_has_the_last_write_of_a_key_in_any_division_into_steps(
    count: int, seed: int
) -> None:
    rng = random.Random(seed)
    types = (TEXT, REAL, INT)  # the key is the second and the first column
    writes = []
    for position in range(40):
        row = (rng.choice(["a", None]), rng.choice([0.0, -0.0, NAN, 1.0]), rng.randint(0, 3))
        writes.append((*row, rng.random() < 0.3, position // 7, position))
    last: dict[Any, Row | None] = {}
    for write in writes:
        last[write[0], key_of(write[1])] = None if write[3] else write[:3]
    expected = Counter(repr(row) for row in last.values() if row is not None)
    sides = ((*types, pa.bool_(), BIG, BIG),)
    operator = SingleOperator(UpsertsSource(types, (1, 0)), sides, count)
    places = sorted(rng.randrange(41) for _ in range(5))
    for low, high in zip([0, *places], [*places, 40], strict=True):
        part = writes[low:high]
        rng.shuffle(part)
        operator.step({0: [(write, 1) for write in part]}, first=low == 0 and not operator.version.step)
    assert operator.output == expected
    loaded = SingleOperator(UpsertsSource(types, (1, 0)), sides, 1)
    loaded.step({0: [(write, 1) for write in writes]}, first=True)
    assert loaded.output == expected
    assert loaded.state() == operator.state()
    repeated = operator.step({0: [(write, 1) for write in writes]})
    assert not repeated, "writes that are already stored change nothing"


def age_of(values: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return sort keys in Spark's order: NULL is the oldest, NaN the newest, and -0.0 is 0.0."""
    return [(0, 0) if value is None else (2, 0) if value != value else (1, value) for value in values]


@pytest.mark.parametrize(("count", "mask"), [(1, None), (7, None), (2, 1)])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.rule("LOT-40")
def test_a_keyed_dataset_with_an_order_has_the_newest_write_in_any_division_into_steps(
    count: int, mask: int | None, seed: int
) -> None:
    """Late, equal and newer writes, and deletions, arrive in one step or in several."""
    rng = random.Random(seed)
    types = (TEXT, REAL, INT, TEXT)  # the key is the first column; the second and third give the order
    writes: list[Row] = []
    for number in range(60):
        at = rng.choice([None, 0.0, -0.0, 1.0, 2.5, NAN])
        row = (rng.choice(["a", "b", "c", None]), at, rng.choice([None, 1, 2]), f"w{number}")
        gone = rng.random() < 0.4
        writes.append((*row[:3], None if gone else row[3], gone, number // 9, number))
    newest: dict[Any, Row] = {}
    for write in writes:
        stored = newest.get(write[0])
        if stored is None or age_of(write[1:3]) >= age_of(stored[1:3]):
            newest[write[0]] = write
    expected = Counter(repr(write[:4]) for write in newest.values() if not write[4])
    sides = ((*types, pa.bool_(), BIG, BIG),)
    source = UpsertsSource(types, (0,), (1, 2))
    with nullcontext() if mask is None else masked_hashes(mask):
        operator = SingleOperator(source, sides, count)
        places = sorted(rng.randrange(61) for _ in range(7))
        for low, high in zip([0, *places], [*places, 60], strict=True):
            part = writes[low:high]
            rng.shuffle(part)
            operator.step({0: [(write, 1) for write in part]}, first=low == 0 and not operator.version.step)
        assert operator.output == expected
        loaded = SingleOperator(source, sides, 1)
        loaded.step({0: [(write, 1) for write in writes]}, first=True)
        assert loaded.output == expected
        assert loaded.state() == operator.state(), "traces have the newest writes and the newest deletions"


@pytest.mark.rule("LOT-40")
def test_a_late_write_changes_neither_a_newer_row_nor_a_newer_deletion() -> None:
    types = (TEXT, INT)
    operator = SingleOperator(UpsertsSource(types, (0,), (1,)), ((*types, pa.bool_(), BIG, BIG),))
    operator.step({0: [(("a", 5, False, 0, 0), 1), (("b", 5, True, 0, 1), 1)]}, first=True)
    late = [(("a", 4, True, 0, 0), 1), (("b", 4, False, 0, 1), 1)]
    assert operator.step({0: late}) == Counter()
    same = [(("a", 5, True, 0, 0), 1), (("b", 5, False, 0, 1), 1)]
    assert operator.step({0: same}) == Counter({repr(("a", 5)): -1, repr(("b", 5)): 1})


# --- keyed operators


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.rule("DBSP-17")
def test_all_rows_are_gathered_for_a_key_with_a_change_that_cancels_out(pieces: int) -> None:
    """The operator that stores the result receives the key too, and replaces its rows."""
    operator = SingleOperator(GatherRows((INT, TEXT), (0,)), ((INT, TEXT), (INT,)))
    operator.step({0: [((1, "a"), 1), ((1, "b"), 2), ((2, "c"), 1)]}, first=True)
    change = [((1, "a"), 1), ((1, "a"), -1)]
    assert operator.step({0: change}, pieces=pieces) == Counter({repr((1, "a")): 1, repr((1, "b")): 2})
    assert operator.step({1: [((2,), -1), ((9,), 1)]}) == Counter({repr((2, "c")): 1})


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.rule("DBSP-17")
def test_the_stored_result_of_changed_keys_is_replaced(count: int) -> None:
    operator = SingleOperator(ReplaceRows((REAL, TEXT), (REAL,)), ((REAL, TEXT, REAL), (REAL,)), count)
    operator.step(
        {0: [((0.0, "a", 0.0), 1), ((NAN, "b", NAN), 1)], 1: [((0.0,), 1), ((NAN,), 1)]}, first=True
    )
    operator.step({0: [((-0.0, "c", -0.0), 2)], 1: [((-0.0,), 1), ((NAN,), -1), ((7.0,), 1)]})
    assert operator.output == Counter({repr((-0.0, "c")): 2})
    operator.step({1: [((0.0,), 1)]})
    assert operator.output == Counter()
    assert not any(operator.state().values())


# --- the hash

# By type: the hash of its first value in `TYPES`, and the checksum of the hashes of all its values. Stored
# state is divided by these hashes: another hash needs another format of version files.
GOLDEN = {
    "BOOLEAN": (-5044161465919739940, 1599201021),
    "TINYINT": (-9047277285059695205, 1422087149),
    "SMALLINT": (463426950059474602, 1715623014),
    "INT": (7395552384682022236, 3383116),
    "BIGINT": (-233378315897994030, 3496866223),
    "FLOAT": (-9165398394857383270, 421260747),
    "DOUBLE": (5810791592182384729, 980214156),
    "DECIMAL(10,2)": (-2867294530001544119, 1766528738),
    "DECIMAL(38,0)": (4469626942634492226, 2381521108),
    "STRING": (6472712350848014982, 1503620216),
    "STRING as large": (6472712350848014982, 884934564),
    "BINARY": (6472712350848014982, 3936304228),
    "DATE": (-8852202899322063601, 2856092328),
    "TIMESTAMP": (6122176605585918962, 1997902964),
    "TIMESTAMP_NTZ": (-5873181158144495365, 3565761225),
    "TIME": (-5044161465919739940, 1468832891),
    "INTERVAL DAY TO SECOND": (-8655450288067136810, 3860547681),
    "INTERVAL": (-3087026767239061993, 697282652),
    "VOID": (-1816691370233986612, 2317127452),
    "ARRAY<INT>": (-3087026767239061993, 2686617300),
    "ARRAY<DOUBLE>": (6260724001040309643, 3570193591),
    "ARRAY<ARRAY<STRING>>": (3665530106957495903, 3755369722),
    "MAP<STRING,INT>": (-3087026767239061993, 1123641864),
    "ARRAY<MAP<INT,STRING>>": (-3087026767239061993, 2378754563),
    "STRUCT": (-7974312555116812259, 1694335436),
    "VARIANT": (2459392131706376240, 1372228342),
}


def test_the_hash_of_every_type_is_pinned_and_does_not_depend_on_the_batch() -> None:
    actual = {}
    for name in TYPES:
        kind, values = values_of(name)
        array = pa.array(values, kind)
        hashes = hash_column(pa.table({"c0": array}), ["c0"]).to_pylist()
        for place in range(len(values)):
            sliced = pa.table({"c0": array.slice(place, 1)})
            assert hash_column(sliced, ["c0"]).to_pylist() == [hashes[place]], name
            repeated = pa.table({"c0": array.take(pa.array([place, 0, place]))})
            assert hash_column(repeated, ["c0"]).to_pylist()[::2] == [hashes[place]] * 2, name
        assert len(set(hashes)) == len(hashes), name
        actual[name] = hashes[0], zlib.crc32(repr(hashes).encode())
    assert actual == GOLDEN


def test_the_hash_of_a_key_depends_on_all_its_columns_and_their_order() -> None:
    rows = pa.table({"c0": pa.array([1, None, None], INT), "c1": pa.array([None, 1, None], INT)})
    assert len(set(hash_column(rows, ["c0", "c1"]).to_pylist())) == 3
    assert hash_column(rows, ["c0", "c1"]) != hash_column(rows, ["c1", "c0"])
    assert hash_column(rows, []).to_pylist() == [0, 0, 0]


@pytest.mark.rule("DBSP-21")
def test_zeros_and_nans_have_one_hash_also_in_nested_values() -> None:
    kind = pa.struct([("a", pa.list_(pa.float64()))])
    values = [{"a": [0.0, NAN]}, {"a": [-0.0, -NAN]}]
    assert len(set(hash_column(pa.table({"c0": pa.array(values, kind)}), ["c0"]).to_pylist())) == 1
    for kind in (pa.float32(), pa.float64()):
        array = pa.array([0.0, -0.0], kind)
        assert len(set(hash_column(pa.table({"c0": array}), ["c0"]).to_pylist())) == 1


# --- edges of operators


@pytest.mark.parametrize("count", [1, 2, 7, 256])
def test_an_aggregate_without_groups_emits_without_input_in_one_range_only(count: int) -> None:
    operator = KINDS["everything"].operator
    assert sum(operator.emits_without_input(within) for within in ranges(count)) == 1
    assert not any(KINDS["groups"].operator.emits_without_input(within) for within in ranges(count))


def test_rows_of_a_view_are_exchanged_by_the_first_half_of_their_identity() -> None:
    operator = OutputSink("v", ("x",), (INT,))
    packed = operator.pack(0, pa.table({"c0": pa.array([7], INT), "_w": [1]}))["rows"]
    assert packed["_h"].to_pylist() == packed["c1"].to_pylist()
    nested = OutputSink("v", ("x",), (pa.list_(INT),))
    assert nested.needs_spark
    rows = pa.table({"c0": pa.array([[7]], pa.list_(INT)), "c1": [5], "c2": [6], "_w": [1]})
    assert nested.pack(0, rows)["rows"]["_h"].to_pylist() == [5]


def extremes(best: int) -> SingleOperator:
    aggs = (GroupAggregate("max", "v0", "m"), GroupAggregate("min", "v0", "n"))
    kernel = GroupKernel(pa.schema([("k0", INT)]), pa.schema([("v0", INT)]), aggs, best=best)
    return SingleOperator(StatefulAggregate(kernel, (INT, INT)), ((INT, INT),), count=3)


def test_an_exhausted_group_of_an_append_only_input_is_reported() -> None:
    operator = extremes(best=1)
    operator.step({0: [((1, value), 1) for value in range(9)]}, first=True)
    operator.step({0: [((1, value), -1) for value in (7, 8)]})
    assert sum(count for report in operator.reports for count in report.exhausted.values()) == 1


@pytest.mark.slow
@pytest.mark.rule("DBSP-13")
@pytest.mark.parametrize("seed", range(6))
def test_a_group_that_lost_its_best_values_reads_its_own_values_again(seed: int) -> None:
    rng = random.Random(seed)
    operator, stored = extremes(best=2), Counter[tuple[int, int]]()
    for step in range(12):
        deleted = rng.sample(sorted(stored.elements()), min(10, stored.total()))
        inserted = [(rng.randrange(4), rng.randrange(12)) for _ in range(8 if step else 40)]
        change = [*((row, 1) for row in inserted), *((row, -1) for row in deleted)]
        for row, weight in change:
            stored[row] += weight
        operator.step({0: change}, first=not step)
        assert not any(report.exhausted for report in operator.reports), "the values of the group are enough"
        groups = {key for (key, _), count in stored.items() if count}
        expected = Counter[str]()
        for group in groups:
            values = [value for (key, value), count in stored.items() if count and key == group]
            add(expected, table((INT, INT, INT), [((group, max(values), min(values)), 1)]))
        assert operator.output == expected


def test_a_sum_of_strings_is_refused() -> None:
    with pytest.raises(TypeRefused):
        GroupKernel(pa.schema([]), pa.schema([("v0", TEXT)]), (GroupAggregate("sum", "v0", "s"),))
