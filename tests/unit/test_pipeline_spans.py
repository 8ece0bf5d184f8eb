"""Ranges of lots: days and times select lots of every table."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tidemill as tm
from tidemill.errors import NoLots
from tidemill.lots import events
from tidemill.pipeline import graph


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[tm.Pipeline]:
    with tm.Pipeline("p", home=tmp_path / "home") as pipeline:
        orders = pipeline.dataset("orders", "id BIGINT")

        @pipeline.arc(reads="orders", writes="clean", name="clean")
        def clean(df: object) -> object:
            return df

        for number in range(5):
            orders.append([(number,)])
        orders.replace("A00000000000000002", [(9,)])
        orders.append([(5,)])
        yield pipeline


def times(pipeline: tm.Pipeline) -> list[datetime]:
    """Return when each event of the orders was published."""
    dataset, keys = graph.id_of(pipeline, "orders"), pipeline.context.keys.lots
    listed = pipeline.context.store.run(lambda tx: events.read(tx, keys, dataset, 0, 100))
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    return [begin + timedelta(microseconds=event.wall_at) for event in listed]


def lots(
    pipeline: tm.Pipeline, first: graph.Bound, last: graph.Bound, table: str = "clean"
) -> tuple[str, str]:
    span = graph.span(pipeline, table, first, last)
    return span.first.lstrip("A0"), span.last.lstrip("A0")


def test_a_time_selects_the_appends_that_were_published_from_it_on(pipeline: tm.Pipeline) -> None:
    at = times(pipeline)
    instant = timedelta(microseconds=1)
    assert lots(pipeline, at[1], None) == ("2", "")
    assert lots(pipeline, at[1] + instant, None, "orders") == ("3", "")
    assert lots(pipeline, at[5], None) == ("6", ""), "the correction of an older lot is not an append"
    assert lots(pipeline, None, at[2] + instant) == ("", "3")
    assert lots(pipeline, at[0].isoformat(), at[3].isoformat()) == ("1", "3")
    assert lots(pipeline, "A00000000000000002", at[6] + instant) == ("2", "6")


def test_a_day_selects_the_appends_of_the_day(pipeline: tm.Pipeline) -> None:
    day = times(pipeline)[0].date()
    assert lots(pipeline, day - timedelta(days=1), day + timedelta(days=1)) == ("1", "6")
    with pytest.raises(NoLots, match="clean has no lots from the first one to 2001-01-01"):
        lots(pipeline, None, "2001-01-01")
    with pytest.raises(NoLots, match="has no lots from"):
        lots(pipeline, day + timedelta(days=2), day + timedelta(days=3))
