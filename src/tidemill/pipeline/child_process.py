"""A pipeline in a process of its own: described to whoever starts it, and run as a runner's child.

The supervisor of a runner never imports the user's file. What it has to know, where the cluster is and what
the pipeline is called, it asks a process that ends at once (`python -m tidemill.pipeline.child_process`).
"""

import subprocess
import sys
from pathlib import Path

import msgspec

from tidemill.errors import PipelineNotFound, TidemillError
from tidemill.futures.home import Place
from tidemill.futures.values.signatures import ClusterKey
from tidemill.pipeline import pipeline_file as loading
from tidemill.runner.child import Seat

MAIN = "tidemill.pipeline.child_process:main"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor has to know of a pipeline."""

    name: str
    store: str
    objects: str
    cluster: str
    home: str
    secret: bytes

    @property
    def place(self) -> Place:
        return Place(
            store=self.store,
            objects=self.objects,
            cluster=self.cluster,
            home=self.home,
            key=ClusterKey(self.secret),
        )


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Why a pipeline could not be loaded."""

    code: str
    message: str
    hint: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the asked process says: one of the two."""

    about: About | None = None
    refused: Refused | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the child of a runner is to do.

    - target: the pipeline, as `loading.load` takes it, with the folder it is relative to.
    - starts: start runs; else only parts of runs are made that others have started.
    - spark: a master or a Spark Connect address, instead of the pipeline's own.
    """

    target: str
    folder: str
    watch: bool = False
    starts: bool = True
    spark: str = ""
    threads: int = 4
    json: bool = False
    quiet: bool = False


def ask(target: str, folder: Path) -> About:
    """What a pipeline says of itself, by a process that imports it and ends."""
    command = [sys.executable, "-m", "tidemill.pipeline.child_process", target, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    lines = done.stdout.splitlines()
    try:
        answer = msgspec.json.decode(lines[-1], type=Answer)
    except (IndexError, msgspec.DecodeError):
        raise PipelineNotFound(
            f"{target} ended the process that imported it ({done.returncode})",
            hint="run the file with python, to see what it does",
        ) from None
    if answer.refused is not None:
        raise PipelineNotFound(answer.refused.message, hint=answer.refused.hint)
    assert answer.about is not None
    return answer.about


def answer(target: str, folder: Path) -> Answer:
    """The other side of `ask`."""
    try:
        pipeline = loading.load(target, folder)
        place = pipeline.site.place
        about = About(
            name=pipeline.name,
            store=place.store,
            objects=place.objects,
            cluster=place.cluster,
            home=place.home,
            secret=place.key.secret,
        )
    except TidemillError as error:
        return Answer(refused=Refused(code=error.code, message=error.message, hint=error.hint))
    return Answer(about=about)


def main(seat: Seat) -> int:
    """What the child of a runner does: it runs the pipeline, and says so."""
    from tidemill.pipeline.run import run_as
    from tidemill.pipeline.run_reporter import Talk

    asked = msgspec.convert(seat.arguments, Asked)
    pipeline = loading.load(asked.target, Path(asked.folder))
    if asked.spark:
        pipeline.use_spark(asked.spark)
    with Talk(json=asked.json, quiet=asked.quiet) as talk:
        report = run_as(
            pipeline,
            seat.presence,
            watch=asked.watch,
            starts=asked.starts,
            emit=talk,
            stop=seat.draining,
            threads=asked.threads,
        )
    talk.end(report)
    pipeline.close()
    return 0 if report.ok or asked.watch else 1


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(answer(sys.argv[1], Path(sys.argv[2]))).decode() + "\n")
