"""The archive of Spark's classes: when it is used, and that one process at a time makes it."""

import fcntl
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidemill.spark import class_archive


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment with a Java and a Spark of its own, and an empty folder for archives."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core.jar").write_bytes(b"1")
    return {
        "JAVA_HOME": str(tmp_path / "java"),
        "SPARK_HOME": str(tmp_path / "spark"),
        class_archive.SWITCH: str(tmp_path / "cache"),
    }


def archive(env: dict[str, str]) -> Path:
    path = class_archive.archive_path(env)
    assert path is not None
    return path


def test_an_archive_belongs_to_one_java_and_one_set_of_jars(env: dict[str, str], tmp_path: Path) -> None:
    first = archive(env)
    assert archive(env) == first
    (tmp_path / "spark" / "jars" / "more.jar").write_bytes(b"2")
    second = archive(env)
    assert second != first
    (tmp_path / "java" / "bin" / "java").write_text("#!/bin/sh\n# newer\n")
    assert archive(env) not in (first, second)


@pytest.mark.parametrize(
    ("change", "value"),
    [(class_archive.SWITCH, "off"), ("JAVA_HOME", "/nowhere"), ("SPARK_HOME", "/nowhere")],
)
def test_without_java_or_when_switched_off_there_is_none(
    env: dict[str, str], change: str, value: str
) -> None:
    changed = {**env, change: value}
    if change == "SPARK_HOME":
        assert class_archive.options(changed) == ""
    else:
        assert class_archive.archive_path(changed) is None
        assert not class_archive.make_in_background(changed)


def test_it_is_used_only_if_nobody_else_can_write_to_it(env: dict[str, str]) -> None:
    path = archive(env)
    assert class_archive.options(env) == "", "it does not exist yet"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"classes")
    path.chmod(0o600)
    assert class_archive.options(env) == "", "it may not be whole"
    path.with_suffix(".size").write_text("7")
    assert f"-XX:SharedArchiveFile={path}" in class_archive.options(env)
    path.write_bytes(b"class")
    assert class_archive.options(env) == "", "it was truncated"
    path.write_bytes(b"classes")
    path.chmod(0o620)
    assert class_archive.options(env) == ""
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert class_archive.options(env) == ""


def test_a_run_makes_it_once_in_the_background(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append((command, options)))
    assert class_archive.make_in_background(env)
    ((command, options),) = started
    assert command[:3] == ["nice", "-n", "19"]
    assert command[-1] == str(archive(env))
    assert options["start_new_session"]
    archive(env).parent.mkdir()
    archive(env).write_bytes(b"classes")
    archive(env).with_suffix(".size").write_text("7")
    assert not class_archive.make_in_background(env)


def test_one_process_makes_it_and_a_failure_leaves_nothing(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(env)
    made: list[int] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        made.append(0)
        assert options["env"][class_archive.SWITCH] == "off"
        if len(made) > 1:
            Path(command[4]).write_bytes(b"classes")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert not class_archive.make(path), "Java left no archive"
    assert [file.name for file in path.parent.iterdir()] == ["making"]
    with (path.parent / "making").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not class_archive.make(path)
    assert len(made) == 1
    for number in range(4):
        old = path.parent / f"spark-{number}.jsa"
        old.write_bytes(b"old")
        os.utime(old, (number, number))
    assert class_archive.make(path)
    assert path.read_bytes() == b"classes"
    assert path.stat().st_mode & 0o777 == 0o600
    kept = sorted(file.name for file in path.parent.glob("spark-*.jsa"))
    assert kept == sorted([path.name, "spark-2.jsa", "spark-3.jsa"])
    assert not class_archive.make(path), "it exists"
    path.write_bytes(b"cl")
    assert class_archive.make(path), "it is damaged"
    assert path.read_bytes() == b"classes"
