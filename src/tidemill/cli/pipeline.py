"""Find the pipeline that a command works on: `-f`, or the configuration file."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidemill.pipeline import pipeline_file

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

F = TypeVar("F", bound=Callable[..., Any])


def pipeline_option(command: F) -> F:
    """Add the option `-f` to a command, which receives it as `file`."""
    return click.option(
        "-f",
        "--file",
        metavar="FILE[:NAME]",
        help="The pipeline, like shop.py:shop. Default: the one in tidemill.toml.",
    )(command)


def find(file: str | None) -> "Pipeline":
    """Import and return the pipeline."""
    return pipeline_file.find(file)


def locate(file: str | None) -> tuple[str, Path]:
    """Return the pipeline's target, and the folder that it is relative to, without importing it."""
    return pipeline_file.locate(file)
