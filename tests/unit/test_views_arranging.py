"""By which key a source remembers its rows, and which joins read them there."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.unit.lent_stage import built, join, project, source, types_of
from tidemill.views.chain.chain import Chain
from tidemill.views.chain.native_operators import StatefulJoin
from tidemill.views.chain.source_operators import ChangesSource
from tidemill.views.chain.source_sharing import side_key, source_keys
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.expr import call, column
from tidemill.views.circuit.operators import Filter, JoinKey, Operator, Project, UnionAll, Window, WindowCall

A = source("a", "int", "string", "bigint")
B = source("b", "int", "string", "bigint")
C = source("c", "bigint", "string", key=(0,))


def chosen(*roots: Operator) -> dict[str, tuple[int, ...]]:
    """The key of each table's source."""
    return {one.table: key for one, key in source_keys(walk(*roots), types_of(*roots)).items()}


def lent(*roots: Operator, kinds: Mapping[str, str] | None = None) -> tuple[Chain, list[tuple[bool, bool]]]:
    """The chain of some joins, and which sides of each are read at sources."""
    chain = built({f"v{n}": root for n, root in enumerate(roots)}, {"c": "keyed"} | dict(kinds or {}))
    joins = [one.operator for one in chain.operators if isinstance(one.operator, StatefulJoin)]
    return chain, [(one.lent[0] is not None, one.lent[1] is not None) for one in joins]


def keys(chain: Chain) -> dict[str, tuple[int, ...]]:
    """By which columns sources remember, by the end of their names."""
    return {
        one.id.partition(".")[2]: one.operator.key
        for one in chain.operators
        if isinstance(one.operator, ChangesSource)
    }


# --- which key


def test_the_key_of_most_joins_is_chosen() -> None:
    by_text = [join(A, B, (1, 1)), join(A, C, (1, 1))]
    assert chosen(join(A, B, (0, 0)), *by_text) == {"a": (1,), "b": (0,), "c": (1,)}
    chain, found = lent(join(A, B, (0, 0)), *by_text)
    assert found == [(False, True), (True, False), (True, False)]
    assert sorted(keys(chain)) == ["by0", "by1"]


def test_of_keys_with_as_many_joins_the_first_columns_are_chosen_whatever_the_order_of_views() -> None:
    ones = [join(A, B, (2, 2)), join(A, B, (0, 0)), join(A, B, (0, 0), (1, 1))]
    for order in (ones, ones[::-1], [ones[1], ones[2], ones[0]]):
        assert chosen(*order) == {"a": (0,), "b": (0,)}


def test_a_join_that_several_views_share_counts_once() -> None:
    shared = join(A, B, (1, 1))
    views = [project(shared, 0), project(shared, 1), join(A, B, (0, 0)), join(A, C, (2, 0), (1, 1))]
    assert chosen(*views)["a"] == (0,)


def test_a_key_is_columns_in_the_order_of_the_join() -> None:
    one, other = join(A, B, (1, 1), (0, 0)), join(A, B, (0, 0), (1, 1))
    assert chosen(one) == {"a": (1, 0), "b": (1, 0)}
    chain, found = lent(one, other)
    assert found == [(False, False), (True, True)]
    assert keys(chain) == {"by0-1": (0, 1)}


def test_columns_that_are_chosen_before_are_followed_to_the_source() -> None:
    some = project(project(A, 2, 0, 1), 1, 1, 2)
    found = side_key(join(some, B, (1, 0)), 0, types_of(join(some, B, (1, 0))))
    assert found == (A, (0, 0, 1), (0,))
    assert lent(join(some, B, (1, 0)))[1] == [(True, True)]


