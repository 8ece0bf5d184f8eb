"""Durable futures: compared with Ray and DBOS, a long queue, a large array between tasks.

Keys, targets and how to read them: bench/README.md.
"""

from bench import environment, machine
from bench.futures import arrays, queue, round_trip, sides, throughput
from bench.report import Report, main


def measure(report: Report) -> None:
    peers = None
    if not report.quick or environment.made():
        peers = environment.python(report.say)
    report.flags["peers"] = "measured" if peers else "not installed, and a smoke test installs nothing"
    with machine.scratch("futures") as folder:
        report.machine["disk"] = machine.sync_ms(folder)
        with sides.ours(report, folder / "ray") as ours, sides.ray(report, peers) as ray:
            throughput.beside_ray(report, ours, ray)
            round_trip.measure(report, ours, ray)
            arrays.measure(report, ours, ray)
        throughput.beside_dbos(report, folder, peers)
        queue.memory(report, folder)
        queue.claim_rate(report, folder)


if __name__ == "__main__":
    main("futures", __doc__, measure)
