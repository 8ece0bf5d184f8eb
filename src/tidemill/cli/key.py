"""Define `tidemill key`: create the key of a cluster."""

from pathlib import Path

import click
from rich.text import Text

from tidemill.cli.output import CommandOutput, json_option
from tidemill.errors import UsageError


@click.command("key")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def key_command(output: CommandOutput, path: Path) -> None:
    """Create a cluster key in the new file PATH, which only you can read.

    A cluster whose store is a server, such as PostgreSQL, needs one. Copy the file to every machine that runs
    or uses the cluster, and set TIDEMILL_CLUSTER_KEY_FILE to its path. The key lets its owner run code on
    every worker.
    """
    from tidemill.futures.values.signatures import create_key

    try:
        created = create_key(path)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    if not created:
        raise UsageError(f"{path} already exists", hint="choose another name; a key is never overwritten")
    output.result({"path": str(path.resolve())})
    output.people.print(Text(f"wrote a new cluster key to {path}"))
