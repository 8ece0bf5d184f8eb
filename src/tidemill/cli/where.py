"""`--home` or `--store`, and `--cluster`: which cluster a command is about."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tidemill.futures.home import CLUSTER, STORE, Place
from tidemill.store import Store, open_store

F = TypeVar("F", bound=Callable[..., Any])


class ClusterLocation:
    """A cluster that is there already: looking at it neither makes it nor needs its key."""

    def __init__(self, home: str | None, store: str | None, cluster: str) -> None:
        if (home is None) == (store is None):
            raise click.UsageError("give --home FOLDER or --store URL")
        if home is not None and not (Path(home).expanduser() / STORE).exists():
            raise click.UsageError(f"there is no home at {home}")
        self._url = store if store is not None else Place.of_home(home or "").store
        self.cluster = cluster

    def open(self) -> Store:
        """The cluster's store."""
        return open_store(self._url)


def where_options(command: F) -> F:
    """The options that say where; the command is given `home`, `store` and `cluster`."""
    for option in (
        click.option(
            "--cluster", default=CLUSTER, show_default=True, metavar="NAME", help="The cluster's name."
        ),
        click.option("--store", metavar="URL", help="The store's URL, instead of a home."),
        click.option("--home", type=click.Path(), metavar="FOLDER", help="The home of the cluster."),
    ):
        command = option(command)
    return command
