"""Define `tidemill pack`: write the archive with which Spark executors can import Tidemill."""

from pathlib import Path

import click
from rich.text import Text

from tidemill.cli.output import CommandOutput, json_option
from tidemill.spark.executor_code import FOLDER, pack


@click.command("pack")
@click.argument("path", default="tidemill.zip", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def pack_command(output: CommandOutput, path: Path) -> None:
    """Write an archive with Tidemill's code to PATH, for Spark executors without Tidemill.

    A runner sends this archive itself if executors cannot import its release. Use this command for clusters
    that do not allow it. The executors need pyarrow, numpy and pandas, and the same version of Python.
    """
    packed = pack(path)
    output.result(packed)
    others = ", ".join(f"{name} {release}" for name, release in packed.packages.items())
    output.people.print(
        Text(
            f"wrote {packed.path}: Tidemill {packed.release} for Python {packed.python}, with {others}"
            f" ({packed.size:,} bytes)"
        )
    )
    output.people.print(Text(f"use it with spark.archives={packed.path}#{FOLDER}"))
