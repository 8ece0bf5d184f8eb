"""Runs the cases of a target in forked processes, and collects what fails."""

import contextlib
import faulthandler
import itertools
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.fuzz.shrinking import shrink
from tidemill.clock import SYSTEM
from tidemill.errors import TidemillError

BATCH = 50
BATCH_S = 10.0
"""A process runs as many cases as take about this long, so that a time limit is kept if cases are slow."""

TRIES = 300
MEMORY_BYTES = 4 << 30
"""How much address space a case may use: a case that asks for more raises MemoryError, and fails."""

_SOURCES = str(Path(__file__).parents[2] / "src")


@dataclass(frozen=True)
class Target:
    """An input of Tidemill.

    Args:
        name: its name on the command line.
        generate: makes a case: plain data, so that it can be printed and reduced.
        check: passes the case to Tidemill; raises if the outcome is not one that the docs allow.
        stuck_s: a case that runs longer than this counts as hung.
        forks: whether to run cases in forked processes, with a limit of memory.
    """

    name: str
    generate: Callable[[random.Random], Any]
    check: Callable[[Any], None]
    stuck_s: float = 120.0
    forks: bool = True

    def case(self, seed: int) -> Any:
        return self.generate(random.Random(f"{self.name} {seed}"))


def check_refusal(error: TidemillError) -> None:
    """Check that a refusal helps the user: it has a hint, and can be printed."""
    assert error.hint, f"{error} has no hint"
    str(error).encode()


class Outcome(NamedTuple):
    """How a case failed. Equal kinds are the same fault."""

    kind: str
    details: str


@dataclass(frozen=True)
class Failure:
    """A case that failed."""

    target: Target
    seed: int
    outcome: Outcome

    def describe(self, smaller: Any) -> str:
        return (
            f"{self.target.name}, seed {self.seed}: {self.outcome.kind}\n{self.outcome.details}\n"
            f"case: {smaller!r:.3000}\n"
            f"repeat it: python -m tests.fuzz {self.target.name} --seed {self.seed} --count 1"
        )


def failures(target: Target, seeds: Iterator[int]) -> Iterator[Failure]:
    """Run the cases of these seeds, and yield those that fail."""
    if target.forks:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    size = 1
    while batch := list(itertools.islice(seeds, size)):
        count, began = len(batch), SYSTEM.monotonic()
        while batch:
            done = 0
            for seed, outcome in _guarded(target, [(seed, None) for seed in batch]):
                done = batch.index(seed) + 1
                if outcome is not None:
                    yield Failure(target, seed, outcome)
            batch = batch[done:] if done else []
        case_s = (SYSTEM.monotonic() - began) / count
        size = max(1, min(BATCH, 2 * size, int(BATCH_S / max(case_s, 1e-3))))


def reduced(failure: Failure, tries: int | None = None) -> Any:
    """Return a smaller case that fails in the same way, after at most `tries` attempts.

    A case that hangs is returned as it is, because each attempt would wait for the time limit.
    """
    if failure.outcome.kind.startswith("hang"):
        return failure.target.case(failure.seed)
    tries = tries or (TRIES if failure.target.forks else TRIES // 30)

    def fails(case: Any) -> bool:
        ((_, outcome),) = list(_guarded(failure.target, [(failure.seed, case)]))
        return outcome is not None and outcome.kind[:60] == failure.outcome.kind[:60]

    return shrink(failure.target.case(failure.seed), fails, tries)


def _guarded(target: Target, cases: list[tuple[int, Any]]) -> Iterator[tuple[int, Outcome | None]]:
    """Run cases in a forked process; yield the outcome of each. If the process dies, it leaves the rest."""
    if not target.forks:
        for seed, given in cases:
            yield seed, _outcome(target, target.case(seed) if given is None else given)
        return
    with tempfile.TemporaryDirectory(prefix="tidemill-fuzz-") as folder:
        errors = Path(folder) / "stderr"
        reader, writer = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run_cases(target, cases, writer, errors)  # never returns
        os.close(writer)
        current, ended = cases[0][0], False
        with os.fdopen(reader, "rb") as reports:
            for line in reports:
                report = json.loads(line)
                if "starts" in report:
                    current, ended = report["starts"], False
                else:
                    ended = True
                    yield current, Outcome(**report["failed"]) if report["failed"] else None
        _, status = os.waitpid(child, 0)
        if not ended or status:
            text = errors.read_text(errors="replace") if errors.exists() else ""
            yield current, _death(status, text)


def _run_cases(target: Target, cases: list[tuple[int, Any]], writer: int, errors: Path) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(descriptor, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = str(errors.parent)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.enable(2)
        for seed, given in cases:
            os.write(writer, json.dumps({"starts": seed}).encode() + b"\n")
            case = target.case(seed) if given is None else given
            faulthandler.dump_traceback_later(target.stuck_s, exit=True, file=2)
            outcome = _outcome(target, case)
            faulthandler.cancel_dump_traceback_later()
            report = {"failed": outcome._asdict() if outcome else None}
            os.write(writer, json.dumps(report).encode() + b"\n")
        code = 0
    except BaseException:  # noqa: BLE001 - the parent reports it
        traceback.print_exc(file=open(2, "w", closefd=False))  # noqa: SIM115
    finally:
        os._exit(code)


def _outcome(target: Target, case: Any) -> Outcome | None:
    try:
        target.check(case)
    except BaseException as error:  # noqa: BLE001 - every error is a finding
        place = _place(error)
        if isinstance(error, AssertionError):
            place += f": {str(error).splitlines()[0]:.80}" if str(error) else ""
        text = "".join(traceback.format_exception(error)[-12:])
        return Outcome(
            f"{type(error).__name__} at {place}".encode(errors="replace").decode(),
            text[-4000:].encode(errors="replace").decode(),
        )
    return None


def _place(error: BaseException) -> str:
    """Return the innermost line of Tidemill that the error passed, or of the target."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(_SOURCES)] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"


def _death(status: int, text: str) -> Outcome:
    tail = text[-4000:]
    if "Timeout (" in text:
        return Outcome(f"hang at {_last_frame(text)}", tail)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Outcome(f"{name} at {_last_frame(text)}", tail)
    return Outcome(f"exit code {os.waitstatus_to_exitcode(status)}", tail)


def _last_frame(text: str) -> str:
    """Return the innermost line of Tidemill in a dump of faulthandler."""
    for line in text.splitlines():
        with contextlib.suppress(IndexError, ValueError):
            if _SOURCES in line and "File " in line:
                file, _, place = line.partition('", line ')
                return f"{Path(file).name}:{place.split(' ')[0]}"
    return "an unknown line"
