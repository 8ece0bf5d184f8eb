"""The environment of peers from PyPI: `.venv-bench`, created when a bench needs it.

Peers are not installed in `.venv`, so that their requirements cannot affect Tidemill. Packages that both use
(a driver, numpy) have the same version: bench/constraints.txt is compiled under the repository's
constraints.txt.
"""

import hashlib
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from bench.side import ROOT

FOLDER = ROOT / ".venv-bench"
REQUIREMENTS = ROOT / "bench" / "requirements.txt"
CONSTRAINTS = ROOT / "bench" / "constraints.txt"


def made(folder: Path = FOLDER) -> bool:
    """Return whether an environment exists, even an outdated one. A smoke test does not create one."""
    return (folder / "installed").is_file()


def python(
    say: Callable[[str], None],
    *,
    folder: Path = FOLDER,
    requirements: Path = REQUIREMENTS,
    constraints: Path = CONSTRAINTS,
) -> Path:
    """Return the interpreter with all peers installed. Rebuild it if the requirements have changed."""
    interpreter = folder / "bin" / "python"
    wanted = _digest(requirements, constraints)
    stamp = folder / "installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return interpreter
    say(f"making {folder.name} from {requirements.name}")
    venv.EnvBuilder(clear=True).create(folder)
    command = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet"]
    command += ["--disable-pip-version-check", "-r", requirements, "-c", constraints]
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)
    stamp.write_text(wanted)
    return interpreter


def _digest(*files: Path) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
