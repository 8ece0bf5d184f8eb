"""Classes of needs: what a worker may take without looking at each row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.futures.protocol.lanes import Capacity, bounds_of, fits, how_many, label_of, with_ram
from tidemill.futures.protocol.rows import Needs

amounts = st.one_of(st.just(0.0), st.floats(0.01, 512), st.integers(1, 512).map(float))
needs = st.builds(
    Needs,
    amounts,
    st.one_of(st.just(0), st.integers(1, 2**44), st.integers(0, 44).map(lambda bits: 2**bits)),
    amounts,
    st.lists(st.sampled_from(["spark", "a100", "licence"]), max_size=2, unique=True).map(tuple),
)


def capacity(need: Needs) -> Capacity:
    return Capacity(cpu=need.cpu, ram=need.ram, gpu=need.gpu, named=frozenset(need.named))


@pytest.mark.rule("FUT-23", "FUT-26")
@given(needs)
def test_a_class_holds_what_lies_between_its_bounds(need: Needs) -> None:
    low, high = bounds_of(label_of(need))
    assert fits(low, capacity(need))
    assert fits(need, capacity(high))
    assert high.ram <= need.ram * 1.2 + 2
    assert set(low.named) == set(high.named) == set(need.named)


@pytest.mark.rule("FUT-26")
@given(needs, st.integers(1, 50))
def test_as_many_as_are_said_to_fit_do_fit_together(need: Needs, times: int) -> None:
    free = Capacity(
        cpu=need.cpu * times, ram=need.ram * times, gpu=need.gpu * times, named=frozenset(need.named)
    )
    most = how_many(need, free)
    assert most >= times
    for _ in range(min(most, times)):
        assert fits(need, free)
        free = free.minus(need)


def test_what_does_not_fit_fits_no_times() -> None:
    assert how_many(Needs(cpu=2.0), Capacity(cpu=1.0)) == 0
    assert how_many(Needs(named=("spark",)), Capacity(cpu=1.0)) == 0
    assert how_many(Needs(), Capacity()) > 1000


@pytest.mark.rule("FUT-23")
def test_needs_that_were_not_given_are_nought_and_have_a_class() -> None:
    assert Needs() == Needs(0.0, 0, 0.0, ())
    assert label_of(Needs()) == "0.0.0"


@given(needs)
def test_a_node_says_what_it_has_and_is_understood(need: Needs) -> None:
    free = capacity(need)
    assert Capacity.of_node(free.to_node()) == free


@pytest.mark.rule("FUT-52")
def test_more_ram_replaces_less_and_never_the_other_way() -> None:
    assert with_ram(Needs(ram=4), 8).ram == 8
    assert with_ram(Needs(ram=4), 0).ram == 4
