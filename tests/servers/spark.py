"""Spark for tests: settings that start fast and stay small, a standalone cluster, a Spark Connect server."""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.servers.hosts import Host
from tests.servers.process import Child, Server, ServerUnavailable, accepts, free_ports
from tidemill.errors import JavaMissing
from tidemill.spark.java import find_java, java_environment
from tidemill.spark.sessions import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The C1 compiler and a serial collector suit sessions that live for seconds. With C1 alone Java would reserve
# 48 MB for compiled code, and compile again and again what it had to drop.
QUICK = (
    "-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
)
ARCHIVE = Path(__file__).parents[2] / ".cache" / "spark" / "classes.jsa"
_DEPLOY = "org.apache.spark.deploy"


def jvm_options() -> str:
    """Options that make a Java start fast: with the archive of classes (`spark_archive`) at half the CPU.

    A Java or a Spark that the archive was not made with ignores it, and says nothing. What it writes beside
    the work is where other temporary files are: one that is killed leaves it there.
    """
    shared = f' "-XX:SharedArchiveFile={ARCHIVE}" -Xlog:disable' if ARCHIVE.exists() else ""
    return f'{QUICK} "-Djava.io.tmpdir={tempfile.gettempdir()}"{shared}'


SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.ui.explainMode": "simple",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # else each F.col makes five calls to Java
}
"""For few rows, where planning a query takes most of the time. Children of tests run as users' Sparks do."""

WARM = {"spark.python.daemon.module": "tests.servers.warm_daemon"}
"""For the Spark of a test process, which the daemon of Python workers can import."""

_CLASSES = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")


def remember_classes(session: "SparkSession") -> None:
    """Let pyspark find its classes of Java at once.

    Otherwise Java searches all jars for a name such as `functions` in each package that pyspark imports,
    whenever a column is made.
    """
    view = session.sparkContext._jvm
    for name in _CLASSES:
        setattr(view, name, getattr(view, name))


def small_spark(conf: Mapping[str, str] | None = None) -> SparkSettings:
    """A local Spark of two threads and 1 GiB, for this process or for a child of a test."""
    return SparkSettings(
        master="local[2]",
        app="tidemill-tests",
        conf={
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"-Xmn400m {jvm_options()}",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            **(conf or {}),
        },
    )


def require_spark() -> None:
    """Raise `ServerUnavailable`, with the reason, where no Spark can be started."""
    try:
        import pyspark  # noqa: F401 - the import is the question
    except ImportError as reason:
        raise ServerUnavailable(f"no pyspark: {reason}") from None
    try:
        find_java(os.environ)
    except JavaMissing as reason:
        raise ServerUnavailable(str(reason)) from None


BARE = ("pyarrow", "numpy", "pandas", "dateutil", "pytz", "six", "tzdata", "numpy.libs", "pandas.libs")
"""What the Python workers of a bare Spark can import, besides Spark's own Python code."""


def bare_python(folder: Path) -> Path:
    """Write a Python interpreter that imports nothing from this environment but `BARE`."""
    import pyarrow

    installed, packages = Path(pyarrow.__file__).parent.parent, folder / "packages"
    packages.mkdir()
    for name in BARE:
        for file in (installed / name, installed / f"{name}.py"):
            if file.exists():
                (packages / file.name).symlink_to(file)
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    return program


class _SparkProcesses(Server):
    """Programs of Spark as children of the tests, with a folder for their logs and scratch files."""

    def __init__(self, *, bare: bool = False) -> None:
        require_spark()
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-spark-"))
        self._children: list[Child] = []
        self.python = str(bare_python(self._folder)) if bare else sys.executable
        self._bare = bare

    def stop(self) -> None:
        """End everything and remove what it left. Harmless when it never started."""
        for child in self._children:
            _kill_tree(child)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(
        self, name: str, program: str, *arguments: str, memory: str = "256m", host: Host | None = None
    ) -> Child:
        import pyspark

        home = Path(pyspark.__file__).parent
        scratch = self._folder / name
        scratch.mkdir()
        env = dict(os.environ) | java_environment(os.environ)
        env |= {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(scratch),
            "SPARK_DAEMON_MEMORY": memory,
            "SPARK_DAEMON_JAVA_OPTS": jvm_options(),
            "PYSPARK_PYTHON": self.python,
            # the code under test, for Python workers that are not children of the test
            "PYTHONPATH": "" if self._bare else os.pathsep.join(path for path in sys.path if path),
            **({} if host is None else host.environment),
        }
        child = Child(
            [home / "bin" / program, *arguments],
            log=self._folder / f"{name}.log",
            env=env,
            cwd=scratch,
            prefix=() if host is None else host.prefix,
        )
        self._children.append(child)
        return child


