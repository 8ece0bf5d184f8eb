"""Define `tidemill backup` and `tidemill restore`: copy a home or a cluster, also while it runs."""

from pathlib import Path

import click
from rich.text import Text

from tidemill.cli.options import cluster_address, location_options, objects_option, pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.futures.home import ClusterAddress
from tidemill.pipeline import backups
from tidemill.pipeline.backups import Backup

FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("backup")
@click.argument("folder", type=FOLDER)
@pipeline_option
@location_options
@objects_option
@json_option
def backup_command(
    output: CommandOutput,
    folder: Path,
    file: str | None,
    home: str | None,
    store: str | None,
    cluster: str,
    objects: str | None,
) -> None:
    """Write a consistent backup of a home or a cluster into the new folder FOLDER.

    Runners, workers and appends may continue. The backup has the layout of a home: the store, the
    objects, and the key if the cluster has a home. After an interruption, run the same command again; it
    copies only what is missing.
    """
    place = cluster_address(home, store, objects, cluster, file)
    report = backups.back_up(place, folder, say=lambda text: output.people.print(Text(text)))
    output.result(report)
    output.people.print(_described("backed up", report, str(folder)))


@click.command("restore")
@click.argument("folder", type=FOLDER)
@location_options
@objects_option
@json_option
def restore_command(
    output: CommandOutput,
    folder: Path,
    home: str | None,
    store: str | None,
    cluster: str,
    objects: str | None,
) -> None:
    """Restore the backup in FOLDER to a new home, or to an empty store and empty object storage.

    Stop the processes of the old cluster first. Restored runs and leases end as if their nodes had died, and
    the next runner continues. After an interruption, run the same command again.
    """
    if (home is None) == (store is None):
        raise click.UsageError("pass either --home FOLDER or --store URL with --objects URL")
    place = ClusterAddress.of(home=home, store=store, objects=objects, cluster=cluster)
    report = backups.restore(folder, place, say=lambda text: output.people.print(Text(text)))
    output.result(report)
    output.people.print(_described("restored", report, place.home or place.identity[0]))


def _described(verb: str, report: Backup, target: str) -> Text:
    return Text(
        f"{verb} {report.rows:,} rows of the store and {report.objects:,} objects"
        f" ({report.size:,} bytes) to {target}"
    )
