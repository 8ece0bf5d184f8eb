"""Define `tidemill init`: create the folder of a new pipeline, with sample data and a test."""

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click
from rich.text import Text

from tidemill.cli.output import CommandOutput, json_option
from tidemill.errors import UsageError

STARTER = files("tidemill.cli") / "starter"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
PLACEHOLDER = "starter"
"""The name of the pipeline in the files of the starter."""


@click.command("init")
@click.argument("name")
@json_option
def init_command(output: CommandOutput, name: str) -> None:
    """Create the folder NAME with a pipeline that runs: sample data, an arc, views and a test."""
    folder = Path(name)
    if not NAME.fullmatch(folder.name):
        raise click.UsageError(
            f"{folder.name!r} is not a valid name: start with a letter, then use letters, digits, - and _"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} already exists", hint="choose another name, or remove it")
    written = _write(STARTER, folder, folder.name)
    output.result({"folder": str(folder.resolve()), "files": [str(file) for file in written]})
    for file in written:
        output.people.print(Text(str(folder / file), style="dim"))
    output.people.print(Text.assemble("created ", (str(folder), "bold"), "; now run:"))
    output.people.print(f"  cd {folder} && tidemill run")


def _write(source: Traversable, folder: Path, name: str, below: Path = Path()) -> list[Path]:
    """Copy the files of the starter; return their paths in the new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for entry in sorted(source.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                written += _write(entry, folder / entry.name, name, below / entry.name)
            continue
        target = "." + entry.name.removeprefix("dot-") if entry.name.startswith("dot-") else entry.name
        text = entry.read_text(encoding="utf-8").replace(PLACEHOLDER, name)
        (folder / target).write_text(text, encoding="utf-8")
        written.append(below / target)
    return written
