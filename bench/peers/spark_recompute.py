"""Plain Spark: the whole query over the whole tables, and its result written, every time.

Every view is also compared with it: `result` writes the query's result over the current tables.
"""

import shutil
from typing import Any

from bench.answering import answer, timed
from bench.machine import versions
from bench.peers.spark_session import opened


class Recompute:
    def open(self, memory: str, folder: str) -> dict[str, Any]:
        self.folder = folder
        self.spark, flags = opened(memory, folder)
        return flags

    def run(self, tables: dict[str, str], ddl: dict[str, str], sql: str) -> float:
        """Read, compute and write once; return the seconds."""
        path = f"{self.folder}/out"
        shutil.rmtree(path, ignore_errors=True)
        return timed(lambda: self.result(tables, ddl, sql, path))

    def result(self, tables: dict[str, str], ddl: dict[str, str], sql: str, path: str) -> None:
        for name, columns in ddl.items():
            self.spark.read.schema(columns).parquet(tables[name]).createOrReplaceTempView(name)
        self.spark.sql(sql).write.parquet(path)


if __name__ == "__main__":
    peer = Recompute()
    answer(
        {"open": peer.open, "run": peer.run, "result": peer.result}, versions=versions("pyspark", "pyarrow")
    )
