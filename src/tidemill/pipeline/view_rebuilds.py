"""Finds the step that built a view's table from nothing, so that the changes before and after do not add up.

A step that follows its view adds changes to the table before it: the digest of the new table is the digest of
the table before plus that of the changes (DBSP-42). A step that begins again, because the view got other
columns or was removed and declared again, writes all rows as insertions and deletes none of the old rows. A
reader that continues over such a step would have the old and the new rows.
"""

from collections.abc import Iterable

from tidemill.store import Tx
from tidemill.views.kernels.zsets import SPAN
from tidemill.views.spark.digests import number_of
from tidemill.views.steps import commits
from tidemill.views.steps.commits import StepOutput, StepRow
from tidemill.views.steps.keys import StepKeys

PAGE = 100


def last_output(
    tx: Tx, keys: StepKeys, pipeline: str, group: str, view: str, position: int
) -> tuple[StepOutput | None, int]:
    """Search one page of commits, from a position backwards, for the last output of a view.

    Returns the output and the position at which the search continues; 0 when it is over.
    """
    page = commits.before(tx, keys, pipeline, group, position, PAGE)
    for row in page:
        for output in row.outputs:
            if output.view == view:
                return output, 0
    return None, page[-1].after if len(page) == PAGE else 0


def rebuild_step(view: str, before: StepOutput | None, steps: Iterable[StepRow]) -> int | None:
    """Return the first of these steps that built the view's table from nothing; None if there is none.

    - before: the last output of the view before these steps; None if there is none.
    """
    for row in steps:
        for output in row.outputs:
            if output.view != view:
                continue
            if before is not None and before.content and output.content:
                expected = (number_of(before.content) + number_of(output.digest)) % SPAN
                if number_of(output.content) != expected:
                    return row.step
            before = output
    return None
