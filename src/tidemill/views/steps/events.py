"""Typed events of steps."""

import msgspec

from tidemill.events import Event


class RecordWritten(Event, frozen=True, kw_only=True):
    """Tidemill wrote a record, which assigns input to a step."""

    pipeline: str
    step: int
    datasets: int


class StepCommitted(Event, frozen=True, kw_only=True):
    """A group of views committed a step; `views` are the views whose tables changed.

    - changes: how many rows of each of these views changed.
    - positions: for each dataset with new lots, the positions before and after the step.
    """

    pipeline: str
    group: str
    step: int
    after: int
    attempt: str
    views: tuple[str, ...]
    rows: int
    changes: dict[str, int] = msgspec.field(default_factory=dict)
    positions: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)


class RowsSetAside(Event, frozen=True, kw_only=True):
    """A step deletes rows that their dataset does not contain.

    The deletions stay in quarantine until the rows are inserted.

    - rows: for each dataset, how many such rows there are.
    """

    pipeline: str
    group: str
    step: int
    rows: dict[str, int]


class StepAbandoned(Event, frozen=True, kw_only=True):
    """The computation of a step failed; it will be retried."""

    pipeline: str
    group: str
    step: int
    attempt: str
    why: str


class ViewSetAside(Event, frozen=True, kw_only=True):
    """A view failed on its input. The group committed the step without it; later steps try it again.

    - why: the error, with the lot and the row if they are known.
    """

    pipeline: str
    group: str
    step: int
    view: str
    why: str


class ViewChecked(Event, frozen=True, kw_only=True):
    """A step changed how many rows of a view fail its checks.

    - failures: the view with the rows that fail.
    - rows: the number of rows for each check that fails.
    - refused: the checks that fail and refuse to publish the view.
    """

    pipeline: str
    group: str
    step: int
    view: str
    failures: str
    rows: dict[str, int]
    refused: tuple[str, ...] = ()


class ViewsResumed(Event, frozen=True, kw_only=True):
    """Views that were set aside are computed again."""

    pipeline: str
    group: str
    step: int
    views: tuple[str, ...]


class StepTimed(Event, frozen=True, kw_only=True):
    """How long the parts of a step took, in seconds, for a group that has traces.

    - views: the views that kernels computed.
    - plan_s: planning the jobs, until they are submitted.
    - job_s: running the jobs.
    - kernel_s: inside kernels, summed over all tasks.
    - load_s: building traces from complete inputs. A step does so if a trace is missing, or if many more rows
      changed than the traces store.
    - place: where the step ran: `spark` (in Spark jobs) or `runner` (in the runner's process).
    - estimated_s: the time that was estimated for that place.
    - changed_rows, known_rows: how many input rows changed, and how many rows the largest trace stores.
    - operators: for each operator that a kernel ran, its kind, the rows it received, the rows it returned,
      and its seconds, summed over all tasks.
    - loaded_traces: how many traces the step built from complete inputs.
    - rewritten_rows: how many results of window functions changed for rows that did not change themselves.
    - recomputed_rows: how many stored rows recomputed operators read.
    - incremental_share: the share of incremental reads: changed rows in relation to changed and recomputed
      rows.
    """

    pipeline: str
    group: str
    step: int
    views: tuple[str, ...]
    plan_s: float
    job_s: float
    load_s: float
    kernel_s: float
    place: str = "spark"
    estimated_s: float = 0.0
    changed_rows: int = 0
    known_rows: int = 0
    operators: dict[str, tuple[str, int, int, float]] = msgspec.field(default_factory=dict)
    loaded_traces: int = 0
    rewritten_rows: int = 0
    recomputed_rows: int = 0
    incremental_share: float = 1.0


class FilesCollected(Event, frozen=True, kw_only=True):
    """The collector removed files of a view, or of a group's state, that are no longer needed.

    - of: the view or the group.
    - size: how many bytes were freed.
    """

    pipeline: str
    of: str
    files: int
    size: int
