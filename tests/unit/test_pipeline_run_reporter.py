"""The output of a run: a reader that closes the pipe ends the run, and the exit code tells how it ended."""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill.cluster.nodes import Node
from tidemill.events import Emit
from tidemill.pipeline import child_process, pipeline_file, run
from tidemill.pipeline.child_process import OUTPUT_CLOSED
from tidemill.pipeline.run_report import Report
from tidemill.pipeline.run_reporter import RunReporter
from tidemill.runner.child import INTERRUPTED, ChildContext, RunnerHello
from tidemill.store.memory import MemoryStore
from tidemill.testing.fake_clock import FakeClock
from tidemill.triggers.events import RunFailed

FAILED = RunFailed(name="arc:shop/clean", code="x", message="trouble", backoff_s=1.0, failures=1)


@contextmanager
def closed_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace standard output by a pipe whose reader has gone. Not a fixture: pytest replaces it too."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        yield


@pytest.mark.parametrize("json", [False, True])
def test_a_reader_that_closes_the_pipe_is_reported_once_and_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, *, json: bool
) -> None:
    calls: list[str] = []
    reporter = RunReporter(json=json, on_closed=lambda: calls.append("closed"))
    with closed_pipe(monkeypatch):
        with reporter:
            if not json:  # with --json, events go to standard error
                reporter(FAILED)
                reporter(FAILED)
        reporter.end(Report(pipeline="shop", seconds=1.0))
    assert reporter.closed
    assert calls == ["closed"]


class Context:
    """The parts of a child's context that a run uses."""

    def __init__(self, folder: Path, **request: Any) -> None:
        self.arguments = {"target": "shop.py", "folder": str(folder), **request}
        self.presence = None
        self.grace_s = 7.0
        self.drained: list[float] = []
        self.draining = None
        self.left_s = None

    def drain(self, grace_s: float) -> None:
        self.drained.append(grace_s)


def main_of(
    monkeypatch: pytest.MonkeyPatch, folder: Path, report: Report, **request: Any
) -> tuple[int, Context]:
    context: Any = Context(folder, **request)

    def run_as_node(*_: object, emit: Emit, **__: object) -> Report:
        emit(FAILED)
        return report

    monkeypatch.setattr(run, "run_as_node", run_as_node)
    monkeypatch.setattr(pipeline_file, "load", lambda *_: tm.Pipeline("shop", home=folder / "home"))
    return child_process.main(context), context


@pytest.mark.parametrize(
    ("report", "watch", "code"),
    [
        (Report(pipeline="shop", seconds=1.0), False, 0),
        (Report(pipeline="shop", seconds=1.0, failures={"clean": "trouble"}), False, 1),
        (Report(pipeline="shop", seconds=1.0, failures={"clean": "trouble"}), True, 0),
        (Report(pipeline="shop", seconds=1.0, interrupted=True), False, INTERRUPTED),
    ],
)
def test_the_exit_code_of_a_run_tells_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report: Report, *, watch: bool, code: int
) -> None:
    assert main_of(monkeypatch, tmp_path, report, watch=watch)[0] == code


def test_a_run_whose_output_is_closed_drains_and_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with closed_pipe(monkeypatch):
        code, context = main_of(monkeypatch, tmp_path, Report(pipeline="shop", seconds=1.0), watch=True)
    assert code == OUTPUT_CLOSED == 141
    assert context.drained == [7.0]


def test_a_second_request_to_drain_can_only_shorten_the_grace_period() -> None:
    clock = FakeClock()
    node = Node(id="runner-0", epoch=1)
    hello = RunnerHello(
        main="m:f",
        arguments={},
        store="memory:",
        objects="",
        cluster="c",
        home="",
        secret=b"k" * 32,
        node=node,
        parent=1,
        ended=-1,
    )
    context = ChildContext(hello, MemoryStore(clock=clock, chance=random.Random(1)), clock)
    assert context.left_s() == 30.0
    context.drain(10.0)
    clock.advance(4)
    assert context.left_s() == 6.0
    context.drain(30.0)
    assert context.left_s() == 6.0
    context.drain(0.0)
    assert context.left_s() == 0.0
    assert context.draining.is_set()
