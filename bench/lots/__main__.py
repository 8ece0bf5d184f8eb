"""Lots: the cost of bookkeeping as lots accumulate, and a whole arc compared with a plain Spark loop.

Keys, targets and how to read them: bench/README.md.
"""

from bench import machine
from bench.lots import bookkeeping, plain_spark
from bench.report import Report, main


def measure(report: Report) -> None:
    report.versions = machine.versions("pyspark", "pyarrow")
    with machine.scratch("lots") as folder:
        report.machine["disk"] = machine.sync_ms(folder)
        bookkeeping.measure(report, folder / "books")
        plain_spark.measure(report, folder / "spark")


if __name__ == "__main__":
    main("lots", __doc__, measure)
