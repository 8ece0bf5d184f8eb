"""Computing the steps of views: the port of the steppers, with Spark below it."""

from tidemill.views.steps.commits import Batch, Output


class StepCompute:
    """Computes batches."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.args = args

    def __call__(self, batch: Batch, attempt: str) -> tuple[Output, ...]:
        raise AssertionError("soon")
