"""Gaps: a report over 100,000 lots, and discovery in a bucket of 100,000 files, of which 10 are new.

Keys, targets and how to read them: bench/README.md.
"""

from bench import machine
from bench.gaps import listing, lots
from bench.report import Report, main


def measure(report: Report) -> None:
    report.versions["ours"] = machine.versions("tidemill", "obstore", "msgspec")
    with machine.scratch("gaps") as folder:
        report.machine["disk"] = machine.sync_ms(folder)
        lots.measure(report, folder)
        listing.measure(report, folder)


if __name__ == "__main__":
    main("gaps", __doc__, measure)
