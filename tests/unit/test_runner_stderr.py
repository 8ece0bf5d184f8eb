"""What a runner prints of the standard error of its child and its Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.runner.stderr_relay import StderrFilter, StderrRelay

DAEMON = b"""Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/pyspark/daemon.py", line 233, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3/site-packages/pyspark/serializers.py", line 590, in write_int
    stream.write(struct.pack("!i", value))
BrokenPipeError: [Errno 32] Broken pipe
"""
CHAINED = (
    b"PySpark worker failed with exception:\n"
    + DAEMON
    + b"\nDuring handling of the above exception, another exception occurred:\n\n"
    + DAEMON.replace(b"BrokenPipeError: [Errno 32] Broken pipe", b"ConnectionResetError: [Errno 104]")
)
JAVA = b"""26/11/18 06:00:00 ERROR Inbox: Ignoring error
java.util.concurrent.RejectedExecutionException: rejected
\tat java.base/java.util.concurrent.ThreadPoolExecutor.execute(ThreadPoolExecutor.java:1365)
\tat org.apache.spark.executor.Executor.launchTask(Executor.scala:420)
Caused by: java.io.IOException: closed
\t... 12 more
"""
OF_SERVER = (
    b"-" * 40
    + b"\nException occurred during processing of request from \n"
    + DAEMON.replace(b"pyspark/daemon.py", b"pyspark/accumulators.py")
    + b"-" * 40
    + b"\n"
)
OF_USER = b"""Traceback (most recent call last):
  File "/home/me/shop.py", line 3, in clean
    send(row)
BrokenPipeError: [Errno 32] Broken pipe
"""


def printed(*pieces: bytes) -> bytes:
    stream = StderrFilter()
    return b"".join(map(stream.feed, pieces)) + stream.flush()


def test_stack_traces_of_closed_connections_of_spark_are_dropped() -> None:
    assert printed(b"before\n", DAEMON, b"after\n") == b"before\nafter\n"
    assert printed(b"before\n", CHAINED, b"after\n") == b"before\nafter\n"
    assert printed(b"before\n", OF_SERVER, b"after\n") == b"before\nafter\n"


def test_java_stack_traces_keep_their_first_lines() -> None:
    assert printed(JAVA).splitlines() == JAVA.splitlines()[:2]


def test_other_output_is_printed_as_it_is_however_it_is_cut() -> None:
    text = b"a\n\n  indented\n" + OF_USER + b"\nat the end\nno newline"
    assert printed(text) == text
    assert printed(*(text[at : at + 1] for at in range(len(text)))) == text
    other = DAEMON.replace(b"BrokenPipeError: [Errno 32] Broken pipe", b"ZeroDivisionError: division by zero")
    assert printed(other) == other
    table = b"-" * 40 + b"\nname  rows\n" + (b"-" * 40 + b"\n") * 2
    of_user = OF_SERVER.replace(DAEMON.splitlines()[1], b'  File "/home/me/server.py", line 3, in handle')
    of_user = of_user.replace(b"/pyspark/", b"/mine/")
    for text in (table, of_user, table[:41], OF_SERVER[:90]):
        assert printed(text) == text


def test_a_line_that_has_not_ended_is_printed_when_the_child_pauses() -> None:
    stream = StderrFilter()
    assert stream.feed(b"40 %\r41 %") == b""
    assert stream.flush_line() == b"40 %\r41 %"
    assert stream.feed(b"Trace") == stream.flush_line() == b""  # perhaps a traceback
    assert stream.feed(b"d\n") == b"Traced\n"


def test_the_cause_of_a_death_is_remembered() -> None:
    stream = StderrFilter()
    stream.feed(b'Exception in thread "x" java.lang.OutOfMemoryError: Java heap space\n')
    assert stream.cause == "java.lang.OutOfMemoryError: Java heap space"


@pytest.mark.parametrize("debug", ["", "1"])
def test_the_relay_prints_what_its_child_wrote_and_nothing_of_what_outlives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    monkeypatch.setenv("TIDEMILL_DEBUG", debug)
    with (tmp_path / "err").open("wb") as target:
        relay = StderrRelay(target.fileno())
        outlives = os.dup(relay.writer)
        code = f"import sys; sys.stderr.buffer.write({DAEMON!r} + b'failed\\n')"
        process = subprocess.Popen([sys.executable, "-c", code], stderr=relay.writer)
        relay.start()
        process.wait()
        relay.close()
        with pytest.raises(BrokenPipeError):
            os.write(outlives, b"\tat java.lang.Thread.run(Thread.java:1)\n")
        os.close(outlives)
    assert (tmp_path / "err").read_bytes() == (DAEMON if debug else b"") + b"failed\n"


PY4J = """
import socket, threading
from py4j.java_gateway import GatewayClient, GatewayParameters
from tidemill.runner.child import silence_py4j

silence_py4j()
server = socket.create_server(("127.0.0.1", 0))

def close_connections():
    while True:
        server.accept()[0].close()

threading.Thread(target=close_connections, daemon=True).start()
client = GatewayClient(gateway_parameters=GatewayParameters(port=server.getsockname()[1]))
print(client.send_command("c\\n"))
"""


@pytest.mark.parametrize("debug", ["", "1"])
def test_py4j_logs_no_closed_connections(debug: str) -> None:
    environment = {**os.environ, "TIDEMILL_DEBUG": debug}
    command = [sys.executable, "-c", PY4J]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert run.stdout == "x\n", run.stderr  # py4j's answer for a call that failed
    assert ("Traceback" in run.stderr) == bool(debug), run.stderr
    assert bool(run.stderr) == bool(debug)
