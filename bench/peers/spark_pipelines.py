"""Spark Declarative Pipelines: a materialized view, refreshed.

A refresh truncates the view's table and writes it again. The server (Spark Connect, `local[2]`) is warm. The
graph is registered for each refresh, as `spark-pipelines run` does. The time in which that command and Spark
start is not counted.
"""

import os
import warnings
from pathlib import Path
from typing import Any

from bench.answering import answer, timed
from bench.machine import versions
from bench.peers.spark_session import CONF

os.environ["SPARK_LOCAL_HOSTNAME"] = "localhost"


class Pipelines:
    def open(self, memory: str, folder: str) -> dict[str, Any]:
        from pyspark.sql import SparkSession

        self.folder = folder
        conf = {**CONF, "spark.driver.memory": memory}
        kept = {"spark.local.dir": f"{folder}/local", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
        conf_map: dict[str, Any] = {**conf, **kept}
        # The session sets settings of the server again, which is refused although the server has them.
        warnings.filterwarnings("ignore", "Failed to set", UserWarning)
        self.spark = SparkSession.builder.remote("local[2]").config(map=conf_map).getOrCreate()
        return {"remote": "local[2]", **conf}

    def refresh(self, tables: dict[str, str], ddl: dict[str, str], sql: str) -> float:
        """Read, compute and write once; return the seconds."""
        return timed(lambda: self._refresh(tables, ddl, sql))

    def _refresh(self, tables: dict[str, str], ddl: dict[str, str], sql: str) -> None:
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

        views = "".join(
            f"CREATE TEMPORARY VIEW {name} AS SELECT {_columns(columns)} FROM parquet.`{tables[name]}`;\n"
            for name, columns in ddl.items()
        )
        graph = create_dataflow_graph(self.spark, "spark_catalog", "default", {})
        registry = SparkConnectGraphElementRegistry(self.spark, graph)
        registry.register_sql(f"{views}CREATE MATERIALIZED VIEW kept AS {sql};", Path("view.sql"))
        events = start_run(
            self.spark,
            graph,
            full_refresh=[],
            full_refresh_all=False,
            refresh=[],
            dry=False,
            storage=f"file://{self.folder}/pipeline",
        )
        messages = [
            str(event["pipeline_event_result"].event.message)
            for event in events
            if "pipeline_event_result" in event
        ]
        if not any("COMPLETED" in message for message in messages[-1:]):
            raise RuntimeError(f"the refresh ended with: {messages[-3:]}")

    def rows(self) -> int:
        return int(self.spark.table("kept").count())


def _columns(ddl: str) -> str:
    return ", ".join(column.split()[0] for column in ddl.split(", "))


if __name__ == "__main__":
    peer = Pipelines()
    answer({"open": peer.open, "refresh": peer.refresh, "rows": peer.rows}, versions=versions("pyspark"))
