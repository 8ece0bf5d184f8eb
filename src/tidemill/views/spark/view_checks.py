"""Count the rows of views that fail their checks, and refuse views whose rows must not be published.

The view with the failing rows is computed like any view (`pipeline.checked_views`). Each step counts its
changes by the name of the check. The manifest of its table has the sums, so a step reads no rows but its own
changes.
"""

from collections.abc import Iterable, Iterator, Mapping

from tidemill.errors import ViewCheckFailed
from tidemill.lots.checks import OnFail
from tidemill.views.spark.view_sources import ViewCode, ViewSources
from tidemill.views.steps.checked_views import CheckedView
from tidemill.views.steps.commits import StepBatch, StepOutput


def checked_views(
    sources: ViewSources, batch: StepBatch, outputs: Iterable[StepOutput]
) -> Iterator[CheckedView]:
    """Yield how many rows fail the checks of each view with checks.

    Raises:
        ViewCheckFailed: rows of a view that is computed in this step fail a check that refuses them.
    """
    tables = batch.tables | {output.view: output.table for output in outputs}
    computed = batch.computed.spec.names
    for view in batch.spec.views:
        code = sources.code(view.name)
        if not code.failures or code.failures not in computed:
            continue
        checked = _checked(code, sources.tables.failing_rows(tables[code.failures]))
        if checked.refused and view.name in computed:
            raise _refusal(code, checked)
        yield checked


def _checked(code: ViewCode, rows: Mapping[str, int]) -> CheckedView:
    refused = (check.name for check in code.checks if check.on_fail is OnFail.FAIL and check.name in rows)
    return CheckedView(view=code.name, failures=code.failures, rows=dict(rows), refused=tuple(refused))


def _refusal(code: ViewCode, checked: CheckedView) -> ViewCheckFailed:
    texts = [
        f"{check.name} ({check.problem})"
        if check.kind == "rows"
        else f"{check.name} ({checked.rows[check.name]:,} failing: {check.problem})"
        for check in code.checks
        if check.name in checked.refused
    ]
    error = ViewCheckFailed(
        f"view {code.name} does not pass {', '.join(texts)}; {code.failures} has the rows that fail"
    )
    error.view = code.name
    return error
