"""What tasks on executors get and check: a small plan, and state that their kernels continue (DBSP-44)."""

import pickle

import pytest

from tidemill.errors import TraceFormat
from tidemill.views.chain.layer_task import CODE, check_code
from tidemill.views.spark.tasks import TaskPaths
from tidemill.views.trace.version import TraceVersion


@pytest.mark.rule("DBSP-44")
def test_kernels_refuse_state_that_other_kernels_wrote() -> None:
    check_code(TraceVersion())
    check_code(TraceVersion(step=7, code=CODE))
    with pytest.raises(TraceFormat, match="step 7 was written by kernels of version 'other'") as caught:
        check_code(TraceVersion(step=7, code="other"))
    assert "tidemill upgrade" in caught.value.hint


@pytest.mark.rule("DBSP-44")
def test_a_plan_names_the_version_file_and_is_small() -> None:
    paths = TaskPaths("file:///objects", "data/name=g/version=state/lot=S1/attempt=a/version", "data/p/")
    assert len(pickle.dumps(paths)) < 1000
    assert set(vars(paths)) == {"objects", "version", "prefix", "folders", "cache", "compact"}
