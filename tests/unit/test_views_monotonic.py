"""Which bounds that depend on the clock are monotonic."""

import pytest

from tidemill.views.sql.conditions import is_monotonic


@pytest.mark.parametrize(
    "sql",
    [
        "current_timestamp()",
        "(current_timestamp() - INTERVAL '1' DAY)",
        "current_timestamp() + INTERVAL 90 MINUTES",
        "current_timestamp() - INTERVAL '1 day 2 hours'",
        "current_timestamp() - INTERVAL '1 02' DAY TO HOUR",
        "current_date()",
        "current_date() - 7",
        "date_sub(current_date(), 7)",
        "date_add(current_date(), -7)",
        "current_date() - INTERVAL 1 MONTH",
        "CAST(current_timestamp() AS DATE) - INTERVAL '1' YEAR",
        "date_trunc('HOUR', current_timestamp()) - INTERVAL 1 DAY",
        "to_date(current_timestamp())",
        "localtimestamp()",
        "trunc(current_date(), 'MONTH')",
    ],
)
def test_the_clock_plus_an_interval_is_monotonic(sql: str) -> None:
    assert is_monotonic(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "current_timestamp() - INTERVAL 1 MONTH",
        "CAST('2030-01-01' AS DATE) - (current_date() - CAST('2000-01-01' AS DATE))",
        "make_date(4000 - year(current_date()), 1, 1)",
        "TIMESTAMP '2024-01-01'",
        "date_add(MONTH, 1, current_timestamp())",
        "hour(current_timestamp())",
        "CAST(current_timestamp() AS STRING)",
        "greatest(current_date(), DATE '2024-01-01')",
        "current_timestamp() - c0",
        "not sql at all (",
    ],
)
def test_a_bound_that_may_decrease_or_is_unknown_is_not_monotonic(sql: str) -> None:
    assert not is_monotonic(sql)
