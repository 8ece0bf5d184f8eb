"""DuckDB: the whole query over its own tables, and its result written as Parquet, every time.

Its tables are in a database file, which is faster to read than Parquet, or they are the Parquet files that
all sides read (`read`). It uses two threads.
"""

from typing import Any

import duckdb

from bench.answering import Command, answer, timed


class Recompute:
    def open(self, memory: str, folder: str) -> dict[str, Any]:
        self.folder = folder
        flags = {"threads": 2, "memory_limit": memory.upper() + "B", "temp_directory": f"{folder}/spilled"}
        self.base = duckdb.connect(f"{folder}/tables.duckdb", config=flags)
        return {**flags, "temp_directory": "on the same disk"}

    def load(self, tables: dict[str, str]) -> float:
        def every() -> None:
            for name, path in tables.items():
                self.base.execute(f"CREATE OR REPLACE TABLE {name} AS FROM read_parquet('{path}/*.parquet')")

        return timed(every)

    def read(self, tables: dict[str, str]) -> None:
        """Let queries read the Parquet files themselves."""
        for name, path in tables.items():
            self.base.execute(f"CREATE OR REPLACE VIEW {name} AS FROM read_parquet('{path}/*.parquet')")

    def run(self, sql: str) -> float:
        """Compute and write once; return the seconds."""
        return timed(lambda: self.base.execute(f"COPY ({sql}) TO '{self.folder}/out.parquet'"))


if __name__ == "__main__":
    peer = Recompute()
    commands: dict[str, Command] = {"open": peer.open, "load": peer.load, "read": peer.read, "run": peer.run}
    answer(commands, versions={"duckdb": duckdb.__version__})
