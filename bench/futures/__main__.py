"""Durable futures: throughput and round trip beside Ray and DBOS, a long queue, a large array between tasks.

Keys, targets and how to read them: bench/README.md.
"""

from bench import environment, machine
from bench.futures import arrays, queue, round_trip, throughput
from bench.report import Report, main


def measure(report: Report) -> None:
    peers = None
    if not report.quick or environment.made():
        peers = environment.python(report.say)
    report.flags["peers"] = "measured" if peers else "not installed, and a smoke test installs nothing"
    with machine.scratch("futures") as folder:
        report.machine["disk"] = machine.sync_ms(folder)
        throughput.beside_ray(report, folder, peers)
        throughput.beside_dbos(report, folder, peers)
        round_trip.measure(report, folder, peers)
        queue.memory(report, folder)
        queue.claim_rate(report, folder)
        arrays.measure(report, folder, peers)


if __name__ == "__main__":
    main("futures", __doc__, measure)
