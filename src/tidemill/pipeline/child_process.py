"""Run a pipeline in the child process of a runner, and report the pipeline's name and cluster.

The supervisor of a runner needs the pipeline's name and cluster, but never imports the user's file. Instead
it starts a short-lived process that imports the file, prints the name and the cluster, and exits (`python -m
tidemill.pipeline.child_process`).
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from tidemill.errors import PipelineNotFound, TidemillError
from tidemill.events import Event
from tidemill.futures.home import ClusterAddress
from tidemill.futures.values.signatures import ClusterKey
from tidemill.pipeline import pipeline_file
from tidemill.runner.child import INTERRUPTED, ChildContext

MAIN = "tidemill.pipeline.child_process:main"

OUTPUT_CLOSED = 141
"""The exit code of a run whose output was closed, as shells show it: 128 plus the number of SIGPIPE."""


class PipelineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a pipeline and the address of its cluster, for a supervisor."""

    name: str
    store: str
    objects: str
    cluster: str
    home: str
    secret: bytes

    @property
    def place(self) -> ClusterAddress:
        return ClusterAddress(
            store=self.store,
            objects=self.objects,
            cluster=self.cluster,
            home=self.home,
            key=ClusterKey(self.secret),
        )


class LoadFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a pipeline could not be loaded."""

    code: str
    message: str
    hint: str


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of the process that imports a pipeline: the pipeline's info, or the failure."""

    info: PipelineInfo | None = None
    failure: LoadFailure | None = None


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a runner's child process.

    - target, folder: which pipeline to load; see `pipeline_file.load`.
    - starts: start runs; if False, only process parts of runs that other runners started.
    - log_json: print events as JSON lines on standard error, and nothing else but the report.
    - select, exclude: which part of the pipeline to run; see `pipeline.selection`.
    - spark: a master or a Spark Connect address to use instead of the one that the pipeline declares.
    """

    target: str
    folder: str
    watch: bool = False
    starts: bool = True
    spark: str = ""
    threads: int = 4
    json: bool = False
    quiet: bool = False
    log_json: bool = False
    select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def read_info(target: str, folder: Path) -> PipelineInfo:
    """Start a process that imports the pipeline and exits; return the name and the cluster that it prints."""
    command = [sys.executable, "-m", "tidemill.pipeline.child_process", target, str(folder)]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    lines = process.stdout.splitlines()
    try:
        result = msgspec.json.decode(lines[-1], type=LoadResult)
    except (IndexError, msgspec.DecodeError):
        raise PipelineNotFound(
            f"importing {target} ended the process with exit code {process.returncode}",
            hint="run the file with python to see why",
        ) from None
    if result.failure is not None:
        raise PipelineNotFound(result.failure.message, hint=result.failure.hint)
    assert result.info is not None
    return result.info


def _import(target: str, folder: Path) -> LoadResult:
    """Import a pipeline, in the process that `read_info` starts."""
    try:
        pipeline = pipeline_file.load(target, folder)
        place = pipeline.context.place
        info = PipelineInfo(
            name=pipeline.name,
            store=place.store,
            objects=place.objects,
            cluster=place.cluster,
            home=place.home,
            secret=place.key.secret,
        )
    except TidemillError as error:
        return LoadResult(failure=LoadFailure(code=error.code, message=error.message, hint=error.hint))
    return LoadResult(info=info)


def main(context: ChildContext) -> int:
    """Run the pipeline in the child process of a runner; return the exit code."""
    from tidemill.obs.json_log import JsonLog
    from tidemill.pipeline.run import run_as_node
    from tidemill.pipeline.run_events import SparkStarting
    from tidemill.pipeline.run_reporter import RunReporter
    from tidemill.pipeline.selection import select
    from tidemill.spark import class_archive

    request = msgspec.convert(context.arguments, RunRequest)
    pipeline = pipeline_file.load(request.target, Path(request.folder))
    if request.spark:
        pipeline.use_spark(request.spark)
    selection = None
    if request.select or request.exclude:
        selection = select(pipeline, request.select, request.exclude)
    reporter = RunReporter(
        json=request.json, quiet=request.quiet, on_closed=lambda: context.drain(context.grace_s)
    )
    tell = JsonLog(sys.stderr, pipeline=pipeline.name) if request.log_json else reporter

    def emit(event: Event) -> None:
        if isinstance(event, SparkStarting) and event.where.startswith("local"):
            class_archive.make_in_background(os.environ)  # so that the next start is faster
        tell(event)

    with reporter:
        report = run_as_node(
            pipeline,
            context.presence,
            watch=request.watch,
            starts=request.starts,
            emit=emit,
            stop=context.draining,
            left_s=context.left_s,
            threads=request.threads,
            selection=selection,
        )
    reporter.end(report)
    pipeline.close()
    if reporter.closed:
        return OUTPUT_CLOSED
    if report.interrupted:
        return INTERRUPTED
    return 0 if report.ok or request.watch else 1


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(_import(sys.argv[1], Path(sys.argv[2]))).decode() + "\n")
