"""The answers of Spark's analysis, kept from one process to the next.

Planning asks Spark for the types of queries, for the columns that functions return, and whether checks fit
their tables. The answer to a question depends only on the question, on the version and settings of Spark, and
on the code of Tidemill. So it is kept under a digest of all of these. Planning declarations that have not
changed then needs no Spark.

The settings of a session are themselves known only after Spark has been started. They depend on the settings
with which Spark is started, on its version, and on files and environment variables of this machine. So they
are kept too, under a digest of all of these.

The row of a pipeline has the answers of its last plans, the most recent last. When the row gets too long, it
loses the oldest ones.
"""

import functools
import hashlib
import importlib.metadata
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

MOST_BYTES: Final = 512 * 1024
"""The maximum size of a row. A transaction can be 1 MB long."""

MOST_ENGINES: Final = 8

Answer = TypeVar("Answer", str, list[str], list[tuple[str, str]])


class StoredAnalyses(msgspec.Struct, frozen=True, array_like=True):
    """A row.

    - engines: the version and the settings of Spark, by the digest of how it is started.
    - answers: encoded answers, by the digests of questions.
    """

    engines: dict[bytes, tuple[str, dict[str, str]]] = {}
    answers: dict[bytes, bytes] = {}


decoder = msgspec.msgpack.Decoder(StoredAnalyses)


class Analyses:
    """Remembers answers. Threads may share it.

    >>> analyses = Analyses()
    >>> analyses.get("how long is 'orders'?", lambda: str(len("orders")), str)
    '6'
    >>> analyses.get("how long is 'orders'?", lambda: "not asked again", str)
    '6'

    - load: returns the encoded row that was stored last; None if there is none.
    """

    def __init__(self, load: Callable[[], bytes | None] = lambda: None) -> None:
        self._load = load
        self._engines: dict[bytes, tuple[str, dict[str, str]]] = {}
        self._answers: dict[bytes, bytes] = {}
        self._is_loaded = False
        self._is_new = False
        self._lock = threading.RLock()

    def get(self, question: object, ask: Callable[[], Answer], kind: type[Answer]) -> Answer:
        """Return the answer to a question; ask it if it is new. Errors are not kept.

        - question: an object whose `repr` is the same in all processes.
        """
        digest = _digest(release_digest(), repr(question).encode())
        with self._lock:
            self._read()
            if digest in self._answers:
                raw = self._answers[digest] = self._answers.pop(digest)  # the most recent last
                return msgspec.msgpack.decode(raw, type=kind)
        answer = ask()
        with self._lock:
            self._answers[digest] = msgspec.msgpack.encode(answer)
            self._is_new = True
        return answer

    def engine(self, start: bytes) -> tuple[str, dict[str, str]] | None:
        """Return the version and settings of a Spark that is started in this way; None if it never was."""
        with self._lock:
            self._read()
            return self._engines.get(start)

    def keep_engine(self, start: bytes, version: str, settings: Mapping[str, str]) -> None:
        """Remember the version and settings of a Spark that has been started."""
        with self._lock:
            self._read()
            engine = (version, dict(settings))
            self._is_new |= self._engines.get(start) != engine
            self._engines.pop(start, None)
            self._engines[start] = engine

    def encoded(self) -> bytes | None:
        """Return the row to store; None if nothing is new since the last call."""
        with self._lock:
            if not self._is_new:
                return None
            self._is_new = False
            self._engines = dict(list(self._engines.items())[-MOST_ENGINES:])
            while (
                len(raw := msgspec.msgpack.encode(StoredAnalyses(self._engines, self._answers))) > MOST_BYTES
            ):
                self._answers = dict(list(self._answers.items())[1 + len(self._answers) // 4 :])
            return raw

    def _read(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        raw = self._load()
        if raw is not None:
            stored = decoder.decode(raw)
            self._engines, self._answers = dict(stored.engines), dict(stored.answers)


def start_digest(conf: Mapping[str, str], where: str) -> bytes | None:
    """Return a digest of everything that decides the settings of a Spark that this process would start.

    Return None if pyspark is not an installed package: then its version is known only after the start.
    """
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None
    variables = sorted(item for item in os.environ.items() if item[0].startswith(("SPARK_", "PYSPARK_")))
    folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    try:
        defaults = Path(folder, "spark-defaults.conf").read_text()
    except OSError:
        defaults = ""
    facts = (version, where, sorted(conf.items()), variables, defaults)
    return _digest(release_digest(), repr(facts).encode())


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()


@functools.cache
def release_digest() -> bytes:
    """Return a digest of the code that plans queries: all modules of Tidemill, and its parser's version."""
    digest = hashlib.blake2b(importlib.metadata.version("sqlglot").encode(), digest_size=16)
    for name, file in _modules(resources.files("tidemill"), ""):
        digest.update(name.encode() + b"\0" + file.read_bytes())
    return digest.digest()


def _modules(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _modules(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield path + entry.name, entry
