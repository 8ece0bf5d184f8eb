"""Print the output of a command: as text for people, or as one JSON object.

The library rich prints the text. It omits colours in files and pipes, and if NO_COLOR is set. With `--json`,
standard output has only the JSON object, and all other output goes to standard error.
"""

import sys
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
import msgspec
from rich.console import Console
from rich.text import Text

P = ParamSpec("P")
R = TypeVar("R")

USAGE = 2
INTERRUPTED = 130  # the convention of shells: 128 plus the number of SIGINT


class CommandOutput:
    """The output of one run of the command line."""

    def __init__(self) -> None:
        self.json = False
        self.stderr = Console(stderr=True, highlight=False, soft_wrap=True)
        self._stdout = Console(highlight=False, soft_wrap=True)

    @property
    def people(self) -> Console:
        """The console for text: standard error with `--json`, otherwise standard output."""
        return self.stderr if self.json else self._stdout

    def result(self, value: Any) -> None:
        """With `--json`, print the result as one line; otherwise do nothing."""
        if self.json:
            sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
            sys.stdout.flush()

    def error(self, code: str, message: str, hint: str) -> None:
        """Print an error and its hint."""
        if self.json:
            self.result({"error": {"code": code, "message": message, "hint": hint}})
            return
        self.stderr.print(Text.assemble(("error: ", "bold red"), (message, "red")))
        if hint:
            self.stderr.print(Text(f"hint: {hint}", style="dim"))

    def usage(self, error: click.UsageError) -> None:
        """Print an error about the arguments, and how to use the command."""
        if self.json:
            hint = f"see {error.ctx.command_path} --help" if error.ctx is not None else ""
            self.result({"error": {"code": "usage", "message": error.format_message(), "hint": hint}})
            return
        if error.ctx is not None:
            self.stderr.print(Text(error.ctx.get_usage()))
        self.stderr.print(Text.assemble(("error: ", "bold red"), (error.format_message(), "red")))
        if error.ctx is not None:
            self.stderr.print(Text(f"hint: see {error.ctx.command_path} --help", style="dim"))

    def interrupted(self) -> None:
        if self.json:
            self.result({"error": {"code": "interrupted", "message": "interrupted", "hint": ""}})
        else:
            self.stderr.print(Text("interrupted", style="dim"))


def json_option(command: Callable[Concatenate[CommandOutput, P], R]) -> Callable[P, R]:
    """Add `--json` to a command. The command receives a `CommandOutput` as its first argument."""
    return _add_json(command, "Print the result as one JSON object on the last line.")


def json_events_option(command: Callable[Concatenate[CommandOutput, P], R]) -> Callable[P, R]:
    """Add `--json` to a command that prints events instead of one result."""
    return _add_json(
        command, "Print each event as one line of JSON. With --spark, print only the final report, as JSON."
    )


def _add_json(command: Callable[Concatenate[CommandOutput, P], R], help_text: str) -> Callable[P, R]:
    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.ensure_object(CommandOutput).json = value

    option = click.option(
        "--json",
        is_flag=True,
        is_eager=True,  # parsed first, so that usage errors are JSON too
        expose_value=False,
        callback=remember,
        help=help_text,
    )
    return option(click.make_pass_decorator(CommandOutput, ensure=True)(command))
