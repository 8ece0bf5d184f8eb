"""The daemon of Spark's Python workers, with troubles that a test orders: `spark.python.daemon.module`.

A trouble is a file in the folder that `TIDEMILL_TROUBLE` names; workers look for it before and after they
write the bundle of a layer:

    kill     a worker kills itself after it wrote its bundle, once for each job and layer
    full     object storage is full when a bundle is written
    memory   there is no memory left for a kernel

`TIDEMILL_WORKER_BYTES` limits what a worker may allocate.
"""

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from tidemill import crash
from tidemill.errors import ObjectsFull

FOLDER = Path(os.environ.get("TIDEMILL_TROUBLE", "/nowhere"))


def killed_once() -> None:
    """At `views.task.reported`: the bundle is written, but not reported."""
    if not (FOLDER / "kill").exists():
        return
    task = sys._getframe(2).f_locals
    mark = FOLDER / f"killed-{task['plan'].job}-{task['number']}"
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    mark.write_text(task["bundle"].key)
    os.kill(os.getpid(), signal.SIGKILL)


def in_trouble() -> None:
    """At `views.trace.before_bundle`."""
    if (FOLDER / "full").exists():
        bundle: Any = sys._getframe(2).f_locals["self"]
        raise ObjectsFull(f"no space left for {bundle.key!r}")
    if (FOLDER / "memory").exists():
        raise MemoryError


if __name__ == "__main__":
    if most := int(os.environ.get("TIDEMILL_WORKER_BYTES", "0")):
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    crash._armed["views.task.reported"] = killed_once
    crash._armed["views.trace.before_bundle"] = in_trouble
    from pyspark.daemon import manager

    manager()
