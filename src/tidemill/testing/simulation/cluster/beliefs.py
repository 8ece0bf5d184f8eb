"""Check that a node which believes it holds a lease does hold it whenever it can act (CLU-4)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.testing.simulation.cluster.history import History
from tidemill.testing.simulation.rules import Act

if TYPE_CHECKING:
    from tidemill.testing.simulation.cluster.process import Process


class Beliefs:
    """Check, each time a process continues, what `check()` would return to its threads now."""

    def __init__(self, history: History) -> None:
        self._history = history

    def judge(self, process: "Process") -> None:
        if process.started:
            now_us = process.world.now_us
            for key, epoch in _beliefs(process):
                self._history.judge_holder(Act(process.node, key, epoch, now_us), "believes to hold")


def _beliefs(process: "Process") -> Iterator[tuple[bytes, int]]:
    for held in process.holdings.held.values():
        if held.alive() and not held.ending:
            yield process.part_keys[held.part.group, held.part.id], held.part.epoch
    tenure = process.member.tenure
    if tenure is not None and tenure.alive():
        yield process.keys.leader, tenure.epoch
    for task in process.host.tasks.values():
        if task.permit is not None and task.permit.alive():
            yield task.permit.key, task.permit.epoch
