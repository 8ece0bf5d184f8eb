"""Define `tidemill store copy`: copy a store, also to another database."""

import click
from rich.text import Text

from tidemill.cli.output import CommandOutput, json_option
from tidemill.store import open_store
from tidemill.store.copy import copy_store

SAY_EVERY = 100_000


@click.group("store")
@json_option
def store_command(_: CommandOutput) -> None:
    """Work with the store of a cluster."""


@store_command.command("copy")
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@json_option
def copy_command(output: CommandOutput, source: str, target: str) -> None:
    """Copy all rows of the store SOURCE into the empty store TARGET.

    Both are URLs or paths, such as shop-home/store.db and postgresql://user@host/db. SOURCE is read as of one
    moment. To move a cluster, stop its processes first, copy the store, and start them with the new URL and
    the same objects. After an interruption, run the same command again.
    """
    shown_rows = 0

    def progress(rows: int) -> None:
        nonlocal shown_rows
        if rows - shown_rows >= SAY_EVERY:
            shown_rows = rows
            output.people.print(Text(f"{rows:,} rows copied"))

    with open_store(source) as stored, open_store(target) as copied:
        rows = copy_store(stored, copied, progress)
        output.result({"source": stored.url, "target": copied.url, "rows": rows})
        output.people.print(Text(f"copied {rows:,} rows from {stored.url} to {copied.url}"))