def test_a_table_joined_with_itself_by_one_key_is_read_twice_and_kept_once() -> None:
    chain, found = lent(join(A, A, (0, 0)))
    assert found == [(True, True)]
    (placed,) = [one for one in chain.operators if isinstance(one.operator, StatefulJoin)]
    (origin,) = [one for one in chain.operators if isinstance(one.operator, ChangesSource)]
    assert not placed.traces
    assert placed.reads == frozenset(origin.traces.values())
    assert [name for name, _, _ in placed.borrowed] == [
        "left.main",
        "left.aside",
        "right.main",
        "right.aside",
    ]


# --- where none is

SAFE = replace(
    join(A, B, (0, 0), (1, 1)), keys=(JoinKey(column(0), column(0)), JoinKey(column(1), column(1), True))
)
OTHER_TYPES = join(A, B, (0, 2))
FILTERED = join(
    Filter(A, (call("isnotnull", column(0)),)), Filter(B, (call("isnotnull", column(0)),)), (0, 0)
)
COMPUTED = join(Project(A, (call("abs", column(0)),)), Project(B, (call("abs", column(0)),)), (0, 0))
UNITED = join(UnionAll((A, A)), UnionAll((B, B)), (0, 0))
OUTER = [replace(join(A, B, (0, 0)), join=kind) for kind in ("left", "right", "full", "semi", "anti")]
CROSS = replace(join(A, B, (0, 0)), keys=())


@pytest.mark.parametrize("op", [SAFE, OTHER_TYPES, CROSS, *OUTER], ids=lambda op: op.join)
def test_a_join_that_does_not_compare_stored_values_by_equality_chooses_none(op: Operator) -> None:
    assert chosen(op) == {}


@pytest.mark.parametrize("op", [FILTERED, COMPUTED, UNITED], ids=["filter", "expression", "union"])
def test_a_join_of_what_is_not_all_of_a_source_chooses_none(op: Operator) -> None:
    assert source_keys(walk(op), types_of(op)) == {}


def test_one_column_against_two_is_no_key_of_its_table_but_the_two_are() -> None:
    assert chosen(join(A, B, (0, 0), (0, 0))) == {}
    three = source("d", "int", "int")
    assert chosen(join(A, three, (0, 0), (0, 1))) == {"d": (0, 1)}


@pytest.mark.parametrize("op", [SAFE, OTHER_TYPES, UNITED], ids=["null-safe", "types", "union"])
def test_joins_that_choose_none_remember_both_sides(op: Operator) -> None:
    chain, found = lent(op)
    assert found == [(False, False)]
    assert set(keys(chain).values()) == {()}
    (placed,) = [one for one in chain.operators if isinstance(one.operator, StatefulJoin)]
    assert set(placed.traces) == {"left", "right"}
    assert placed.borrowed == ()


def test_a_dataset_that_only_grows_has_no_source_to_read() -> None:
    chain, found = lent(join(A, B, (0, 0)), kinds={"a": "rows"})
    assert found == [(False, True)]
    (placed,) = [one for one in chain.operators if isinstance(one.operator, StatefulJoin)]
    assert set(placed.traces) == {"left"}
    assert {trace.rpartition(".")[2] for trace in placed.reads} == {"left", "main", "aside"}


def test_a_keyed_dataset_is_read_by_its_own_key_alone() -> None:
    assert lent(join(A, C, (2, 0)))[1] == [(True, True)]
    assert lent(join(A, C, (1, 1)))[1] == [(True, False)]


# --- jobs


def test_a_join_in_a_later_job_than_its_source_remembers_rows_itself() -> None:
    window = Window(B, (column(0),), (), (WindowCall(call("count", column(1)), "count", (column(1),)),))
    late = join(A, window, (0, 0))
    chain = built({"late": late, "now": join(A, B, (0, 0))}, {})
    found = {one.job: one for one in chain.operators if isinstance(one.operator, StatefulJoin)}
    assert set(found) == {0, 1}
    assert set(found[0].traces) == set()
    assert set(found[1].traces) == {"left", "right"}
    assert found[1].borrowed == ()
    assert not any(found[1].operator.is_local(side) for side in (0, 1))
