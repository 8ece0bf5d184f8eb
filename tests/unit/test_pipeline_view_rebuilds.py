"""The changes of a view add up only as long as no step rebuilt its table from scratch."""

from typing import Any

from tests.unit.steps_stage import P, StepStage, spec
from tests.unit.test_triggers_heap import DAY_US
from tidemill.pipeline.view_rebuilds import PAGE, last_output, rebuild_step
from tidemill.views.spark.digests import text_of
from tidemill.views.steps.commits import StepBatch, StepOutput, StepRow


def row(step: int, digest: int, content: int, view: str = "v") -> StepRow:
    output = StepOutput(view=view, table=f"t{step}", digest=text_of(digest), content=text_of(content))
    return StepRow(step=step, after=step - 1, outputs=(output,), epoch=1, fence=1, at=0, wall_at=0)


def test_steps_that_add_to_the_table_before_continue() -> None:
    steps = [row(1, 5, 5), row(2, -2, 3), row(3, 100, 1, view="other"), row(4, 0, 3), row(5, -4, -1)]
    assert rebuild_step("v", None, steps) is None
    assert rebuild_step("v", steps[1].outputs[0], steps[3:]) is None


def test_a_step_that_begins_again_is_found_also_after_a_page_of_other_steps() -> None:
    steps = [row(1, 5, 5), row(2, 7, 7), row(3, 1, 8)]
    assert rebuild_step("v", None, steps) == 2
    assert rebuild_step("v", steps[0].outputs[0], steps[1:]) == 2
    assert rebuild_step("v", steps[1].outputs[0], steps[2:]) is None, "the reader began after it"
    assert rebuild_step("v", steps[0].outputs[0], [row(2, 0, 0)]) == 2, "nothing is left of the old rows"


def test_steps_without_a_stored_digest_are_accepted() -> None:
    old = StepRow(
        step=1, after=0, outputs=(StepOutput(view="v", table="t"),), epoch=1, fence=1, at=0, wall_at=0
    )
    assert rebuild_step("v", None, [old, row(2, 7, 7), row(3, 1, 8)]) is None


def test_the_last_output_of_a_view_is_searched_page_by_page() -> None:
    stage = StepStage(scan=False)
    orders = stage.dataset()
    stage.declare(spec("g", orders))
    node = stage.node("n", DAY_US)
    computed: Any = stage.compute

    def compute(batch: StepBatch, attempt: str) -> Any:
        return computed(batch, attempt) if batch.step <= 2 else ()

    stage.compute = compute  # type: ignore[method-assign]
    for _ in range(PAGE + 3):
        stage.publish(orders)
        stage.settle(node, "g")
    newest = stage.group("g").step
    output, at = stage.run(last_output, stage.keys, P, "g", "g", newest)
    assert (output, at) == (None, newest - PAGE)
    output, at = stage.run(last_output, stage.keys, P, "g", "g", at)
    assert output is not None
    assert at == 0
    assert stage.run(last_output, stage.keys, P, "g", "other", 2) == (None, 0)
