"""Lot ids: each has one spelling, and they sort by time."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import BadLotId
from tidemill.lots.ids import DAY, DAY_S, AppendId, LotId, Unit, between, parse

UNITS = st.sampled_from([Unit(s) for s in range(1, DAY_S + 1) if DAY_S % s == 0])
MOMENTS = st.integers(0, 230 * 365 * DAY_S * 1_000_000).map(
    lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
)


@pytest.mark.rule("LOT-3")
def test_the_id_of_the_rule_is_four_ten_to_a_quarter_past():
    lot = LotId.parse("20230101PT5M050")
    assert lot.start == datetime(2023, 1, 1, 4, 10, tzinfo=UTC)
    assert lot.end == datetime(2023, 1, 1, 4, 15, tzinfo=UTC)
    assert str(LotId.parse("20230101")) == "20230101"
    assert LotId.parse("20230101").end == datetime(2023, 1, 2, tzinfo=UTC)


@pytest.mark.rule("LOT-3")
@given(UNITS, MOMENTS)
def test_every_id_round_trips(unit, moment):
    lot = unit.at(moment)
    assert parse(str(lot)) == lot
    assert Unit.parse(str(unit)) == unit


@pytest.mark.rule("LOT-3")
@given(UNITS, MOMENTS, MOMENTS)
def test_within_one_unit_names_sort_as_intervals_do(unit, a, b):
    first, other = unit.at(a), unit.at(b)
    assert (str(first) < str(other)) == (first.start < other.start) == (first < other)


@pytest.mark.rule("LOT-2")
@given(UNITS, MOMENTS)
def test_an_interval_is_half_open_and_holds_its_moment(unit, moment):
    lot = unit.at(moment)
    assert lot.start <= moment < lot.end
    assert lot.next().start == lot.end
    assert unit.at(lot.end) == lot.next()


@pytest.mark.rule("LOT-2")
def test_times_of_other_zones_are_taken_in_utc_and_times_without_one_are_refused():
    paris = timezone(timedelta(hours=1))
    assert str(DAY.at(datetime(2023, 1, 1, 0, 30, tzinfo=paris))) == "20221231"
    with pytest.raises(BadLotId):
        DAY.at(datetime(2023, 1, 1))  # noqa: DTZ001


@pytest.mark.rule("LOT-3")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "2023010",
        "202301011",
        "20230132",
        "20231301",
        "20230101PT5M50",
        "20230101PT5M0050",
        "20230101PT5M288",
        "20230101PT5M-01",
        "20230101PT300S050",
        "20230101PT7M000",
        "20230101PT0M000",
        "20230101P1D000",
        "20230101PT24H000",
        "20230101pt5m050",
        "20230101PT5M05٠",
        "20230101PT5M050 ",
        "20230101PT5M050\n",
        "20230101T04:10",
        "A17",
        "A0000000000000000x",
        "A00000000000000000",
    ],
)
def test_anything_but_the_one_spelling_is_refused(text):
    with pytest.raises(BadLotId):
        parse(text)


@pytest.mark.rule("LOT-3")
@pytest.mark.parametrize("seconds", [0, -1, 7, 86_399, 86_401, 172_800])
def test_a_unit_that_does_not_divide_the_day_is_refused(seconds):
    with pytest.raises(BadLotId):
        Unit(seconds)


@pytest.mark.rule("LOT-4")
@given(st.integers(1, 10**17 - 1), st.integers(1, 10**17 - 1))
def test_appends_are_named_by_their_place_and_sort_by_it(a, b):
    assert parse(str(AppendId(a))) == AppendId(a)
    assert (str(AppendId(a)) < str(AppendId(b))) == (a < b)


def test_the_lots_between_two_are_those_of_one_unit():
    first, last = LotId.parse("20230101PT5M286"), LotId.parse("20230102PT5M001")
    assert [str(lot) for lot in between(first, last)] == [
        "20230101PT5M286",
        "20230101PT5M287",
        "20230102PT5M000",
        "20230102PT5M001",
    ]
    with pytest.raises(BadLotId):
        between(first, LotId.parse("20230102"))
