"""Start Spark's Python workers like pyspark's own daemon, and end those without a connection silently.

Spark runs this module on the machine of a local session (`spark.python.daemon.module`). The daemon of pyspark
forks one process per worker. An idle worker waits for its next task. When Java closes the connection, because
the worker was idle for a minute or because the program ends, pyspark's worker takes this for an error, tries
to report it on the closed connection, and prints the traceback of a `BrokenPipeError` to standard error.

This hides no error of a user's function: pyspark catches these errors inside the task, and Spark raises them
in the program. Only the transport of results raises `BrokenPipeError` here, and then nothing reads them.
The module must not import packages that start threads, because the daemon forks after its imports.
"""

import os
import socket
from typing import Final

from pyspark import daemon

_run_task: Final = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Wait for a task and run it. Return a code other than 0 if this process is to end.

    The first byte stays in the connection, so pyspark reads the whole task.
    """
    try:
        if not sock.recv(1, socket.MSG_PEEK):
            return 1
        return _run_task(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # not `return`: pyspark would wait until the other end closes the connection


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
