"""Start Spark faster with an archive of its classes (ADR 61).

Loading and verifying the classes of Spark takes more than half of the CPU time of its start. Java can write
the classes that a process has loaded into a file, and map that file in later starts (application class-data
sharing). `options` returns the Java options for that, if there is an archive.

The first run on a machine starts `python -m tidemill.spark.class_archive` in the background, at the lowest
priority (`make_in_background`). That process starts a small Spark, does what pipelines do most, and ends;
Java then writes the archive. The archive becomes visible under its name when it is complete.

An archive is safe to use at any time. Java compares it with its own version and with the jars, and loads the
classes as usual if anything differs. The name of the archive has a digest of both, so a new release of Java
or of Spark gets a new archive. An archive contains code. So it is used only if it belongs to this user, and
no other user may write to it.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidemill.errors import JavaMissing
from tidemill.spark.java import find_java

SWITCH: Final = "TIDEMILL_CLASS_ARCHIVE"
"""An environment variable: `off` to use and make no archive, or the folder for the archives."""

OFF: Final = "off"
OWN_OPTIONS: Final = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare")
"""Java options with which users manage an archive themselves."""

MOST_ARCHIVES: Final = 3
"""How many archives to keep, each of about 150 MB. Older ones are deleted."""

_QUIET: Final = "-Xlog:cds*=off -Xlog:class+path*=off -Xlog:dynamic*=off"
"""Says nothing about an archive that does not fit."""

_ENDS_S: Final = 1800.0
"""How long making an archive may take. It is work of the lowest priority, so a busy machine delays it."""


def options(env: Mapping[str, str]) -> str:
    """Return the Java options that use the archive; empty if there is none, or if it is switched off."""
    path = archive_path(env)
    usable = path is not None and _is_whole(path) and _is_ours(path)
    return f'"-XX:SharedArchiveFile={path}" {_QUIET}' if usable else ""


def archive_path(env: Mapping[str, str]) -> Path | None:
    """Return the path of the archive for this Java and this Spark; None if it is switched off."""
    folder = _folder(env)
    if folder is None:
        return None
    jars = _jars(env)
    try:
        java = find_java(env).resolve()
        parts = [*_stats([java, java.parents[1] / "lib" / "modules"]), *_stats(sorted(jars.glob("*.jar")))]
    except (JavaMissing, OSError):
        return None
    if not parts or jars.parent == jars:
        return None
    digest = hashlib.sha256("\n".join([str(java), str(jars), *parts]).encode()).hexdigest()[:20]
    return folder / f"spark-{digest}.jsa"


def _folder(env: Mapping[str, str]) -> Path | None:
    chosen = env.get(SWITCH, "")
    if chosen.lower() == OFF:
        return None
    if chosen:
        return Path(chosen).expanduser()
    cache = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else "")
    return Path(cache) / "tidemill" if cache else None


def _jars(env: Mapping[str, str]) -> Path:
    """Return the folder with the jars of the Spark that this process would start."""
    if env.get("SPARK_HOME"):
        return Path(env["SPARK_HOME"]) / "jars"
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def _stats(files: list[Path]) -> list[str]:
    """Return what changes when one of these files is replaced."""
    stats = [(file.name, file.stat()) for file in files if file.exists()]
    return [f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in stats]


def forget(path: Path) -> None:
    """Delete an archive with which Spark did not start."""
    path.unlink(missing_ok=True)
    _size_file(path).unlink(missing_ok=True)


def _size_file(path: Path) -> Path:
    return path.with_suffix(".size")


def _is_whole(path: Path) -> bool:
    """Return whether the archive has the size with which it was made: Java crashes on a truncated one."""
    try:
        return int(_size_file(path).read_text()) == path.stat().st_size
    except (OSError, ValueError):
        return False


def _is_ours(path: Path) -> bool:
    """Return whether this user alone can write to the archive and its folder."""
    try:
        for place in (path, path.parent):
            status = place.stat()
            if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return False
    except OSError:
        return False
    return True


def make_in_background(env: Mapping[str, str]) -> bool:
    """Start a process that makes the archive, unless there is one. Return whether the process was started.

    It outlives this process, has the lowest priority, and never reports an error: without an archive, Spark
    starts as before.
    """
    path = archive_path(env)
    if path is None or _is_whole(path) or sys.platform != "linux":
        return False
    command = ["nice", "-n", "19", sys.executable, "-m", "tidemill.spark.class_archive", str(path)]
    with contextlib.suppress(OSError):
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**env},
            start_new_session=True,
        )
        return True
    return False


def make(path: Path) -> bool:
    """Make an archive; return whether it was made. Return False if another process is making one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (path.parent / "making").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        if _is_whole(path):
            return False
        with tempfile.TemporaryDirectory(prefix="making-", dir=path.parent) as scratch:
            made = Path(scratch) / path.name
            command = [sys.executable, "-m", "tidemill.spark.class_archive", "--use", str(made), scratch]
            environment = {**os.environ, SWITCH: OFF, "TMPDIR": scratch}
            done = subprocess.run(command, check=False, env=environment, timeout=_ENDS_S)
            if done.returncode or not made.exists():
                return False
            made.chmod(0o600)
            forget(path)
            _size_file(path).write_text(str(made.stat().st_size))
            made.replace(path)
    _delete_old(path)
    return True


def _delete_old(newest: Path) -> None:
    archives = sorted(newest.parent.glob("spark-*.jsa"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in [file for file in archives if file != newest][MOST_ARCHIVES - 1 :]:
        forget(old)


def _use_spark(archive: str, folder: str) -> None:
    """Start Spark, do what pipelines do most, and end it: Java then writes the archive."""
    from pyspark.sql import functions as sf

    from tidemill.spark.java_process import end_java
    from tidemill.spark.sessions import SparkSettings, open_session

    java = f'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "-XX:ArchiveClassesAtExit={archive}" -Xlog:disable'
    conf = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": java}
    conf |= {"spark.sql.shuffle.partitions": "2", "spark.local.dir": folder}
    spark = open_session(SparkSettings(master="local[2]", app="tidemill-classes", conf=conf))
    rows = spark.range(1000).withColumn("v", (sf.col("id") % 3).cast("string"))
    for kind in ("parquet", "json", "csv"):
        rows.write.format(kind).save(f"{folder}/{kind}")
        back = spark.read.schema("id BIGINT, v STRING").format(kind).load(f"{folder}/{kind}")
        back.createOrReplaceTempView(kind)
        back.collect()
    texts = spark.read.text(f"{folder}/json")
    texts.select(sf.from_json("value", "id BIGINT, v STRING"), sf.col("_metadata.file_path")).collect()
    spark.sql("SELECT v, count(*) n, sum(id) s, max(id) m FROM parquet GROUP BY v HAVING n > 1").collect()
    rows.join(spark.table("csv"), "id").select(
        sf.xxhash64("id"), sf.udf(lambda x: x, "bigint")("id")
    ).collect()
    rows.mapInArrow(lambda batches: batches, rows.schema).toArrow()
    spark.stop()
    end_java(_ENDS_S)


def main(arguments: list[str]) -> int:
    """Make the archive that the first argument names."""
    if arguments[0] == "--use":
        _use_spark(*arguments[1:])
        return 0
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return 0 if make(Path(arguments[0])) else 1
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
