"""Structured Streaming: the same query over one table with inserts alone; the other tables never change.

It supports no more than this: it accepts no deletes, and a join with a static table stores no state, so
orders cannot follow a customer who moves. A file per step is moved into a folder that a query watches;
changed groups are written as Parquet (mode `update`, `foreachBatch`).

Its time is Spark's own figure for the trigger (`triggerExecution`), without the wait for the next poll of the
folder. State is in memory (`HDFSBackedStateStoreProvider`, the default: there are few groups), batches
without data are off.
"""

import shutil
import time
from pathlib import Path
from typing import Any

from bench.answering import answer
from bench.machine import versions
from bench.peers.spark_session import opened

MORE = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}


class Streaming:
    def open(self, memory: str, folder: str) -> dict[str, Any]:
        self.folder = folder
        self.spark, flags = opened(memory, folder, **MORE)
        return flags

    def start(
        self, base: list[str], table: str, others: dict[str, str], ddl: dict[str, str], sql: str
    ) -> float:
        """Start the query over the base of a table and the other tables; return the seconds it takes."""
        self.arriving = f"{self.folder}/arriving"
        Path(self.arriving).mkdir()
        for number, path in enumerate(base):
            shutil.copy(path, f"{self.arriving}/base-{number:02}.parquet")
        for name, path in others.items():
            self.spark.read.schema(ddl[name]).parquet(path).createOrReplaceTempView(name)
        stream = self.spark.readStream.schema(ddl[table]).parquet(self.arriving)
        stream.createOrReplaceTempView(table)
        out = f"{self.folder}/changed"

        def keep(batch: Any, number: int) -> None:
            batch.write.parquet(f"{out}/{number}")

        began = time.perf_counter()
        writer = self.spark.sql(sql).writeStream.outputMode("update").foreachBatch(keep)
        self.query = writer.option("checkpointLocation", f"{self.folder}/checkpoint").start()
        self.query.processAllAvailable()
        return time.perf_counter() - began

    def step(self, path: str) -> dict[str, float]:
        """Add one file."""
        beside = Path(self.folder) / "next.parquet"
        shutil.copy(path, beside)
        began = time.perf_counter()
        beside.rename(f"{self.arriving}/{Path(path).parent.name}.parquet")
        self.query.processAllAvailable()
        wall_ms = (time.perf_counter() - began) * 1e3
        progress = [entry for entry in self.query.recentProgress if entry["numInputRows"]][-1]
        return {"ms": float(progress["durationMs"]["triggerExecution"]), "wall_ms": wall_ms}

    def end(self) -> None:
        self.query.stop()
        self.spark.stop()


if __name__ == "__main__":
    peer = Streaming()
    answer(
        {"open": peer.open, "start": peer.start, "step": peer.step, "end": peer.end},
        versions=versions("pyspark"),
    )
