"""The daemon of Spark's Python workers (`spark.python.daemon.module`), with what they import already loaded.

Each worker is a fork of the daemon. Without this, each one loads pyarrow, pandas and the kernels again, which
takes longer than the work that tests give it.
"""

import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.parquet  # noqa: F401
from pyspark.daemon import manager
from pyspark.sql.pandas import serializers  # noqa: F401

import tidemill.views.spark.tasks  # noqa: F401

if __name__ == "__main__":
    manager()
