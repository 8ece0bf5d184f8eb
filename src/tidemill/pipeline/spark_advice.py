"""What the settings of a Spark session cost the steps of views, without starting Spark (DBSP-44).

A session that a user passes works unchanged. `tidemill doctor` says what its settings cost, and refuses a
memory limit of Python workers below what they map.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from tidemill.views.spark.execution import worker_bytes

if TYPE_CHECKING:
    from tidemill.pipeline.context import PipelineContext

LEAST_WORKER_BYTES = 2 * 1024**3
"""A Python worker maps about 1.4 GiB of libraries before it reads a row. The limit counts mapped memory."""

MEMORY = "spark.executor.pyspark.memory"
SOCKETS = "spark.python.unix.domain.socket.enabled"
REUSE = "spark.python.worker.reuse"

Get = Callable[[str], str | None]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: what it costs, and what to do. With a refused setting, steps fail."""

    setting: str
    message: str
    hint: str
    refused: bool = False


def advice_for(context: "PipelineContext") -> list[Advice]:
    """Return advice for the session of a pipeline; none for a Spark Connect address, which is not opened."""
    settings, session = context.settings, context.session_of_user
    if settings is not None:
        conf = {} if settings.remote else settings.all_conf()
        return advice(conf.get, settings.cores, local=settings.local) if conf else []
    assert session is not None
    return advice(lambda name: session.conf.get(name, None), 1, local=False)


def advice(get: Get, cores: int, *, local: bool) -> list[Advice]:
    """Return advice for these settings.

    - cores: how many Python workers share the memory limit of an executor; 0 if unknown.
    - local: whether Spark runs in one process, which ignores the limit.
    """
    advices = []
    limit = worker_bytes(get(MEMORY) or "", cores)
    if limit is not None and limit < LEAST_WORKER_BYTES and not local:
        advices.append(
            Advice(
                setting=MEMORY,
                message=f"{MEMORY}={get(MEMORY)} gives each Python worker {limit:,} bytes; it maps about 1.4"
                " GiB before it reads a row",
                hint=f"remove the setting, or allow {LEAST_WORKER_BYTES:,} bytes for each core",
                refused=True,
            )
        )
    if get(SOCKETS) != "true":
        advices.append(
            Advice(
                setting=SOCKETS,
                message=f"{SOCKETS} is not true: rows go to Python workers over TCP, which takes longer in"
                " each layer of a step",
                hint=f"set {SOCKETS}=true when you start Spark",
            )
        )
    if get(REUSE) == "false":
        advices.append(
            Advice(
                setting=REUSE,
                message=f"{REUSE}=false: each task starts a Python process and imports its libraries again",
                hint=f"remove {REUSE}",
            )
        )
    return advices
