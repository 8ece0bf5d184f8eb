"""Define `tidemill ui`: serve the page of a cluster."""

from collections.abc import Callable

import click
from rich.text import Text

from tidemill.cli.options import F, cluster_location, location_options, objects_option, pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.clock import SYSTEM
from tidemill.objects import open_objects
from tidemill.pipeline.pipeline_file import configured, find
from tidemill.ui.server import HOST, PORT, PageOptions, make_server, require_packages


def page_options(prefix: str = "") -> Callable[[F], F]:
    """Add the options of the page to a command, with a prefix like `ui-`."""

    def add(command: F) -> F:
        for option in (
            click.option(
                f"--{prefix}tls-key",
                "tls_key",
                default="",
                metavar="FILE",
                help="The certificate's key (PEM).",
            ),
            click.option(
                f"--{prefix}tls-cert",
                "tls_cert",
                default="",
                metavar="FILE",
                help="Use TLS: a certificate (PEM).",
            ),
            click.option(
                f"--{prefix}token-file",
                "token_file",
                default="",
                metavar="FILE",
                help="A file with a token of at least 16 characters. With it, users can retry, pause and"
                " replay. Without a token, the page is read-only.",
            ),
            click.option(
                f"--{prefix}port",
                "port",
                default=PORT,
                show_default=True,
                type=click.IntRange(0, 65_535),
                help="The port of the page; 0 for any free port.",
            ),
            click.option(
                f"--{prefix}host", "host", default=HOST, show_default=True, help="The address of the page."
            ),
        ):
            command = option(command)
        return command

    return add


@click.command("ui")
@pipeline_option
@location_options
@objects_option
@page_options()
@click.option("--no-rows", is_flag=True, help="Do not show rows of tables.")
@json_option
def ui_command(
    output: CommandOutput,
    file: str | None,
    home: str | None,
    store: str | None,
    cluster: str,
    objects: str | None,
    host: str,
    port: int,
    token_file: str,
    tls_cert: str,
    tls_key: str,
    no_rows: bool,
) -> None:
    """Serve a web page that shows tables, lots, runs, views, nodes and futures.

    The page reads the store of the cluster: select it with --home or --store, or use the pipeline's cluster
    (-f or tidemill.toml). Actions import the pipeline's file, so they need -f or tidemill.toml. Stop the
    server with Ctrl-C.
    """
    require_packages()
    options = PageOptions(host=host, port=port, token_file=token_file, tls_cert=tls_cert, tls_key=tls_key)
    where = cluster_location(home, store, cluster, file, objects or "")
    has_pipeline = home is None and store is None and (file is not None or configured() is not None)
    with where.open() as opened:
        load = (lambda: find(file)) if has_pipeline else None
        rows = where.objects and not no_rows
        open_ = (lambda: open_objects(where.objects, clock=SYSTEM, probe=False)) if rows else None
        server = make_server(opened, where.cluster, options, load=load, open_objects=open_)
        output.result({"url": server.url, "actions": bool(token_file)})
        if not output.json:
            mode = "with actions, for users who have the token" if token_file else "read-only"
            output.people.print(Text.assemble("the page is at ", (server.url, "bold"), f" ({mode})"))
        server.run()
