"""Options that commands share: the pipeline (`-f`), and the cluster (`--home`, `--store`, `--cluster`)."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tidemill.cluster.leases import TTL_S
from tidemill.futures.home import CLUSTER, STORE, ClusterAddress
from tidemill.paths import expanded
from tidemill.store import Store, open_store

F = TypeVar("F", bound=Callable[..., Any])
SHORTEST_TTL_S = 3.0
NO_CLUSTER = "there is no tidemill.toml here: pass --home FOLDER, --store URL or -f FILE"


def pipeline_option(command: F) -> F:
    """Add the option `-f` to a command. The command receives it as the argument `file`."""
    return click.option(
        "-f",
        "--file",
        metavar="FILE[:NAME]",
        help="The pipeline's file and variable, e.g. shop.py:shop. Default: as set in tidemill.toml.",
    )(command)


def select_options(command: F) -> F:
    """Add --select and --exclude to a command. The command receives `select` and `exclude`, as tuples."""
    exclude = click.option("--exclude", multiple=True, metavar="SELECTOR", help="Leave out these nodes.")
    text = (
        "Only these nodes, with the selectors of dbt: NAME, +NAME, NAME+1, @NAME, 'order*', source:NAME,"
        " arc:NAME, view:NAME or group:NAME. Repeat the option to add more."
    )
    return click.option("--select", multiple=True, metavar="SELECTOR", help=text)(exclude(command))


def ttl_option(process: str) -> Callable[[F], F]:
    """Return the option `--ttl` of a process that joins a cluster. The command receives `ttl_s`."""
    return click.option(
        "--ttl",
        "ttl_s",
        type=click.FloatRange(SHORTEST_TTL_S),
        default=TTL_S,
        show_default=True,
        help=f"If the {process} does not renew its lease for this many seconds, it is considered dead.",
    )


class ClusterLocation:
    """The location of an existing cluster. `open` never creates a cluster, and needs no cluster key.

    `objects` is the URL of its object storage; empty if it is not known.
    """

    def __init__(self, home: str | None, store: str | None, cluster: str, objects: str = "") -> None:
        if (home is None) == (store is None):
            raise click.UsageError("pass either --home FOLDER or --store URL")
        if home is not None and not (expanded(home) / STORE).exists():
            raise click.UsageError(f"{home} is not the home of a cluster; check the path")
        self._url = store if store is not None else ClusterAddress.of_home(home or "").store
        self.objects = objects if home is None else ClusterAddress.of_home(home).objects
        self.cluster = cluster

    def open(self) -> Store:
        """Open the cluster's store."""
        return open_store(self._url)


def cluster_location(
    home: str | None, store: str | None, cluster: str, file: str | None = None, objects: str = ""
) -> ClusterLocation:
    """Return the cluster that --home or --store selects; without these options, the pipeline's cluster.

    - file: the pipeline (`-f`); None to use the pipeline in tidemill.toml.
    - objects: the object storage of --store, for commands that read it.
    """
    if home is not None or store is not None:
        return ClusterLocation(home, store, cluster, objects)
    from tidemill.pipeline.child_process import read_info
    from tidemill.pipeline.pipeline_file import configured, locate

    if file is None and configured() is None:
        raise click.UsageError(NO_CLUSTER)
    info = read_info(*locate(file))
    return ClusterLocation(info.home or None, None if info.home else info.store, info.cluster, info.objects)


def cluster_address(
    home: str | None, store: str | None, objects: str | None, cluster: str, file: str | None = None
) -> ClusterAddress:
    """Return the address of an existing cluster with its objects; without options, the pipeline's cluster.

    - file: the pipeline (`-f`); None to use the pipeline in tidemill.toml.
    """
    if home is None and store is None:
        from tidemill.pipeline.child_process import read_info
        from tidemill.pipeline.pipeline_file import configured, locate

        if file is None and configured() is None:
            raise click.UsageError(NO_CLUSTER)
        info = read_info(*locate(file))
        if info.home:
            return ClusterAddress.of_home(info.home, info.cluster)
        return ClusterAddress(store=info.store, objects=info.objects, cluster=info.cluster)
    ClusterLocation(home, store, cluster)
    if home is not None:
        return ClusterAddress.of_home(home, cluster)
    if not objects:
        raise click.UsageError("pass --objects URL together with --store URL")
    return ClusterAddress(store=store or "", objects=objects, cluster=cluster)


def objects_option(command: F) -> F:
    """Add the option `--objects` to a command, for a cluster without a home."""
    return click.option("--objects", metavar="URL", help="The object storage of the cluster, with --store.")(
        command
    )


def location_options(command: F) -> F:
    """Add the options of a cluster to a command. The command receives `home`, `store` and `cluster`."""
    for option in (
        click.option(
            "--cluster", default=CLUSTER, show_default=True, metavar="NAME", help="The name of the cluster."
        ),
        click.option("--store", metavar="URL", help="The URL of the cluster's store, instead of --home."),
        click.option("--home", type=click.Path(), metavar="FOLDER", help="The home folder of the cluster."),
    ):
        command = option(command)
    return command
