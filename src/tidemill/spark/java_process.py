"""Find out whether Spark's Java process has ended or is unusable, and why.

pyspark starts one Java process for each Python process. If the Java process ends, pyspark does not notice:
every later call fails with a connection error. A Python process without its Java process cannot run Spark
again. So the child of a runner ends, and the supervisor starts another one.

A Java process can also be unusable although it runs. Java initializes each class once. If this fails, for
example because the disk is full when a class unpacks its native library, the class cannot be used again, even
after the cause is gone. A runner with such a Java process would claim one part after another, and every part
would fail.
"""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from tidemill.errors import SparkDied
from tidemill.futures.worker.processes import describe_exit

EXIT_CODES: Final = {
    50: "an uncaught exception",
    51: "an uncaught exception",
    52: "out of memory",
    53: "it cannot create its temporary folder",
}
"""What the exit codes of Spark's own processes mean."""


CLOSED_S = 1.0
"""How long to wait for the end of the Java process after it closed a connection."""

ENDING_S = 10.0
"""How long to wait for it after an error that makes Spark shut down."""

EXIT_S = 10.0
"""How long the Java process may take to stop Spark and to delete its temporary files."""

_SHUTS_DOWN: Final = re.compile(r"OutOfMemoryError|SparkContext was shut down|stopped SparkContext")
_CLASS_LOST: Final = re.compile(r"NoClassDefFoundError: Could not initialize class (?P<name>[\w.$]+)")


def check_java(error: BaseException | None = None) -> None:
    """Raise `SparkDied` if the Java process has ended, or if this error shows that it is unusable."""
    if end := java_end(_wait_s(error)) or _lost_class(error):
        raise SparkDied(end) from error


def _lost_class(error: BaseException | None) -> str:
    """Return why the Java process is unusable; empty if it is not, or if another process started it."""
    process = _java_process()
    if process is None:
        return ""
    for part in _chain(error):
        if lost := _CLASS_LOST.search(str(part)):
            return (
                f"the Java process of Spark (pid {process.pid}) cannot use the class {lost['name']} any more,"
                " because its initialization failed; a full disk can cause this"
            )
    return ""


def java_end_after(error: BaseException) -> str:
    """Return why the Java process has ended, if it ended with this error; otherwise an empty text."""
    return java_end(_wait_s(error))


def _wait_s(error: BaseException | None) -> float:
    """Return how long the Java process may need to end if this error is the consequence of its end."""
    errors = list(_chain(error))
    if any(_SHUTS_DOWN.search(str(part)) for part in errors):
        return ENDING_S
    return CLOSED_S if any(map(_is_closed, errors)) else 0.0


def _is_closed(error: BaseException) -> bool:
    of_gateway = type(error).__module__.startswith("py4j.") and type(error).__name__ != "Py4JJavaError"
    return of_gateway or isinstance(error, ConnectionError | EOFError)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def java_end(wait_s: float = 0.0) -> str:
    """Return why the Java process has ended; empty if it runs, or if this process has not started one.

    - wait_s: how long to wait for its end. Its connections close shortly before the process ends.
    """
    process = _java_process()
    if process is None:
        return ""
    try:
        code = process.wait(wait_s) if wait_s > 0 else process.poll()
    except subprocess.TimeoutExpired:
        return ""
    if code is None:
        return ""
    reason = EXIT_CODES.get(code) or describe_exit(code)
    return f"the Java process of Spark (pid {process.pid}) ended: {reason}"


def end_java(wait_s: float = EXIT_S) -> None:
    """Let the Java process end, and wait for it; call this last. Spark deletes its temporary files then.

    A Java process that is killed leaves them behind: copies of jars, native libraries and shuffle files.
    """
    process = _java_process()
    if process is None or process.stdin is None:
        return
    with contextlib.suppress(OSError):
        process.stdin.close()  # Spark's gateway ends when its input ends
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)


def _java_process() -> "subprocess.Popen[bytes] | None":
    pyspark = sys.modules.get("pyspark.core.context")
    gateway = None if pyspark is None else pyspark.SparkContext._gateway
    # not by `getattr`: py4j sends the name of an attribute that does not exist to Java
    process = None if gateway is None else vars(gateway).get("proc")
    return process if isinstance(process, subprocess.Popen) else None
