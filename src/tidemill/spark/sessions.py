"""Open Spark sessions. No other module creates a session.

There are three kinds: a session that Tidemill starts (`local[*]`, or any master), a session on a Spark
Connect server (`sc://…`), and a session that the user passes in (`adopt`). All three give equal results, for
two reasons. The settings that change the result of a query are pinned (`PINNED`). And all other code uses
only the DataFrame API.

A process is either a Spark driver or a client of Spark Connect, never both: pyspark decides that once for the
whole process.

The file is long because it is the only one that knows the kinds of sessions.
"""

import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from tidemill.errors import MissingDriver, SessionUnusable, SparkUnavailable, UsageError
from tidemill.futures.worker.memory import total_bytes
from tidemill.spark import class_archive
from tidemill.spark.executor_code import ship
from tidemill.spark.java import java_environment
from tidemill.spark.on_demand import on_demand, started_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OLDEST: Final = (4, 1)
LOCAL_MASTER: Final = "local[*]"

PINNED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.timeType.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings that change the meaning of a query, its result, or how the result is stored. They are the same on
every machine that runs a pipeline. Collations need no setting, because a collation is part of a STRING
type."""

_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
}
_LOCAL: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    # Listing local files takes far less time than a Spark job that lists them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    # Without its web pages, Spark still keeps the plans of the last 1,000 queries in the driver's heap.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
}
_DAEMON: Final[Mapping[str, str]] = {"spark.python.daemon.module": "tidemill.spark.python_daemon"}
_COMPILE_LATER: Final = "-XX:+IgnoreUnrecognizedVMOptions -XX:CompileThresholdScaling=5"
"""Options of a local Java: compile a method after five times as many calls as by default. Most processes live
for seconds and plan small queries. By default, more than half of their CPU time goes into compiling Spark's
planner, on the cores that plan. Loops over many rows still reach the threshold at once."""
_LOG_SETTINGS = Path(__file__).parent / "log4j2.properties"
_DRIVER_MEMORY = "spark.driver.memory"
LEAST_HEAP_BYTES: Final = 1024**3
MOST_HEAP_BYTES: Final = 8 * 1024**3
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LAUNCHER_OPTIONS: Final = "SPARK_LAUNCHER_OPTS"
_QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the Java process that only prints the command with which Spark starts, and ends."""

_LATER_C2: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times Java's own thresholds: at the start, the second compiler takes a quarter of the CPU time, for
methods that are hardly used again. What handles rows still reaches it after some thousand rows."""

_WAREHOUSE: Final = "spark.sql.warehouse.dir"
"""The folder of Spark's own tables, which Tidemill does not use. It depends on the current folder."""
_opening = threading.Lock()
_activating = threading.Lock()


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which Spark to use.

    >>> import tidemill as tm
    >>> tm.SparkSettings(master="local[4]").master
    'local[4]'

    - master: the Spark master, for a driver in this process: `local[*]`, `spark://host:port`, `yarn`, …
    - remote: a Spark Connect server, `sc://host:port`, instead of a master.
    - conf: more Spark settings. They override our defaults, but cannot change pinned settings.
    - app: the name of the application.
    """

    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = {}
    app: str = "tidemill"

    def __post_init__(self) -> None:
        if self.master and self.remote:
            raise UsageError(
                f"both a master ({self.master}) and a Spark Connect server were passed",
                hint="pass one of them",
            )
        for name, value in PINNED.items():
            if self.conf.get(name, value).lower() != value.lower():
                raise UsageError(
                    f"{name}={self.conf[name]} is not allowed: Tidemill always uses {value}",
                    hint="omit this setting; results must not depend on where a pipeline runs",
                )

    @property
    def local(self) -> bool:
        """Whether Spark runs in this process and on this machine only (`local[…]`)."""
        return self.remote is None and (self.master or LOCAL_MASTER).startswith("local")

    @property
    def where(self) -> str:
        """Where Spark runs, for users: the master, or the address of the server without its parameters."""
        return _shown(self.remote) if self.remote is not None else self.master or LOCAL_MASTER

    @property
    def cores(self) -> int:
        """How many tasks Spark runs at the same time, as the master says; 0 if another process decides it."""
        threads = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", self.master or LOCAL_MASTER)
        if self.remote is not None or threads is None or "spark.default.parallelism" in self.conf:
            return 0
        return len(os.sched_getaffinity(0)) if threads[1] == "*" else int(threads[1] or 1)

    def all_conf(self) -> dict[str, str]:
        """Return all settings for a new session: our defaults, `conf` and the pinned settings."""
        if self.remote is not None:
            return {**self.conf, **PINNED}
        java = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
        if self.local:
            java = f"{java} {_COMPILE_LATER}"
        local = {**_LOCAL, **_memory(), **(_DAEMON if self._is_our_python() else {})} if self.local else {}
        conf = {**_DEFAULTS, **local, **self.conf, **PINNED}
        conf[_JAVA_OPTIONS] = f"{java} {conf.get(_JAVA_OPTIONS, '')}".strip()
        return conf

    def _is_our_python(self) -> bool:
        """Return whether Spark's Python workers run this interpreter, and so can import Tidemill."""
        chosen = (
            self.conf.get("spark.pyspark.python")
            or self.conf.get("spark.pyspark.driver.python")
            or os.environ.get("PYSPARK_PYTHON")
        )
        return chosen is None or chosen == sys.executable


