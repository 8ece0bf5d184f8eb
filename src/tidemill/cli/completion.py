"""Define `tidemill completion`: print a script that lets a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from tidemill.cli.output import CommandOutput, json_option

VARIABLE = "_TIDEMILL_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion_command(ctx: click.Context, output: CommandOutput, shell: str) -> None:
    """Print a script that completes commands and options in your shell.

    For bash, add this line to ~/.bashrc: source <(tidemill completion bash)
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click.Choice allows only shells that click supports
    script = kind(ctx.find_root().command, {}, "tidemill", VARIABLE).source()
    output.result({"shell": shell, "script": script})
    if not output.json:
        click.echo(script)
