"""The option `-f`: which pipeline a command works on. The default is in the configuration file."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def pipeline_option(command: F) -> F:
    """Add the option `-f` to a command, which receives it as `file`."""
    return click.option(
        "-f",
        "--file",
        metavar="FILE[:NAME]",
        help="The pipeline, like shop.py:shop. Default: the one in tidemill.toml.",
    )(command)
