"""A pytest plugin for tests of a pipeline. pytest loads it when Tidemill is installed.

The fixture `pipeline` imports the pipeline of the nearest `tidemill.toml`, and gives it an empty home:

    def test_orders_are_counted(pipeline):
        pipeline["orders"].append([(1, "10.00")])
        pipeline.run()
        assert pipeline["totals"].df().count() == 1

Folders of sources are relative to the temporary folder too, so a test never reads the files of the project.

    lots     writes lots, and shows what became of them
    clock    the clock of the pipeline; a test can move it forward
    crash    interrupts the pipeline at its crash points, and compares its tables
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.testing.crash_tests import CrashTests
    from tidemill.testing.lots import Lots
    from tidemill.testing.pipeline_clock import PipelineClock


@pytest.fixture
def clock() -> "PipelineClock":
    """The clock of the fixture `pipeline`: `clock.advance("PT1H")` lets an hour pass."""
    from tidemill.testing.pipeline_clock import PipelineClock

    return PipelineClock()


@pytest.fixture
def pipeline(request: pytest.FixtureRequest, tmp_path: Path, clock: "PipelineClock") -> "Iterator[Pipeline]":
    """The pipeline of the project, imported anew for each test, with an empty home in a temporary folder."""
    from tidemill.pipeline.pipeline_file import load, locate

    target, folder = locate(start=request.path.parent)
    with load(target, folder, fresh=True) as loaded:
        loaded.move_to(tmp_path, clock=clock)
        clock.before_jump = loaded.close
        yield loaded


@pytest.fixture
def lots(pipeline: "Pipeline") -> "Lots":
    """Writes and shows the lots of the pipeline: `lots.append`, `lots.land`, `lots.of`, `lots.rows`."""
    from tidemill.testing.lots import Lots

    return Lots(pipeline)


@pytest.fixture
def crash(pipeline: "Pipeline", clock: "PipelineClock") -> "CrashTests":
    """Interrupts the pipeline: `crash(write_orders, at="everywhere")`; see `tidemill.testing.crash_tests`."""
    from tidemill.testing.crash_tests import CrashTests

    return CrashTests(pipeline, clock)
