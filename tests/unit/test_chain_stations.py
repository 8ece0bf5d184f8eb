"""Operators with state: however steps are cut, merged, ordered or spread over ranges, the total is one."""

import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.chain_stage import Alone, Row, add, table
from tests.unit.test_views_types import TYPES, values_of
from tidemill.errors import TypeRefused
from tidemill.views.chain import native_operators
from tidemill.views.chain.keyed_operators import GatherRows, ReplaceRows
from tidemill.views.chain.native_operators import StatefulAggregate, StatefulJoin, StatefulSet
from tidemill.views.chain.outputs import OutputSink
from tidemill.views.chain.source_operators import ChangesSource, UpsertsSource
from tidemill.views.chain.stateful_operator import StatefulOperator, hash_column
from tidemill.views.kernels.group_by import GroupAggregate, GroupKernel
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
    """Values that Spark groups together have one key."""
    return "nan" if value != value else value + 0.0 if isinstance(value, float) else value


def join(null_safe: bool) -> Callable[..., Counter[str]]:
    def plain(left: Bag, right: Bag) -> Counter[str]:
        found: Counter[str] = Counter()
        for one, weight in left.items():
            for other, times in right.items():
                a, b = (one[0], key_of(one[1])), (other[1], key_of(other[0]))
                if a == b and (null_safe or None not in a):
                    found[repr((*one, *other))] += weight * times
        return found

    return plain


def sets(kind: str) -> Callable[..., Counter[str]]:
    def plain(left: Bag, right: Bag | None = None) -> Counter[str]:
        one, other = canonical_bag(left), canonical_bag(right or Counter())
        found = {
            "distinct": lambda: dict.fromkeys(one, 1),
            "intersect": lambda: {row: 1 for row in one if row in other},
            "intersect_all": lambda: {row: min(one[row], other[row]) for row in one},
            "except": lambda: {row: 1 for row in one if row not in other},
            "except_all": lambda: {row: max(one[row] - other[row], 0) for row in one},
        }[kind]()
        return Counter({row: weight for row, weight in found.items() if weight})

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
        found: Counter[str] = Counter()
        for said, many in members.items():
            key = keys[said]
            sums = [row[-2] for row in many if row[-2] is not None]
            money = [row[-1] for row in many if row[-1] is not None]
            found[
                repr(
                    (
                        *key,
                        len(many),
                        len(sums),
                        sum(sums) if sums else None,
                        _mean(money),
                        min(sums, default=None),
                        max(money, default=None),
                    )
                )
            ] += 1
        return found

    return plain


def _mean(values: list[Decimal]) -> Decimal | None:
    """An average as Spark rounds it."""
    if not values:
        return None
    with localcontext(prec=60, rounding=ROUND_HALF_UP):
        return (sum(values, Decimal(0)) / len(values)).quantize(Decimal(1).scaleb(-MEAN.scale))


def admitted(rows: Bag) -> Counter[str]:
    return Counter({repr(row): weight for row, weight in rows.items() if weight > 0})


AGGS = (
    GroupAggregate("count", None, "n"),
    GroupAggregate("count", "v0", "some"),
    GroupAggregate("sum", "v0", "total"),
    GroupAggregate("avg", "v1", "mean"),
    GroupAggregate("min", "v0", "least"),
    GroupAggregate("max", "v1", "most"),
)
VALUES = pa.schema([("v0", BIG), ("v1", MONEY)])
RESULTS = (BIG, BIG, BIG, MEAN, BIG, MONEY)
TWO = (REAL, TEXT)
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
    "changes": Kind(ChangesSource((INT, REAL)), ((INT, REAL),), admitted),
    **{
        name: Kind(StatefulSet(name, TWO), (TWO,) if name == "distinct" else (TWO, TWO), sets(name))
        for name in ("distinct", "intersect", "intersect_all", "except", "except_all")
    },
}
EVERY = pytest.mark.parametrize("name", KINDS)
Step = dict[int, list[tuple[Row, int]]]


def history(kind: Kind, seed: int, steps: int = 6) -> list[Step]:
    """Steps that insert, and delete what is there; one of them nothing."""
    chance = random.Random(seed)
    pools = kind.pools or POOLS
    there: list[tuple[int, Row]] = []
    found: list[Step] = []
    for number in range(steps):
        step: Step = {}
        for _ in range(0 if number == 3 else chance.randint(1, 9)):
            if there and chance.random() < 0.4:
                side, row = there.pop(chance.randrange(len(there)))
                step.setdefault(side, []).append((row, -1))
            else:
                side = chance.randrange(len(kind.sides))
                row = tuple(chance.choice(pools[each]) for each in kind.sides[side])
                there.append((side, row))
                step.setdefault(side, []).append((row, 1))
        found.append(step)
    return found


