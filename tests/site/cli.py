"""The reference of the command line, from click."""

import inspect

import click

from tests.site.markdown import table
from tidemill.cli import COMMANDS, tidemill

OPENING = """# Command line

Every command takes `-f FILE[:NAME]` to choose the pipeline (otherwise `tidemill.toml` names it), `--json` to
print one JSON object, and `--help`. [Exit codes](exit-codes.md) are the same for all commands.
`tidemill --profile NAME …` uses a profile ([how](../howto/project.md)), and `tidemill completion` prints a
script that completes commands in your shell.
"""

SHARED = {"file", "json", "help"}


def page() -> str:
    """Return the page."""
    parts = [OPENING]
    root = click.Context(tidemill, info_name="tidemill")
    for name in COMMANDS:
        command = tidemill.get_command(root, name)  # type: ignore[attr-defined]
        parts += _command(command, click.Context(command, info_name=name, parent=root), 2)
    return "\n".join(parts)


def _command(command: click.Command, context: click.Context, level: int) -> list[str]:
    pieces = " ".join(command.collect_usage_pieces(context))
    lines = [
        f"{'#' * level} {context.command_path}\n",
        f"```\n{context.command_path} {pieces}\n```\n",
        inspect.cleandoc(command.help or ""),
        "",
    ]
    rows = []
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is not None and option.name not in SHARED and "--help" not in record[0]:
            rows.append((f"`{record[0]}`", record[1]))
    if rows:
        lines += [table(("option", "meaning"), rows), ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                lines += _command(child, click.Context(child, info_name=name, parent=context), level + 1)
    return lines
