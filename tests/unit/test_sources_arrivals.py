"""Sources that are open on a node."""

from pathlib import Path

import pytest

from tests.unit.sources_stage import PlainParts, SourceStage
from tidemill.cluster.keeper import Keeper
from tidemill.sources.file_source import FileArrival
from tidemill.sources.source import SourceRuntime


def arrival_of(stage: SourceStage) -> FileArrival:
    runtime = SourceRuntime(
        scope=stage.scope(stage.node("n1")),
        parts=PlainParts(stage.root, stage.objects, stage.chance),
        keeper=Keeper(stage.store, "n1", clock=stage.clock, chance=stage.chance),
        watching=lambda: False,
    )
    return FileArrival(stage.spec, stage.source.listing(), runtime)


@pytest.mark.parametrize("grows", [False, True])
def test_a_file_that_never_settles_does_not_block_a_run_that_catches_up(tmp_path: Path, grows: bool) -> None:
    stage = SourceStage(tmp_path / "in", settle_s=2.0)
    stage.put("a.json", 1)
    stage.put("b.json", 2, age_s=0.0)
    arrival = arrival_of(stage)
    polls, files = 0, 0
    while True:
        polled = arrival.poll()
        files += polled.files
        polls += 1
        if polled.settled:
            break
        assert polls < 20, "it waits for ever"
        stage.clock.advance(1.0)
        if grows:
            stage.put("b.json", *range(polls + 2), age_s=0.0)
    assert files == (1 if grows else 2)
    assert polls > 1
