"""The sides of this bench, each started and ready to work."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.report import Report
from bench.side import Side

WORKERS = 2


@contextmanager
def ours(report: Report, home: Path, *, workers: int = WORKERS) -> Iterator[Side]:
    """Start a client with one supervisor and two child processes, on a separate home."""
    with Side("bench.ours.futures_client") as side:
        flags = side.ask("open", home=str(home), workers=workers)
        report.flags.setdefault("ours", flags)
        report.versions["ours"] = side.versions
        yield side
        side.ask("close")


@contextmanager
def ray(report: Report, python: Path | None) -> Iterator[Side | None]:
    """Start Ray with two CPUs; return None if it is not installed."""
    if python is None:
        yield None
        return
    with Side("bench.peers.ray_tasks", python=python) as side:
        report.flags["ray"] = side.ask("open", workers=WORKERS)
        report.versions["ray"] = side.versions
        yield side


@contextmanager
def dbos(report: Report, python: Path, file: Path, settings: str) -> Iterator[Side]:
    """Start DBOS on a separate SQLite file."""
    with Side("bench.peers.dbos_queue", python=python) as side:
        flags = side.ask("open", path=str(file), settings=settings, workers=WORKERS)
        report.flags["dbos"] = {"settings": settings, **flags}
        report.versions["dbos"] = side.versions
        yield side
        side.ask("close")
