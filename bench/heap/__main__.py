"""The heap: push, peek and finish as the number of scheduled subscriptions grows, in the store and on S3.

Keys, targets and how to read them: bench/README.md.
"""

from bench import machine
from bench.heap import in_objects, in_store
from bench.report import Report, main


def measure(report: Report) -> None:
    with machine.scratch("heap") as folder:
        report.machine["disk"] = machine.sync_ms(folder)
        report.versions["ours"] = machine.versions("tidemill", "obstore", "msgspec")
        in_store.measure(report, folder)
    in_objects.measure(report)


if __name__ == "__main__":
    main("heap", __doc__, measure)
