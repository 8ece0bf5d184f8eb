"""Run queries that are expected to raise errors: without a log of each error, and without slow conversions.

pyspark prints each error as JSON to stderr. And to choose the class of a Python error, it asks Java about a
dozen classes, one by one. For each of them, py4j looks up its own Java function again, in four further calls.
So an error takes longer than the query that raises it.
"""

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_lock = threading.Lock()
_before: list[tuple[list[bool], Callable[..., Any] | None]] = []  # for each block, what it found


@contextmanager
def expecting_errors() -> Iterator[None]:
    """Silence pyspark's error log inside the block, and convert errors faster.

    Blocks may overlap, also in different threads: the last one restores the log.
    """
    from pyspark.logger import PySparkLogger

    java_gateway = _java_gateway()
    # Use pyspark's own function: a plain logger of that name would not accept pyspark's messages.
    loggers = [PySparkLogger.getLogger(name) for name in _QUERY_LOGGERS]
    with _lock:
        check = None if java_gateway is None else java_gateway.is_instance_of
        _before.append(([logger.disabled for logger in loggers], check))
        for logger in loggers:
            logger.disabled = True
        if len(_before) == 1 and check is not None:
            java_gateway.is_instance_of = _remembering(check)
    try:
        yield
    finally:
        with _lock:
            disabled, check = _before.pop()  # the last entry is the state before the first block
            if not _before:
                for logger, was in zip(loggers, disabled, strict=True):
                    logger.disabled = was
                if check is not None:
                    java_gateway.is_instance_of = check


def _java_gateway() -> Any:
    """Return py4j's module; None in pyspark's client for Spark Connect, which has no py4j."""
    try:
        return importlib.import_module("py4j.java_gateway")
    except ImportError:
        return None


def _remembering(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return py4j's `is_instance_of`, which looks up the Java function only once for each gateway."""
    functions: dict[int, tuple[Any, Callable[[str, Any], bool]]] = {}

    def is_instance_of(gateway: Any, java_object: Any, java_class: Any) -> Any:
        if not isinstance(java_class, str):
            return check(gateway, java_object, java_class)
        if id(gateway) not in functions:
            functions[id(gateway)] = gateway, gateway.jvm.py4j.reflection.TypeUtil.isInstanceOf
        return functions[id(gateway)][1](java_class, java_object)

    return is_instance_of