def bag(rows: list[tuple[Row, int]]) -> Bag:
    """By value to the bit: 0.0 is not -0.0 here, and NaN is itself."""
    total: dict[str, tuple[Row, int]] = {}
    for row, weight in rows:
        _, before = total.get(repr(row), (row, 0))
        total[repr(row)] = row, before + weight
    return Counter({_Same(row): weight for row, weight in total.values() if weight})


class _Same(tuple):  # type: ignore[type-arg]
    """A row that is equal to those that look the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return repr(tuple(self)) == repr(tuple(other))  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash(repr(tuple(self)))

    def __repr__(self) -> str:
        return repr(tuple(self))


def whole(steps: list[Step], sides: int) -> Step:
    return {side: [item for step in steps for item in step.get(side, [])] for side in range(sides)}


def alone(kind: Kind, count: int, steps: list[Step]) -> Alone:
    """The operator after these steps, of which an empty one is the first."""
    operator = Alone(kind.operator, kind.sides, count)
    operator.step({}, first=True)
    for step in steps:
        operator.step(step)
    return operator


def plain(kind: Kind, steps: list[Step]) -> Counter[str]:
    whole_now = whole(steps, len(kind.sides))
    return Counter(kind.plain(*(bag(whole_now[side]) for side in range(len(kind.sides)))))


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.rule("DBSP-1", "DBSP-8")
def test_after_every_step_and_in_any_number_of_ranges_a_node_gave_what_plain_python_gives(
    name: str, seed: int
) -> None:
    kind = KINDS[name]
    steps = history(kind, seed)
    every = [Alone(kind.operator, kind.sides, count) for count in (1, 2, 7)]
    for operator in every:
        operator.step({}, first=True)
    for number, step in enumerate(steps):
        outs = [operator.step(step, pieces=1 + seed) for operator in every]
        assert outs[0] == outs[1] == outs[2]
        assert every[0].given == plain(kind, steps[: number + 1])


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.rule("DBSP-20")
def test_steps_that_are_merged_split_or_loaded_at_once_give_the_same_total_and_state(
    name: str, seed: int
) -> None:
    kind = KINDS[name]
    steps = history(kind, seed)
    one = alone(kind, 2, steps)
    merged = alone(kind, 7, [whole(steps, len(kind.sides))])
    single = [{side: [item]} for step in steps for side, rows in step.items() for item in rows]
    loaded = Alone(kind.operator, kind.sides, 3)
    loaded.step(whole(steps, len(kind.sides)), first=True)
    assert one.given == merged.given == loaded.given
    if name != "changes":  # what is deleted first is set aside, so its order counts there
        assert alone(kind, 1, single).given == one.given
    assert one.state() == merged.state() == loaded.state()


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.rule("DBSP-20")
def test_a_change_and_its_inverse_restore_the_state_and_leave_nothing(name: str, seed: int) -> None:
    kind = KINDS[name]
    *before, last = history(kind, seed)
    operator = alone(kind, 2, before)
    state, given = operator.state(), operator.given
    operator.step(last)
    operator.step({side: [(row, -weight) for row, weight in rows] for side, rows in last.items()})
    assert operator.given == given
    assert operator.state() == state
    everything = whole(before, len(kind.sides))
    operator.step({side: [(row, -weight) for row, weight in rows] for side, rows in everything.items()})
    assert operator.given == alone(kind, 1, []).given
    assert not any(operator.state().values())


@pytest.mark.slow
@EVERY
def test_keys_that_share_a_hash_are_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    steps = history(kind, 11)
    strong = alone(kind, 2, steps)

    def weak(rows: pa.Table, names: list[str]) -> pa.Array:
        return pa.array([value & 1 for value in hash_column(rows, names).to_pylist()], pa.int64())

    monkeypatch.setattr(native_operators, "hash_column", weak)
    assert alone(kind, 2, steps).given == strong.given == plain(kind, steps)


# --- sources


@pytest.mark.rule("DBSP-21")
@pytest.mark.parametrize("count", [1, 7])
def test_what_is_deleted_before_it_is_there_waits_and_is_counted_until_it_comes(count: int) -> None:
    operator = Alone(ChangesSource((INT, TEXT)), ((INT, TEXT),), count)

    def aside() -> int:
        return sum(told.aside.get("0", 0) for told in operator.told)

    assert operator.step({0: [((1, "a"), 1)]}, first=True) == Counter({repr((1, "a")): 1})
    assert operator.step({0: [((1, "a"), -3), ((2, None), -1)]}) == Counter({repr((1, "a")): -1})
    assert aside() == 2
    assert operator.step({0: [((1, "a"), 1), ((2, None), 2)]}) == Counter({repr((2, None)): 1})
    assert aside() == 1
    assert operator.step({0: [((1, "a"), 2)]}) == Counter({repr((1, "a")): 1})
    assert aside() == 0
    assert sum(operator.state()["aside"].values()) == 0


def test_a_deletion_of_a_zero_of_the_other_sign_is_set_aside() -> None:
    operator = Alone(ChangesSource((REAL,)), ((REAL,),))
    operator.step({0: [((0.0,), 1)]}, first=True)
    assert operator.step({0: [((-0.0,), -1)]}) == Counter()
    assert operator.told[0].aside == {"0": 1}


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.rule("DBSP-20")
def test_of_a_keyed_dataset_the_last_write_of_a_key_is_there_however_writes_are_cut(
    count: int, seed: int
) -> None:
    chance = random.Random(seed)
    types = (TEXT, REAL, INT)  # the key is the second and the first column
    writes = []
    for position in range(40):
        row = (chance.choice(["a", None]), chance.choice([0.0, -0.0, NAN, 1.0]), chance.randint(0, 3))
        writes.append((*row, chance.random() < 0.3, position // 7, position))
    last: dict[Any, Row | None] = {}
    for write in writes:
        last[write[0], key_of(write[1])] = None if write[3] else write[:3]
    wanted = Counter(repr(row) for row in last.values() if row is not None)
    sides = ((*types, pa.bool_(), BIG, BIG),)
    operator = Alone(UpsertsSource(types, (1, 0)), sides, count)
    places = sorted(chance.randrange(41) for _ in range(5))
    for low, high in zip([0, *places], [*places, 40], strict=True):
        part = writes[low:high]
        chance.shuffle(part)
        operator.step({0: [(write, 1) for write in part]}, first=low == 0 and not operator.version.step)
    assert operator.given == wanted
    once = Alone(UpsertsSource(types, (1, 0)), sides, 1)
    once.step({0: [(write, 1) for write in writes]}, first=True)
    assert once.given == wanted
    assert once.state() == operator.state()
    again = operator.step({0: [(write, 1) for write in writes]})
    assert not again, "writes that say what is there already change nothing"


# --- keyed operators


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.rule("DBSP-17")
def test_a_key_whose_change_cancels_out_is_gathered_with_all_its_rows(pieces: int) -> None:
    """Whoever holds its result is told of the key as well, and takes that back."""
    operator = Alone(GatherRows((INT, TEXT), (0,)), ((INT, TEXT), (INT,)))
    operator.step({0: [((1, "a"), 1), ((1, "b"), 2), ((2, "c"), 1)]}, first=True)
    change = [((1, "a"), 1), ((1, "a"), -1)]
    assert operator.step({0: change}, pieces=pieces) == Counter({repr((1, "a")): 1, repr((1, "b")): 2})
    assert operator.step({1: [((2,), -1), ((9,), 1)]}) == Counter({repr((2, "c")): 1})


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.rule("DBSP-17")
def test_of_the_keys_that_changed_the_stored_result_goes_and_the_new_one_comes(count: int) -> None:
    operator = Alone(ReplaceRows((REAL, TEXT), (REAL,)), ((REAL, TEXT, REAL), (REAL,)), count)
    operator.step(
        {0: [((0.0, "a", 0.0), 1), ((NAN, "b", NAN), 1)], 1: [((0.0,), 1), ((NAN,), 1)]}, first=True
    )
    operator.step({0: [((-0.0, "c", -0.0), 2)], 1: [((-0.0,), 1), ((NAN,), -1), ((7.0,), 1)]})
    assert operator.given == Counter({repr((-0.0, "c")): 2})
    operator.step({1: [((0.0,), 1)]})
    assert operator.given == Counter()
    assert not any(operator.state().values())


# --- the hash

# By type: the hash of its first value in `TYPES`, and the checksum of those of all its values. State that is
# stored was spread by these: another hash needs another format of version files.
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
    found = {}
    for name in TYPES:
        kind, values = values_of(name)
        array = pa.array(values, kind)
        every = hash_column(pa.table({"c0": array}), ["c0"]).to_pylist()
        for place in range(len(values)):
            sliced = pa.table({"c0": array.slice(place, 1)})
            assert hash_column(sliced, ["c0"]).to_pylist() == [every[place]], name
            taken = pa.table({"c0": array.take(pa.array([place, 0, place]))})
            assert hash_column(taken, ["c0"]).to_pylist()[::2] == [every[place]] * 2, name
        assert len(set(every)) == len(every), name
        found[name] = every[0], zlib.crc32(repr(every).encode())
    assert found == GOLDEN


def test_the_hash_of_a_key_is_one_of_all_its_parts_in_their_order() -> None:
    rows = pa.table({"c0": pa.array([1, None, None], INT), "c1": pa.array([None, 1, None], INT)})
    assert len(set(hash_column(rows, ["c0", "c1"]).to_pylist())) == 3
    assert hash_column(rows, ["c0", "c1"]) != hash_column(rows, ["c1", "c0"])
    assert hash_column(rows, []).to_pylist() == [0, 0, 0]


@pytest.mark.rule("DBSP-21")
def test_zeros_and_nans_have_one_hash_also_inside_of_nested_values() -> None:
    kind = pa.struct([("a", pa.list_(pa.float64()))])
    values = [{"a": [0.0, NAN]}, {"a": [-0.0, -NAN]}]
    assert len(set(hash_column(pa.table({"c0": pa.array(values, kind)}), ["c0"]).to_pylist())) == 1
    for kind in (pa.float32(), pa.float64()):
        array = pa.array([0.0, -0.0], kind)
        assert len(set(hash_column(pa.table({"c0": array}), ["c0"]).to_pylist())) == 1


# --- edges of operators


@pytest.mark.parametrize("count", [1, 2, 7, 256])
def test_an_aggregate_over_everything_speaks_first_in_one_range_alone(count: int) -> None:
    operator = KINDS["everything"].operator
    assert sum(operator.emits_without_input(within) for within in ranges(count)) == 1
    assert not any(KINDS["groups"].operator.emits_without_input(within) for within in ranges(count))


def test_rows_of_a_view_meet_by_the_first_half_of_their_identity() -> None:
    operator = OutputSink("v", ("x",), (INT,))
    packed = operator.pack(0, pa.table({"c0": pa.array([7], INT), "_w": [1]}))["rows"]
    assert packed["_h"].to_pylist() == packed["c1"].to_pylist()
    nested = OutputSink("v", ("x",), (pa.list_(INT),))
    assert nested.needs_spark
    rows = pa.table({"c0": pa.array([[7]], pa.list_(INT)), "c1": [5], "c2": [6], "_w": [1]})
    assert nested.pack(0, rows)["rows"]["_h"].to_pylist() == [5]


def extremes(best: int) -> Alone:
    aggs = (GroupAggregate("max", "v0", "m"), GroupAggregate("min", "v0", "n"))
    kernel = GroupKernel(pa.schema([("k0", INT)]), pa.schema([("v0", INT)]), aggs, best=best)
    return Alone(StatefulAggregate(kernel, (INT, INT)), ((INT, INT),), count=3)


def test_an_exhausted_group_of_an_append_only_input_is_told_and_not_guessed() -> None:
    operator = extremes(best=1)
    operator.step({0: [((1, value), 1) for value in range(9)]}, first=True)
    operator.step({0: [((1, value), -1) for value in (7, 8)]})
    assert sum(count for told in operator.told for count in told.exhausted.values()) == 1


@pytest.mark.slow
@pytest.mark.rule("DBSP-13")
@pytest.mark.parametrize("seed", range(6))
def test_a_group_that_has_used_up_its_best_values_is_filled_again_from_its_own(seed: int) -> None:
    chance = random.Random(seed)
    operator, live = extremes(best=2), Counter[tuple[int, int]]()
    for step in range(12):
        gone = chance.sample(sorted(live.elements()), min(10, live.total()))
        came = [(chance.randrange(4), chance.randrange(12)) for _ in range(8 if step else 40)]
        change = [*((row, 1) for row in came), *((row, -1) for row in gone)]
        for row, weight in change:
            live[row] += weight
        operator.step({0: change}, first=not step)
        assert not any(told.exhausted for told in operator.told), "its own values are enough"
        groups = {key for (key, _), count in live.items() if count}
        wanted = Counter[str]()
        for group in groups:
            values = [value for (key, value), count in live.items() if count and key == group]
            add(wanted, table((INT, INT, INT), [((group, max(values), min(values)), 1)]))
        assert operator.given == wanted


def test_a_sum_of_what_cannot_be_added_is_refused() -> None:
    with pytest.raises(TypeRefused):
        GroupKernel(pa.schema([]), pa.schema([("v0", TEXT)]), (GroupAggregate("sum", "v0", "s"),))
