"""Processes that live in scenes of the life of lots (`tests.integration.life_scenes`), until they are killed.

    PYSPARK_GATEWAY_PORT=… PYSPARK_GATEWAY_SECRET=… python -m tests.acceptance.life_process

It is told on its standard input, a line each, which scene, in which home, how late it is and at which point;
it forks a process that lives there and ends like kill -9 at the point, and says how that ended: a line with
the number of the signal, or of the exit. They share a Java with the test that started them, so that none of
them has to start one.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tests import patience
from tests.integration.life_scenes import SCENES, Shop
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.testing.fake_clock import ShiftedClock


def session() -> SparkSession:
    """A session of our own on the context that somebody else has started in this Java."""
    gateway = launch_gateway()
    jvm = gateway.jvm
    shared = jvm.JavaSparkContext.fromSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(gateway=gateway, jsc=shared, conf=SparkConf(_jconf=shared.getConf()))
    return SparkSession(context)


def live(request: dict[str, Any]) -> None:
    os.environ[crash.ENVIRONMENT] = request["point"]
    crash.arm_from_environment()
    clock = ShiftedClock(SYSTEM, wall_s=request["shift_s"], monotonic_s=request["shift_s"])
    scene = {**SCENES, Shop.name: Shop}[request["scene"]]
    scene(**request["options"]).live(Path(request["home"]), session(), clock)


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                live(json.loads(line))
            except BaseException:  # noqa: BLE001 - said, and told by the exit code
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{-os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    patience.lengthen_transactions()
    main()