def _memory() -> dict[str, str]:
    """Return the heap of a local Spark: a quarter of the machine's memory, unless the user's files set it.

    Spark's own default is 1 GB on every machine, which is too small for the first load of a large table.
    """
    folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    with suppress(OSError):
        if _DRIVER_MEMORY in Path(folder, "spark-defaults.conf").read_text():
            return {}
    if "SPARK_DRIVER_MEMORY" in os.environ:
        return {}
    mb = min(max(total_bytes() // 4, LEAST_HEAP_BYTES), MOST_HEAP_BYTES) // 1024**2
    return {_DRIVER_MEMORY: f"{mb}m"}


def open_session(settings: SparkSettings | None = None) -> "SparkSession":
    """Open a session. If Spark already runs in this process, open another session on it.

    Code that may not need Spark uses an `OnDemandSession`, which calls this function when it is first used.

    This changes environment variables while Spark starts, and restores them.
    """
    settings = settings or SparkSettings()
    try:
        import pyspark  # noqa: F401 - is it installed?
    except ImportError as error:
        raise MissingDriver(
            "pyspark is not installed",
            hint="pip install 'tidemill[local]', or use the pyspark of your cluster",
        ) from error
    with _opening:
        session = _connect(settings) if settings.remote else _start(settings)
    require(session)
    _bring_code(session)
    return session


def _connect(settings: SparkSettings) -> "SparkSession":
    from pyspark.sql import SparkSession

    assert settings.remote is not None
    if SparkSession.getActiveSession() is not None and not _is_connect(SparkSession.getActiveSession()):
        raise SparkUnavailable(
            "this process is a Spark driver and cannot also be a client of Spark Connect",
            hint="connect from another process",
        )
    try:
        builder = SparkSession.builder.remote(settings.remote).appName(settings.app)
        session = builder.create()
        for name, value in settings.all_conf().items():
            session.conf.set(name, value)
    except Exception as error:
        raise SparkUnavailable(
            f"cannot open a session on the Spark Connect server {_shown(settings.remote)}"
        ) from error
    return session


def _start(settings: SparkSettings) -> "SparkSession":
    from pyspark.sql import SparkSession, is_remote

    if is_remote():
        raise SparkUnavailable(
            "this process is a client of Spark Connect and cannot also be a Spark driver",
            hint="start Spark in another process, or set remote='sc://…'",
        )
    master = settings.master or LOCAL_MASTER
    running = _running()
    if running is not None:
        return _sibling(running, master, settings)
    chosen, archive = settings.all_conf(), None
    if settings.local and not any(name in chosen[_JAVA_OPTIONS] for name in class_archive.OWN_OPTIONS):
        chosen[_JAVA_OPTIONS] = f"{_LATER_C2} {chosen[_JAVA_OPTIONS]}"
        archive = class_archive.archive_path(os.environ)
    options = class_archive.options(os.environ) if archive is not None else ""

    def start(java_options: str) -> "SparkSession":
        conf: dict[str, bool | float | int | str | None] = {**chosen, _JAVA_OPTIONS: java_options.strip()}
        return SparkSession.builder.master(master).appName(settings.app).config(map=conf).getOrCreate()

    with _environment(settings):
        try:
            try:
                return start(f"{chosen.get(_JAVA_OPTIONS, '')} {options}")
            except Exception as error:
                if archive is None or not options or "JAVA_GATEWAY_EXITED" not in str(error):
                    raise
                class_archive.forget(archive)  # it may be damaged
                return start(chosen[_JAVA_OPTIONS])
        except Exception as error:
            raise SparkUnavailable(f"Spark did not start with the master {master}: {error}") from error


def is_running() -> bool:
    """Return whether Spark already runs in this process, so that a session costs nothing."""
    return "pyspark.sql" in sys.modules and _running() is not None


def _running() -> "SparkSession | None":
    """Return a session on the Spark that already runs in this process, or None. Start nothing."""
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession
    if session is None or session._sc._jsc is None:
        return None
    return session


def _sibling(running: "SparkSession", master: str, settings: SparkSettings) -> "SparkSession":
    running_master = running.conf.get("spark.master", "")
    if settings.master is not None and running_master != master:
        raise SparkUnavailable(
            f"this process already runs Spark with the master {running_master}, not with {master}",
            hint="use the same master, or another process",
        )
    session = running.newSession()
    for name, value in {**settings.conf, **PINNED}.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


@contextmanager
def _environment(settings: SparkSettings) -> Iterator[None]:
    """Set the environment variables that Spark reads when it starts, and restore them after the block."""
    variables = {**java_environment(os.environ)}
    variables.setdefault(_LAUNCHER_OPTIONS, os.environ.get(_LAUNCHER_OPTIONS, _QUICK_JAVA))
    # pyspark reads the variable, and not the setting, when the driver is not started by spark-submit.
    python = settings.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    variables.setdefault("PYSPARK_PYTHON", python)
    if settings.local:
        variables.setdefault("SPARK_LOCAL_IP", os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"))
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# --- sessions of users ----------------------------------------------------------------------------------


def faults(session: "SparkSession") -> list[str]:
    """Return the reasons why a session cannot be used; an empty list if it can be used."""
    reasons = []
    version = str(session.version)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        reasons.append(f"it is Spark {version}; the oldest supported version is {OLDEST[0]}.{OLDEST[1]}")
    return reasons


def require(session: "SparkSession") -> None:
    """Raise `SessionUnusable`, with all reasons, if the session cannot be used.

    Raise `MissingDriver` if pandas is missing. pyspark needs pandas for view steps that run as Spark jobs.
    """
    if importlib.util.find_spec("pandas") is None:
        raise MissingDriver(
            "pandas is not installed; pyspark needs it to run Python functions on Arrow data",
            hint="pip install 'tidemill[local]', or pip install 'pandas>=2.2,<3'",
        )
    reasons = faults(session)
    if reasons:
        raise SessionUnusable(f"this Spark session cannot be used: {'; '.join(reasons)}")


_with_code: Final[set[str]] = set()
"""The Spark applications and Connect sessions whose executors can import Tidemill."""
_bringing = threading.Lock()


def _bring_code(session: "SparkSession") -> None:
    """Let the executors of a session import Tidemill, unless they run the Python of this process."""
    connected = _is_connect(session)
    name = str(cast(Any, session).session_id if connected else session.sparkContext.applicationId)
    with _bringing:
        if name in _with_code:
            return
        if connected or not _runs_our_python(session):
            ship(session)
        _with_code.add(name)


def _runs_our_python(session: "SparkSession") -> bool:
    """Return whether the Python workers of a session are processes of this machine and this interpreter."""
    chosen = session.conf.get("spark.pyspark.python", None) or os.environ.get("PYSPARK_PYTHON")
    return str(session.conf.get("spark.master", "")).startswith("local") and chosen in (None, sys.executable)


class _Adopted:
    """A user's session in use: how many `adopt` blocks use it, and its settings before the first of them."""

    def __init__(self, session: "SparkSession") -> None:
        self.session = session
        self.uses = 0
        self.before: dict[str, str | None] = {}


_adopted: dict[int, _Adopted] = {}
_adopting = threading.Lock()


@contextmanager
def adopt(session: "SparkSession") -> Iterator["SparkSession"]:
    """Use a session that the user passes in. Pin its settings inside the block, and restore them afterwards.

    Blocks may overlap, also in different threads: the first block pins the settings, and the last one
    restores them. Queries that the user runs on that session during the block have the pinned settings too.

    >>> with adopt(spark) as session:
    ...     session.sql("SELECT current_timezone()").first()[0]
    'UTC'
    """
    require(session)
    _bring_code(session)
    with _adopting:
        entry = _adopted.setdefault(id(session), _Adopted(session))
        if entry.uses == 0:
            entry.before = {name: session.conf.get(name, None) for name in PINNED}
            for name, value in PINNED.items():
                session.conf.set(name, value)
        entry.uses += 1
    try:
        yield session
    finally:
        with _adopting:
            entry.uses -= 1
            if entry.uses == 0:
                del _adopted[id(session)]
                for name, was in entry.before.items():
                    if was is None:
                        session.conf.unset(name)
                    else:
                        session.conf.set(name, was)


@contextmanager
def repinned(session: "SparkSession") -> Iterator[None]:
    """Run the user's code, and pin the settings of the session again after it.

    A runner uses one session for all functions. Without this, a function that sets the time zone, for
    example, would change the results of later functions.
    """
    try:
        yield
    finally:
        pin(session)


def separate_session(session: "SparkSession") -> "SparkSession":
    """Return another session on the same Spark, with the same SQL settings and its own temporary views.

    Queries in it do not disturb the first session, and it can have other settings. It does not know the
    functions that the user registered in the first session. With Spark Connect this returns the session
    itself: before 4.3 it cannot open another one, and one that stays open keeps the process from ending.
    """
    session = started_session(session)
    if _is_connect(session):
        return session
    separate = session.newSession()
    for name, value in engine_settings(session).items():
        if separate.conf.isModifiable(name):
            separate.conf.set(name, value)
    return separate


def frame_of(session: "SparkSession", data: "pa.Table", columns: "StructType | None" = None) -> "DataFrame":
    """Return Arrow data as a DataFrame, without making this session the active one.

    Without `columns`, Spark derives the types from Arrow's.

    `createDataFrame` makes its session the active one of the whole Python process, which code of the user
    gets from `SparkSession.getActiveSession()`. A session of our own must not be active.

    Spark stops reading at the second of two adjacent batches without rows, so such batches are left out.
    """
    import pyarrow as pa

    session = started_session(session)
    batches = data.to_batches()
    if not all(batch.num_rows for batch in batches):
        data = pa.Table.from_batches([batch for batch in batches if batch.num_rows], data.schema)
    if _is_connect(session):
        return session.createDataFrame(data, columns)
    from pyspark.sql import SparkSession

    with _activating:
        before = SparkSession._activeSession
        try:
            return session.createDataFrame(data, columns)
        finally:
            if SparkSession._activeSession is session:
                SparkSession._activeSession = before


def prepare_thread(session: "SparkSession", columns: "StructType") -> None:
    """Let this thread read Parquet files with these columns.

    Spark 4.3 refuses a TIME column in a file, unless the active session of the thread enables the type. A new
    thread has no active session; `createDataFrame` sets it in Spark's process.
    """
    import pyarrow as pa

    if "time(" in columns.simpleString():
        frame_of(session, pa.table({"c": pa.array([], pa.int32())}))


def engine_settings(session: "SparkSession") -> dict[str, str]:
    """Return the SQL settings of a session, on which the results and plans of queries may depend."""
    settings = dict(session.conf.getAll)
    return {
        name: value
        for name, value in settings.items()
        if name.startswith("spark.sql.") and name != _WAREHOUSE
    }


def pin(session: "SparkSession") -> None:
    """Set the pinned settings. A session that has not been started will have them."""
    lazy = on_demand(session)
    if lazy is not None and not lazy.started:
        return
    for name, value in PINNED.items():
        session.conf.set(name, value)


def _is_connect(session: object) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect.")


def _shown(remote: str) -> str:
    """Return a Spark Connect address without its parameters, which may hold a token."""
    return remote.partition(";")[0].rstrip("/")


# --- tags -----------------------------------------------------------------------------------------------


@contextmanager
def tagged(session: "SparkSession", tag: str) -> Iterator[None]:
    """Tag every job that this thread starts in the block, so that `interrupt` finds it.

    If Spark runs in this process, the tags of a session belong to one thread, and `interruptTag` in another
    thread does not find them. So in that case this function sets tags of the Spark context.
    """
    lazy = on_demand(session)
    if lazy is not None:
        with lazy.tagged(tag):
            yield
        return
    add_tag(session, tag)
    try:
        yield
    finally:
        remove_tag(session, tag)


def add_tag(session: "SparkSession", tag: str) -> None:
    """Tag the jobs that this thread starts from now on."""
    if _is_connect(session):
        session.addTag(tag)
    else:
        session.sparkContext.addJobTag(tag)


def remove_tag(session: "SparkSession", tag: str) -> None:
    """Remove a tag of this thread."""
    if _is_connect(session):
        session.removeTag(tag)
    else:
        session.sparkContext.removeJobTag(tag)


def interrupt(session: "SparkSession", tag: str) -> None:
    """Cancel the jobs that run under a tag, from any thread.

    A job that starts a moment later is not cancelled; the caller repeats the call if that matters. A job that
    is missed does no harm, because its output is never published.
    """
    lazy = on_demand(session)
    if lazy is not None and not lazy.started:
        return
    session = started_session(session)
    if _is_connect(session):
        session.interruptTag(tag)
    else:
        session.sparkContext.cancelJobsWithTag(tag)


def is_local(spark: "SparkSession") -> bool:
    """Return whether Spark's workers run on this machine and can read its files. This starts no Spark."""
    lazy = on_demand(spark)
    if lazy is not None:
        return lazy.settings.local
    return not _is_connect(spark) and str(spark.sparkContext.master).startswith("local")


def parallelism(spark: "SparkSession") -> int:
    """Return how many tasks Spark can run at the same time, which is normally its number of cores.

    This does not start Spark if it will run on this machine.
    """
    lazy = on_demand(spark)
    if lazy is not None and not lazy.started and lazy.settings.cores:
        return lazy.settings.cores
    spark = started_session(spark)
    if _is_connect(spark):
        return int(spark.conf.get("spark.default.parallelism", "2") or 2)
    return int(spark.sparkContext.defaultParallelism)
