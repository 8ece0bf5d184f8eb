"""An input is corrected while a request makes its lot from the earlier generation."""

import pytest

from tests.unit.arcs_stage import ArcStage
from tidemill.arcs.work import LotEnd
from tidemill.publish.parts import PartTask
from tidemill.triggers import wakes


@pytest.mark.rule("LOT-30")
@pytest.mark.parametrize("same_node", [True, False])
def test_a_correction_during_a_retry_is_not_lost(same_node: bool) -> None:
    stage = ArcStage()
    spec = stage.clean(max_concurrent=4)
    stage.subscribe(spec.id, stage.orders)
    node, other = stage.living("n"), stage.living("m")
    worker = stage.worker(node)
    second = worker if same_node else stage.worker(other)
    lot = stage.append([1, 2])
    stage.parts.failing[1] = 1
    assert [outcome.ended for outcome in stage.drain(spec, worker, node)] == [LotEnd.PARTIAL]
    request = stage.ask(spec, lot)

    def corrected(_: PartTask) -> None:
        stage.correct(lot, 1, [7])
        stage.run(wakes.wake, stage.triggers, stage.orders)
        stage.page_all()
        ticket = stage.start(node if same_node else other, spec.id)
        assert ticket is not None
        outcomes = second.run(spec, ticket)
        assert LotEnd.COMPLETE not in [outcome.ended for outcome in outcomes if outcome.lot == lot]

    stage.parts.between = corrected
    assert worker.make_requested(spec, request).ended is LotEnd.COMPLETE
    stage.clock.advance(2)
    stage.drain(spec, worker, node)
    assert stage.rows(stage.cleaned, lot) == [7]
