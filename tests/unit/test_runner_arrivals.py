"""Sources as a runner has them."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.sources_stage import PlainParts, SourceStage
from tidemill.cluster.keeper import Keeper
from tidemill.runner.arrivals import FileArrival, Ground
from tidemill.runner.program import SourceProgram


def arrival_of(stage: SourceStage) -> FileArrival:
    node: Any = stage.node("n1")
    ground = Ground(
        store=stage.store,
        keys=stage.keys,
        objects=stage.objects,
        node=node,
        parts=PlainParts(stage.root, stage.objects, stage.chance),
        keeper=Keeper(stage.store, node.id, clock=stage.clock, chance=stage.chance),
        clock=stage.clock,
        chance=stage.chance,
        emit=stage.told.append,
        watching=lambda: False,
    )
    return FileArrival(ground, SourceProgram(spec=stage.spec, place=stage.place, where="here"))


@pytest.mark.parametrize("grows", [False, True])
def test_a_file_that_never_comes_to_rest_does_not_keep_who_catches_up(tmp_path: Path, grows: bool) -> None:
    stage = SourceStage(tmp_path / "in", settle_s=2.0)
    stage.put("a.json", 1)
    stage.put("b.json", 2, age_s=0.0)
    arrival = arrival_of(stage)
    polls, taken = 0, 0
    while True:
        polled = arrival.poll()
        taken += polled.taken
        polls += 1
        if polled.settled:
            break
        assert polls < 20, "it waits for ever"
        stage.clock.advance(1.0)
        if grows:
            stage.put("b.json", *range(polls + 2), age_s=0.0)
    assert taken == (1 if grows else 2)
    assert polls > 1
