"""How a command speaks: to people on a terminal, or to a program as one JSON object.

Text meant for people goes through rich, which leaves out colours where they make no sense (a file, a pipe,
NO_COLOR). With `--json` standard output has the JSON object alone, and whatever is said meanwhile goes to
standard error.
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
INTERRUPTED = 130  # as shells say: 128 and the number of SIGINT


class CommandOutput:
    """Where one run of the command line writes."""

    def __init__(self) -> None:
        self.json = False
        self.stderr = Console(stderr=True, highlight=False, soft_wrap=True)
        self._stdout = Console(highlight=False, soft_wrap=True)

    @property
    def people(self) -> Console:
        """Where to talk to whoever is watching."""
        return self.stderr if self.json else self._stdout

    def result(self, value: Any) -> None:
        """The result for programs: one line; nothing unless it was asked for."""
        if self.json:
            sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
            sys.stdout.flush()

    def error(self, code: str, message: str, hint: str) -> None:
        """What went wrong, and what to do about it."""
        if self.json:
            self.result({"error": {"code": code, "message": message, "hint": hint}})
            return
        self.stderr.print(Text.assemble(("error: ", "bold red"), (message, "red")))
        if hint:
            self.stderr.print(Text(f"hint: {hint}", style="dim"))

    def usage(self, error: click.UsageError) -> None:
        """The command was written wrongly: say how it is written."""
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
    """`--json` for a command, whose first argument becomes the `CommandOutput`."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.ensure_object(CommandOutput).json = value

    option = click.option(
        "--json",
        is_flag=True,
        is_eager=True,  # known before anything else is found to be wrong
        expose_value=False,
        callback=remember,
        help="Print the result as one JSON object on the last line.",
    )
    return option(click.make_pass_decorator(CommandOutput, ensure=True)(command))
