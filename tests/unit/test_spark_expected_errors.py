"""Blocks that expect errors: they are not logged, and their classes are looked up once."""

from types import SimpleNamespace
from typing import Any

from pyspark.logger import PySparkLogger

from tidemill.spark.expected_errors import expecting_errors

LOGGER = "SQLQueryContextLogger"


class Lookups:
    """The names that py4j looks up in Java."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def py4j(self) -> Any:
        self.count += 1
        util = SimpleNamespace(isInstanceOf=lambda name, value: name == value)
        return SimpleNamespace(reflection=SimpleNamespace(TypeUtil=util))


def checks() -> int:
    """Check two classes like pyspark; return how often Java's function was looked up."""
    from py4j.java_gateway import is_instance_of

    lookups = Lookups()
    gateway = SimpleNamespace(jvm=lookups)
    assert is_instance_of(gateway, "ParseException", "ParseException")
    assert not is_instance_of(gateway, "ParseException", "AnalysisException")
    return lookups.count


def test_blocks_that_overlap_look_up_classes_once_and_log_no_errors() -> None:
    def silent() -> bool:
        return bool(PySparkLogger.getLogger(LOGGER).disabled)

    was_silent = silent()
    assert checks() == 2
    first, second = expecting_errors(), expecting_errors()
    first.__enter__()
    second.__enter__()
    assert checks() == 1
    assert silent()
    first.__exit__(None, None, None)
    assert checks() == 1, "the second block has not ended"
    assert silent()
    second.__exit__(None, None, None)
    assert checks() == 2
    assert silent() == was_silent
