"""Serve the page from the child process of a runner (`tidemill run --ui`).

The child has imported the pipeline already, so actions need no second import. If the child dies, the page is
gone until the supervisor has started another child.
"""

import sys
from pathlib import Path

import msgspec

from tidemill.clock import SYSTEM
from tidemill.objects import open_objects
from tidemill.pipeline import child_process, pipeline_file
from tidemill.pipeline.child_process import RunRequest
from tidemill.runner.child import ChildContext
from tidemill.ui.server import PageOptions, in_background, make_server

MAIN = "tidemill.ui.runner_page:main"


class PageRunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a runner's child process that serves a page."""

    run: RunRequest
    page: PageOptions


def main(context: ChildContext) -> int:
    """Run the pipeline in the child process of a runner, and serve its page; return the exit code."""
    request = msgspec.convert(context.arguments, PageRunRequest)
    target, folder = request.run.target, Path(request.run.folder)
    server = make_server(
        context.store,
        context.place.cluster,
        request.page,
        load=lambda: pipeline_file.load(target, folder),
        open_objects=lambda: open_objects(context.place.objects, clock=SYSTEM, probe=False),
    )
    sys.stderr.write(f"the page is at {server.url}\n")
    context.arguments = msgspec.to_builtins(request.run)
    with in_background(server):
        return child_process.main(context)
