"""`-f`: which pipeline a command is about."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidemill.pipeline import pipeline_file as loading

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

F = TypeVar("F", bound=Callable[..., Any])


def pipeline_option(command: F) -> F:
    """The option that says which pipeline; the command is given `file`."""
    return click.option(
        "-f",
        "--file",
        metavar="FILE[:NAME]",
        help="The pipeline, e.g. shop.py:shop; else tidemill.toml says.",
    )(command)


def find(file: str | None) -> "Pipeline":
    """The pipeline that is meant, imported."""
    return loading.find(file)


def located(file: str | None) -> tuple[str, Path]:
    """The pipeline that is meant, not imported: its name, and the folder that is relative to."""
    return loading.locate(file)
