"""Other processes in tests: started as a module of the tests, talked to in lines of JSON."""

import json
import os
import subprocess
import sys
from typing import Any

from tidemill.crash import ENVIRONMENT
from tidemill.testing.threads import STUCK_S


class Process:
    """A process that tells one JSON object per line. Killed at the end if it has not ended."""

    def __init__(self, module: str, *arguments: object, crash: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, ENVIRONMENT: crash},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> Any:
        """What it tells next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=STUCK_S)[1]
        return json.loads(line)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Close its input, wait for its end; its exit code."""
        self.process.communicate(timeout=STUCK_S)
        return self.process.returncode

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=STUCK_S)
