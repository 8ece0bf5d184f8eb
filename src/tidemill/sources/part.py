"""One window, read on Spark: what runs where a task of kind "source" is claimed."""

from typing import TYPE_CHECKING

from tidemill.errors import BadSource, SourceFileChanged
from tidemill.objects.port import Objects
from tidemill.publish.parts import PartPlace, PartTask, SinkWritten
from tidemill.sources.declarations import SourceSpec
from tidemill.sources.listing import Listing
from tidemill.spark.formats import Format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tidemill.spark.storage import Storage
    from tidemill.spark.writing import Written


def run_window(
    spark: "SparkSession",
    storage: "Storage",
    objects: Objects,
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
        storage: where lots are, for Spark.
        objects: the same place, for us.
        spec: the source, as the pipeline of this process declares it.
        listing: where its files are.
        task: the window.
        place: who runs it.
    """
    from tidemill.spark.culprits import ForeignFile
    from tidemill.spark.ingest import Ingest
    from tidemill.spark.writing import write_frame

    if task.code != spec.code:
        raise BadSource(
            f"{spec.id} was declared differently where this task was made",
            hint="run the same release of the pipeline on every node",
        )
    rows_sink, bad_sink = task.sinks
    files = [ForeignFile(item.uri, listing.uri(item.uri), item.size) for item in task.inputs[0].objects]
    _check(task, listing)
    ingest = Ingest(
        spark,
        _columns(spark, spec),
        spec.reading,
        options=listing.read_options(),
        open_file=listing.open,
    )

    def write_rows(frame: "DataFrame", folder: str) -> "Written":
        prefix = place.data_prefix(task, rows_sink) + folder
        return write_frame(frame, storage, objects, prefix, partition_by=rows_sink.partition_by)

    def write_bad(frame: "DataFrame", folder: str) -> "Written":
        return write_frame(frame, storage, objects, place.data_prefix(task, bad_sink) + folder)

    done = ingest.run(files, write_rows, write_bad)
    _check(task, listing)
    return (
        SinkWritten(
            dataset=rows_sink.dataset,
            objects=done.rows.objects,
            rows=done.rows.rows,
            checks={"files": len(files), "quarantined": done.quarantined.rows},
        ),
        SinkWritten(dataset=bad_sink.dataset, objects=done.quarantined.objects, rows=done.quarantined.rows),
    )


def _columns(spark: "SparkSession", spec: SourceSpec) -> "StructType":
    from tidemill.spark import schema

    found = schema.to_spark(schema.analysed(spark, spec.schema))
    if spec.reading.format is Format.TEXT and [one.dataType.simpleString() for one in found] != ["string"]:
        raise BadSource(
            f"lines of text for {spec.dataset.name}, which has {', '.join(found.names)}",
            hint="a dataset for text has one column, of type STRING",
        )
    return found


def _check(task: PartTask, listing: Listing) -> None:
    for item in task.inputs[0].objects:
        now = listing.look(item.uri)
        if now is None or now.version != item.etag:
            raise SourceFileChanged(f"{item.uri} {'is gone' if now is None else 'changed'}")
