"""Interrupt a pipeline at its crash points, and compare its tables with those of an undisturbed run.

Before and after everything that Tidemill stores, there is a crash point (`tidemill.crash`). A crash test
first runs the pipeline undisturbed, and notes the points that it reaches. Then it runs the pipeline in new
homes with all points armed: the run dies at the first one, the next run continues in the same home and dies
at another one, and so on. At the end the tables must be identical.

Code of the pipeline that has effects outside of its tables, or that depends on anything but its input, is
found by this test: a lot may be made several times, but must always have the same rows.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tidemill import crash
from tidemill.errors import UsageError
from tidemill.testing.lots import Lots
from tidemill.testing.pipeline_clock import PipelineClock

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

EVERYWHERE = "everywhere"
MOST_CRASHES = 6
"""How many runs die in one home. After ten deaths, a runner takes a job to be the cause."""

PAUSE = "PT1H"
"""The time between a crash and the next run: leases of the dead run end, and no retry is postponed."""

Input = Callable[["Pipeline"], object]


class CrashTests:
    """Runs crash tests of one pipeline.

    - pipeline: the pipeline.
    - clock: its clock.
    """

    def __init__(self, pipeline: "Pipeline", clock: PipelineClock) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._folder = pipeline.base
        self._homes = 0

    def __call__(self, *inputs: Input, at: str | Iterable[str] = EVERYWHERE) -> list[str]:
        """Run the test; return the points at which the pipeline was interrupted.

        Args:
            inputs: functions that receive the pipeline and write input: rows or files. The pipeline runs
                after each of them.
            at: the names of crash points, or `"everywhere"`.
        """
        with crash.recorded() as reached:
            expected = self._undisturbed(inputs)
        wanted = sorted(reached if at == EVERYWHERE else {at} if isinstance(at, str) else set(at))
        unknown = [name for name in wanted if name not in reached]
        if unknown:
            raise UsageError(
                f"the pipeline does not reach the crash point {unknown[0]}",
                hint=f"use one of: {', '.join(sorted(reached))}",
            )
        crashed: list[str] = []
        while left := [name for name in wanted if name not in crashed]:
            died, tables = self._interrupted(inputs, left)
            _compare(expected, tables, died)
            if not died:
                break  # these points are not in the path of a run that continues in a new home
            crashed += died
        return crashed

    def _undisturbed(self, inputs: Iterable[Input]) -> dict[str, list[tuple[Any, ...]]]:
        self._new_home()
        for write in inputs:
            write(self._pipeline)
            self._run()
        return self._tables()

    def _interrupted(
        self, inputs: Iterable[Input], points: list[str]
    ) -> tuple[list[str], dict[str, list[tuple[Any, ...]]]]:
        """Run in a new home, and die at some of these points; return them, and the tables at the end."""
        self._new_home()
        died: list[str] = []
        for write in inputs:
            write(self._pipeline)
            while True:
                left = [name for name in points if name not in died] if len(died) < MOST_CRASHES else []
                try:
                    with _armed(left):
                        self._run()
                    break
                except crash.Crashed as crashed:
                    died.append(str(crashed))
                    self._clock.advance(PAUSE)
        return died, self._tables()

    def _new_home(self) -> None:
        self._homes += 1
        self._pipeline.move_to(self._folder / f"crash-{self._homes}")

    def _run(self) -> None:
        report = self._pipeline.run()
        assert report.ok, f"the pipeline fails without a crash: {report}"

    def _tables(self) -> dict[str, list[tuple[Any, ...]]]:
        lots = Lots(self._pipeline)
        return {name: lots.rows(name) for name in (*self._pipeline.names, *self._pipeline.quarantines)}


@contextmanager
def _armed(points: Iterable[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for name in points:
            stack.enter_context(crash.armed(name))
        yield


def _compare(
    expected: dict[str, list[tuple[Any, ...]]], tables: dict[str, list[tuple[Any, ...]]], died: list[str]
) -> None:
    for name, rows in expected.items():
        if tables[name] == rows:
            continue
        missing = [row for row in rows if row not in tables[name]]
        extra = [row for row in tables[name] if row not in rows]
        raise AssertionError(
            f"after crashes at {', '.join(died) or 'no point'}, the table {name} has {len(tables[name])} rows"
            f" instead of {len(rows)}; missing: {missing[:3]}; not expected: {extra[:3]}"
        )
