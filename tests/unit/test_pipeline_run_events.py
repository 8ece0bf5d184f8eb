"""Progress lines of a run's start: people see what takes time before the first row."""

from tidemill.obs.lines import line_of
from tidemill.pipeline.run_events import RunPlanned, SparkStarting


def text(event: RunPlanned | SparkStarting) -> str:
    line = line_of(event)
    assert line is not None
    return f"{line.about}: {line.text}"


def test_a_run_says_that_spark_starts() -> None:
    assert text(SparkStarting(pipeline="shop", where="local[*]")) == "shop: starting Spark (local[*])"


def test_a_run_says_what_it_processes_and_watches() -> None:
    planned = RunPlanned(
        pipeline="shop", sources={"orders": "/data/landing/*.json"}, arcs=1, views=2, watch=True
    )
    assert text(planned) == "shop: runs 1 source, 1 arc, 2 views; watching /data/landing/*.json"
    assert (
        text(RunPlanned(pipeline="shop", sources={}, arcs=0, views=0, watch=True)) == "shop: runs no tables"
    )
