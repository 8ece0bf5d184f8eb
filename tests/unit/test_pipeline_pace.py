from datetime import timedelta

import pytest

import tidemill as tm
from tidemill.errors import DeclarationError
from tidemill.lots.keys import DatasetId
from tidemill.pipeline.pace import seconds, terms_of


@pytest.mark.parametrize("value", [90, 90.0, "PT90S", "PT1M30S", timedelta(minutes=1.5)])
def test_a_duration_has_several_forms(value: object) -> None:
    assert seconds("cadence", value) == 90.0


@pytest.mark.rule("HEAP-1", "HEAP-14")
def test_an_arc_has_the_pace_that_was_declared() -> None:
    with tm.Pipeline("p", home="nowhere") as pipeline:
        table = pipeline.dataset("raw", "id BIGINT")

        @pipeline.arc(reads=table, writes="clean", pace=tm.Pace(cadence="PT5M", debounce=2, max_wait=30))
        def clean(df):
            return df

        terms = terms_of(pipeline.arcs["clean"].pace, (DatasetId("raw"),), "arc:p/clean")
    assert (terms.cadence_us, terms.debounce_us, terms.max_wait_us) == (300_000_000, 2_000_000, 30_000_000)


@pytest.mark.parametrize("value", [0, -1, "PT", "5 minutes", "P1M", 10**9])
def test_an_invalid_pace_is_refused_with_the_line(value: object) -> None:
    with pytest.raises(DeclarationError, match=r"test_pipeline_pace\.py:\d+: invalid cadence="):
        tm.Pace(cadence=value)


def test_max_wait_needs_debounce() -> None:
    with pytest.raises(DeclarationError, match="max_wait"):
        tm.Pace(max_wait=5)


def test_a_pace_of_another_type_is_refused_with_the_line() -> None:
    pipeline = tm.Pipeline("p", home="nowhere")
    with pytest.raises(DeclarationError, match=r"test_pipeline_pace\.py:\d+: invalid pace='PT5M'"):
        pipeline.arc(reads="raw", writes="clean", pace="PT5M")
