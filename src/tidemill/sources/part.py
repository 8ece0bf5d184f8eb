"""One window, read on Spark: what runs where a task of kind "source" is claimed."""

from typing import TYPE_CHECKING

from tidemill.errors import BadSource, SourceFileChanged
from tidemill.publish.parts import PartPlace, PartTask, SinkWritten
from tidemill.sources.declarations import SourceSpec
from tidemill.sources.listing import Listing
from tidemill.spark.culprits import ForeignFile

if TYPE_CHECKING:
    from tidemill.spark.ingest import Session
    from tidemill.spark.storage import Storage


def run_window(
    spark: "Session",
    storage: "Storage",
    spec: SourceSpec,
    listing: Listing,
    task: PartTask,
    place: PartPlace,
) -> tuple[SinkWritten, ...]:
    """Read the files of a task and write their rows, and what does not fit, into the folders of this claim.

    The files are looked at before and after: one that changed or is gone fails the task
    (`SourceFileChanged`), so that what is published was read whole.

    Args:
        spark: the session.
        storage: where lots are.
        spec: the source, as the pipeline of this process declares it.
        listing: where its files are.
        task: the window.
        place: who runs it.
    """
    from tidemill.spark.ingest import Columns, Place, ingest

    if task.code != spec.code:
        raise BadSource(
            f"{spec.id} was declared differently where this task was made",
            hint="deploy the same code of the pipeline on every node",
        )
    rows_sink, bad_sink = task.sinks
    files = [ForeignFile(item.uri, listing.uri(item.uri), item.size) for item in task.inputs[0].objects]
    _check(task, listing)
    done = ingest(
        spark,
        storage,
        Place(
            rows=place.data_prefix(task, rows_sink),
            bad=place.data_prefix(task, bad_sink),
            partition_by=rows_sink.partition_by,
        ),
        Columns(
            schema=task.options.get("schema", spec.schema),
            kind=spec.kind,
            key=spec.key,
            checks=spec.checks,
            table=spec.dataset.name,
            drift=spec.drift,
        ),
        spec.reading,
        files,
        options=listing.read_options(),
        open_file=listing.open,
    )
    _check(task, listing)
    return (
        SinkWritten(
            dataset=rows_sink.dataset,
            objects=done.rows.objects,
            rows=done.rows.rows,
            checks={"files": len(files), "quarantined": done.quarantined.rows, **done.checks},
            schema=done.schema,
        ),
        SinkWritten(dataset=bad_sink.dataset, objects=done.quarantined.objects, rows=done.quarantined.rows),
    )


def _check(task: PartTask, listing: Listing) -> None:
    objects = task.inputs[0].objects
    for item, now in zip(objects, listing.look([item.uri for item in objects]), strict=True):
        if now is None or now.version != item.etag:
            raise SourceFileChanged(f"{item.uri} {'is gone' if now is None else 'changed'}")
