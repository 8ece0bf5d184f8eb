"""Run the task of a window: read its files on Spark and write their rows."""

from typing import TYPE_CHECKING

from tidemill.errors import BadSource, SourceFileChanged
from tidemill.publish.parts import PartClaim, PartTask, SinkWritten
from tidemill.sources.file_source import FileSourceSpec
from tidemill.sources.listing import FileListing
from tidemill.spark.ingest.foreign_files import ForeignFile

if TYPE_CHECKING:
    from tidemill.spark.ingest.ingestion import Session
    from tidemill.spark.storage import Storage


def run_window(
    spark: "Session",
    storage: "Storage",
    spec: FileSourceSpec,
    listing: FileListing,
    task: PartTask,
    place: PartClaim,
) -> tuple[SinkWritten, ...]:
    """Read the files of a task, and write their rows and the bad records into the folders of this claim.

    The task checks the versions of the files before and after it reads them. If a file changed or
    disappeared, the task fails (`SourceFileChanged`). So a published file was read completely.

    Args:
        spark: the session.
        storage: where lots are stored.
        spec: the source, as the pipeline of this process declares it.
        listing: lists the files of the source.
        task: the task of the window.
        place: the claim under which the task runs.
    """
    from tidemill.spark.frame_checks import LotFolders
    from tidemill.spark.ingest.ingestion import IngestColumns, ingest
    from tidemill.spark.ingest.origin_columns import FileOrigin

    if task.code != spec.code:
        raise BadSource(
            f"source {spec.id} is declared differently on this node and on the node that created this task",
            hint="deploy the same pipeline code on every node",
        )
    rows_sink, bad_sink = task.sinks
    files = [ForeignFile(item.uri, listing.uri(item.uri), item.size) for item in task.inputs[0].objects]
    _check_versions(task, listing)
    ingested = ingest(
        spark,
        storage,
        LotFolders(
            rows=place.data_prefix(task, rows_sink),
            bad=place.data_prefix(task, bad_sink),
            partition_by=rows_sink.partition_by,
        ),
        IngestColumns(
            schema=task.options.get("schema", spec.schema),
            kind=spec.kind,
            key=spec.key,
            checks=spec.checks,
            table=spec.dataset.name,
            drift=spec.drift,
            origin=FileOrigin(columns=spec.origin, arrived_us=int(task.options.get("arrived", "0"))),
        ),
        spec.reading,
        files,
        options=listing.read_options(),
        open_file=listing.open,
        careful=place.epoch > 1,
    )
    _check_versions(task, listing)
    return (
        SinkWritten(
            dataset=rows_sink.dataset,
            objects=ingested.rows.objects,
            rows=ingested.rows.rows,
            checks={"files": len(files), "quarantined": ingested.quarantined.rows, **ingested.checks},
            schema=ingested.schema,
        ),
        SinkWritten(
            dataset=bad_sink.dataset, objects=ingested.quarantined.objects, rows=ingested.quarantined.rows
        ),
    )


def _check_versions(task: PartTask, listing: FileListing) -> None:
    objects = task.inputs[0].objects
    for item, now in zip(objects, listing.stat([item.uri for item in objects]), strict=True):
        if now is None or now.version != item.etag:
            raise SourceFileChanged(f"{item.uri} {'disappeared' if now is None else 'changed'}")
