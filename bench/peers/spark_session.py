"""A plain Spark session for peers: two cores, and few partitions, because there are two cores.

Adaptive execution is on, as by default. So are both compilers of Java: C1 alone, which suits a Spark that
mostly passes rows to Python, makes a recompute 1.5 times as slow.
"""

import os
from typing import Any

from pyspark.sql import SparkSession

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
}


def opened(memory: str, folder: str, **more: str) -> tuple[SparkSession, dict[str, Any]]:
    """Return a session and its flags."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = {**CONF, "spark.driver.memory": memory, **more}
    kept = {"spark.local.dir": f"{folder}/local", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
    conf_map: dict[str, Any] = {**conf, **kept}
    session = SparkSession.builder.master("local[2]").appName("peer").config(map=conf_map).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session, {"master": "local[2]", **conf}
