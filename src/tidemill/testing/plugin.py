"""A pytest plugin for tests of a pipeline. pytest loads it when Tidemill is installed.

The fixture `pipeline` imports the pipeline of the nearest `tidemill.toml`, and gives it an empty home:

    def test_orders_are_counted(pipeline):
        pipeline["orders"].append([(1, "10.00")])
        pipeline.run()
        assert pipeline["totals"].df().count() == 1

Folders of sources are relative to the temporary folder too, so a test never reads the files of the project.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline


@pytest.fixture
def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> "Iterator[Pipeline]":
    """The pipeline of the project, imported anew for each test, with an empty home in a temporary folder."""
    from tidemill.pipeline.pipeline_file import load, locate

    target, folder = locate(start=request.path.parent)
    with load(target, folder, fresh=True) as loaded:
        loaded.move_to(tmp_path)
        yield loaded