class SparkStandalone(_SparkProcesses):
    """A Spark cluster: a master and workers of one core each.

    - workers: how many, on loopback.
    - bare: its Python workers have pyarrow, numpy and pandas, but neither Tidemill nor anything else.
    - hosts: instead of loopback: a worker on each of them, and the master on the first one.
    """

    def __init__(self, workers: int = 2, *, bare: bool = False, hosts: Sequence[Host] = ()) -> None:
        super().__init__(bare=bare)
        self._hosts: Sequence[Host | None] = hosts or [None] * workers
        self.master = ""
        self._page = ""
        self.workers: list[Child] = []

    def settings(self, conf: Mapping[str, str] | None = None) -> SparkSettings:
        """For a driver that has its work done here."""
        return SparkSettings(
            master=self.master,
            app="tidemill-tests",
            conf={
                "spark.driver.memory": "512m",
                "spark.driver.extraJavaOptions": jvm_options(),
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": jvm_options(),
                "spark.sql.shuffle.partitions": "2",
                "spark.ui.enabled": "false",
                "spark.pyspark.python": self.python,
                "spark.pyspark.driver.python": sys.executable,
                **(conf or {}),
            },
        )

    def start(self) -> None:
        port, page = free_ports(2)
        first = self._hosts[0]
        address = _address(first)
        self.master, self._page = f"spark://{address}:{port}", f"http://{address}:{page}/json/"
        place = ["--host", address, "--port", str(port), "--webui-port", str(page)]
        master = self._run("master", "spark-class", f"{_DEPLOY}.master.Master", *place, host=first)
        for number, host in enumerate(self._hosts):
            self.start_worker(f"worker-{number}", host)
        # Workers knock until the master opens, so all of them start at once.
        master.wait_until(lambda: self.alive() == len(self._hosts))

    def start_worker(self, name: str, host: Host | None = None) -> Child:
        """Another worker; `alive()` counts it when it has joined."""
        size = ["--host", _address(host), "--webui-port", "0", "--cores", "1", "--memory", "768m"]
        folder = ["--work-dir", str(self._folder / f"{name}-work")]
        worker = self._run(
            name, "spark-class", f"{_DEPLOY}.worker.Worker", *size, *folder, self.master, host=host
        )
        self.workers.append(worker)
        return worker

    def kill_worker(self, number: int) -> None:
        """kill -9 for a worker and the executors on it, as when a machine goes away."""
        _kill_tree(self.workers[number])

    def alive(self) -> int:
        """How many workers the master counts; 0 while there is no master, or none that can be asked: while it
        starts, it answers with another page.
        """

        def ask() -> int:
            with urllib.request.urlopen(self._page, timeout=2) as answer:
                return int(json.load(answer)["aliveworkers"])

        first = self._hosts[0]
        try:
            return ask() if first is None else first.call(ask)
        except (OSError, json.JSONDecodeError):
            return 0


class SparkConnectServer(_SparkProcesses):
    """A Spark Connect server with a local Spark of two threads behind it; for `bare`, see above."""

    def __init__(self, *, bare: bool = False) -> None:
        super().__init__(bare=bare)
        self.url = ""

    def settings(self) -> SparkSettings:
        """For a client of it. A process that has a Spark of its own cannot be one."""
        return SparkSettings(remote=self.url, app="tidemill-tests")

    def start(self) -> None:
        (port,) = free_ports(1)
        self.url = f"sc://127.0.0.1:{port}"
        conf = {
            **small_spark({"spark.pyspark.python": self.python}).all_conf(),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
        flags = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        words = [*main, "--master", "local[2]", *flags, "spark-internal"]
        server = self._run("connect", "spark-submit", *words, memory="1g")
        server.wait_until(lambda: accepts(port))


def _address(host: Host | None) -> str:
    return "127.0.0.1" if host is None else host.address


def _kill_tree(child: Child) -> None:
    """SIGKILL for a process and all below it: executors outlive their worker for a while."""
    try:
        below = psutil.Process(child.pid).children(recursive=True) if child.running else []
    except psutil.NoSuchProcess:
        below = []
    child.end()
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
