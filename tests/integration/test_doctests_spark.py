"""The examples in docstrings that use a Spark session."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.doctests import examples_of, modules_with_examples, run_example

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_examples_with_spark_print_what_they_say(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = [test for module in modules_with_examples() for test in examples_of(module, with_spark=True)]
    assert examples
    for example in examples:
        report = run_example(example, {"spark": spark})
        assert not report, report
