"""The daemon of Spark's Python workers, whose workers take their runner down: `spark.python.daemon.module`.

What a step of views writes, workers write. `TIDEMILL_CRASH=point` in the environment of a runner arms the
point in its workers too; who comes by it kills the process that started their Java, as when a machine fails.
"""

import os
import signal

import psutil

from tidemill import crash


def take_down() -> None:
    """SIGKILL for the runner above us, and for us."""
    for above in psutil.Process().parents():
        if "tidemill.runner.child" in above.cmdline():
            above.kill()
            break
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    point = os.environ.get(crash.ENVIRONMENT, "").partition(":")[0]
    if point:
        crash._armed[point] = take_down
    from pyspark.daemon import manager

    manager()
