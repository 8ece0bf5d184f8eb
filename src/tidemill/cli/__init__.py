"""The command line: parse arguments, call the library, print the result.

A command's module is imported only when the command is used, so `tidemill --help` is fast. A command returns
its exit code, or None for 0. Commands raise errors; only `main` prints an error and chooses the exit code for
it (docs/reference/exit-codes.md). Every command accepts `--json` (`json_option`). It then prints one JSON
object as the last line of standard output.
"""

import importlib
import os
import platform
from collections.abc import Sequence
from difflib import get_close_matches

import click
from rich.text import Text

from tidemill import __version__
from tidemill.cli.output import INTERRUPTED, USAGE, CommandOutput
from tidemill.errors import UNEXPECTED, TidemillError, describe_unexpected, is_debugging

COMMANDS = {
    "demo": "tidemill.cli.demo.command:demo",
    "init": "tidemill.cli.init:init_command",
    "plan": "tidemill.cli.plan:plan_command",
    "run": "tidemill.cli.run:run_command",
    "status": "tidemill.cli.status:status_command",
    "ls": "tidemill.cli.status:ls_command",
    "query": "tidemill.cli.query:query_command",
    "changes": "tidemill.cli.changes:changes_command",
    "explain": "tidemill.cli.explain:explain_command",
    "lots": "tidemill.cli.lots:lots_command",
    "gaps": "tidemill.cli.gaps:gaps_command",
    "quarantine": "tidemill.cli.quarantine:quarantine_command",
    "replace": "tidemill.cli.corrections:replace_command",
    "remove": "tidemill.cli.corrections:remove_command",
    "compact": "tidemill.cli.compact:compact_command",
    "drop": "tidemill.cli.drop:drop_command",
    "vacuum": "tidemill.cli.vacuum:vacuum_command",
    "retry": "tidemill.cli.lot_requests:retry_command",
    "backfill": "tidemill.cli.lot_requests:backfill_command",
    "replay": "tidemill.cli.lot_requests:replay_command",
    "pause": "tidemill.cli.pauses:pause_command",
    "resume": "tidemill.cli.pauses:resume_command",
    "clock": "tidemill.cli.clock:clock_command",
    "nodes": "tidemill.cli.nodes:nodes_command",
    "futures": "tidemill.cli.futures:futures_command",
    "events": "tidemill.cli.events:events_command",
    "alerts": "tidemill.cli.alerts:alerts_command",
    "triggers": "tidemill.cli.triggers:triggers_command",
    "worker": "tidemill.cli.worker:worker",
    "doctor": "tidemill.cli.doctor:doctor_command",
    "scale": "tidemill.cli.scale:scale_command",
    "upgrade": "tidemill.cli.upgrade:upgrade_command",
    "pack": "tidemill.cli.pack:pack_command",
    "backup": "tidemill.cli.backup:backup_command",
    "restore": "tidemill.cli.backup:restore_command",
    "store": "tidemill.cli.store:store_command",
    "key": "tidemill.cli.key:key_command",
    "config": "tidemill.cli.config:config_command",
    "bundle": "tidemill.cli.bundle:bundle_command",
    "ui": "tidemill.cli.ui:ui_command",
    "completion": "tidemill.cli.completion:completion_command",
}
"""The module and function of every command, in the order of the help text."""

UNEXPECTED_HINT = "this is a bug in Tidemill: please report it; TIDEMILL_DEBUG=1 shows the stack trace"


class Commands(click.Group):
    """Load the commands of `COMMANDS` when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and (near := get_close_matches(name, COMMANDS, n=1)):
            raise click.UsageError(f"there is no command {name!r}; did you mean {near[0]}?", ctx)
        return super().resolve_command(ctx, args)


def _use_profile(_ctx: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    """Choose a profile for this process and its children: runners import the pipeline in a child process."""
    if name:
        os.environ["TIDEMILL_PROFILE"] = name


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted.",
)
@click.version_option(
    __version__, "-V", "--version", message=f"tidemill %(version)s (Python {platform.python_version()})"
)
@click.option(
    "--profile",
    metavar="NAME",
    expose_value=False,
    callback=_use_profile,
    help="Use the settings of this profile in tidemill.toml. Default: TIDEMILL_PROFILE.",
)
def tidemill() -> None:
    """Tidemill keeps tables up to date on Apache Spark by processing only what changed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    output = CommandOutput()
    try:
        code = tidemill.main(arguments, prog_name="tidemill", standalone_mode=False, obj=output)
    except click.exceptions.NoArgsIsHelpError as error:
        output.stderr.print(Text(error.format_message()))
        return USAGE
    except click.UsageError as error:
        output.usage(error)
        return USAGE
    except click.ClickException as error:
        output.error("file" if isinstance(error, click.FileError) else "cli", error.format_message(), "")
        return 1
    except TidemillError as error:
        output.error(error.code, error.message, error.hint)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        output.interrupted()
        return INTERRUPTED
    except Exception as error:
        if is_debugging():
            raise
        output.error("unexpected", describe_unexpected(error), UNEXPECTED_HINT)
        return UNEXPECTED
    return code if isinstance(code, int) else 0
