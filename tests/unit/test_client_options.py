"""Options of a submission: checked with a hint before anything is stored."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidemill.errors import UsageError
from tidemill.futures.client.options import GRACE_S, NAMES, Options, amount_of_bytes, split, timeout
from tidemill.futures.protocol.rows import Needs

SECOND = 1_000_000


def test_without_options_nothing_is_asked_for() -> None:
    plain = Options.of({})
    assert plain.needs == Needs()
    assert (plain.max_retries, plain.priority, plain.key, plain.queue) == (0, 0, "", "")
    assert plain.refuse
    assert plain.grace_s == GRACE_S
    assert plain.deadline_at(5, 5) == 0


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 0),
        (17, 17),
        (1e6, 1_000_000),
        ("17", 17),
        ("1kB", 1024),
        ("2 MB", 2 * 1024**2),
        ("1.5GiB", 3 * 512 * 1024**2),
        (" 1t ", 1024**4),
    ],
)
def test_ram_is_bytes_or_a_text(value: Any, size: int) -> None:
    assert amount_of_bytes("ram", value) == size
    assert Options.of({"ram": value}).needs.ram == size


def test_resources_are_names() -> None:
    assert Options.of({"resources": "spark"}).needs.named == ("spark",)
    assert Options.of({"resources": ["b", "a", "b"]}).needs.named == ("a", "b")


def test_a_deadline_is_a_duration_or_a_time_of_day() -> None:
    assert Options.of({"deadline": 2}).deadline_at(7, 0) == 7 + 2 * SECOND
    assert Options.of({"deadline": timedelta(seconds=3)}).deadline_at(7, 0) == 7 + 3 * SECOND
    at = datetime(2030, 1, 1, tzinfo=UTC)
    wall = int(at.timestamp()) * SECOND
    assert Options.of({"deadline": at}).deadline_at(100, wall - 10) == 110
    assert Options.of({"deadline": at}).deadline_at(100, wall + 10_000) == 1  # over: not "none"


@pytest.mark.parametrize(
    ("value", "refuse", "grace_s"),
    [("fail", True, GRACE_S), ("wait", False, -1.0), (7, False, 7.0), (timedelta(minutes=1), False, 60.0)],
)
def test_what_nobody_can_run_is_refused_or_waits(value: Any, refuse: bool, grace_s: float) -> None:
    options = Options.of({"on_unsatisfiable": value})
    assert (options.refuse, options.grace_s) == (refuse, grace_s)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu", -1),
        ("cpu", "2"),
        ("cpu", True),
        ("cpu", float("nan")),
        ("ram", "much"),
        ("ram", "-1GB"),
        ("ram", None),
        ("gpu", [1]),
        ("resources", {"ram": 5}),
        ("resources", 5),
        ("resources", ["two words"]),
        ("resources", ["a+b"]),
        ("retries", -1),
        ("retries", 1.5),
        ("retries", True),
        ("near", "future"),
        ("priority", "high"),
        ("priority", 10**9),
        ("deadline", 0),
        ("deadline", -1),
        ("deadline", "tomorrow"),
        ("deadline", datetime(2030, 1, 1)),  # noqa: DTZ001
        ("key", 5),
        ("key", ""),
        ("key", "k" * 2_000),
        ("durable", 1),
        ("queue", ""),
        ("queue", b"q"),
        ("on_unsatisfiable", "perhaps"),
        ("on_unsatisfiable", -1),
        ("on_unsatisfiable", None),
        ("progress_timeout", 0),
        ("progress_timeout", "1s"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_should_be(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}=.* is not valid") as caught:
        Options.of({name: value})
    assert caught.value.hint.startswith(f"{name} must be ")


def test_an_option_that_is_not_there_is_refused_with_the_list() -> None:
    with pytest.raises(UsageError, match="no option 'memory'") as caught:
        Options.of({"memory": 5})
    assert "ram" in caught.value.hint
    assert "functools.partial" in caught.value.hint


def test_keywords_are_parted_into_options_and_arguments() -> None:
    assert split({"ram": 1, "rows": 2, "key": "k"}) == ({"ram": 1, "key": "k"}, {"rows": 2})
    assert set(NAMES) == set(split(dict.fromkeys(NAMES))[0])


def test_calls_of_a_map_have_keys_of_their_own() -> None:
    assert Options.of({"key": "daily"}).numbered(7).key == "daily/7"


@pytest.mark.parametrize(
    ("value", "seconds"), [(None, None), (0, 0.0), (2.5, 2.5), (timedelta(seconds=4), 4.0)]
)
def test_a_timeout_is_seconds_or_none(value: Any, seconds: float | None) -> None:
    assert timeout(value) == seconds


@pytest.mark.parametrize("value", [-1, "1", True, float("inf")])
def test_a_wrong_timeout_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="timeout"):
        timeout(value)
