"""Find a step that rebuilt a view's table from scratch: its changes do not fit the previous table.

An ordinary step adds its changes to the previous table: the digest of the new table is the digest of the
previous table plus the digest of the changes (DBSP-42). A step rebuilds the table if the columns of the view
changed, or if the view was removed and declared again. Such a step writes all rows as insertions, and deletes
none of the old rows. If a reader applied the changes of such a step to the previous table, the reader would
have both the old and the new rows.
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

    Returns the output, and the position at which the search continues; 0 if the search is over.
    """
    page = commits.before(tx, keys, pipeline, group, position, PAGE)
    for row in page:
        for output in row.outputs:
            if output.view == view:
                return output, 0
    return None, page[-1].after if len(page) == PAGE else 0


def rebuild_step(view: str, before: StepOutput | None, steps: Iterable[StepRow]) -> int | None:
    """Return the first of these steps that rebuilt the view's table from scratch; None if no step did.

    - before: the last output of the view before these steps; None if the view had no output.
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
