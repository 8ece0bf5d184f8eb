"""What there is to tell about steps."""

from tidemill.events import Event


class RecordWritten(Event, frozen=True, kw_only=True):
    """The input of a step is decided."""

    pipeline: str
    step: int
    datasets: int


class StepCommitted(Event, frozen=True, kw_only=True):
    """A group of views is at a step now; `views` are those that were computed."""

    pipeline: str
    group: str
    step: int
    after: int
    attempt: str
    views: tuple[str, ...]
    rows: int


class RowsSetAside(Event, frozen=True, kw_only=True):
    """Rows were deleted of a dataset in which they are not: no view has them, they wait for their insertion.

    - rows: how many, by dataset.
    """

    pipeline: str
    group: str
    step: int
    rows: dict[str, int]


class StepAbandoned(Event, frozen=True, kw_only=True):
    """A step's computation failed; it is run again."""

    pipeline: str
    group: str
    step: int
    attempt: str
    why: str


class StepTimed(Event, frozen=True, kw_only=True):
    """Where the time of a group's step went, as far as kernels computed it; seconds.

    - views: those whose changes came out of kernels.
    - plan_s: until Spark was given the job; job_s: until it had run; kernel_s: inside of kernels, all tasks.
    - load_s: building traces from whole inputs; such a step is chosen where a trace is missing, or where more
      rows changed than are known.
    - place: where the rest was computed, by a job of `spark` or in the `runner`; estimated_s: what it was
      expected to take there, which is why.
    - changed_rows, known_rows: what that was decided by.
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


class FilesCollected(Event, frozen=True, kw_only=True):
    """Files of a view, or of a group's state, were removed that nothing lists any more.

    - of: the view, or the group.
    - size: bytes that are free now.
    """

    pipeline: str
    of: str
    files: int
    size: int
