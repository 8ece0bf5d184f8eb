"""The store: claim and complete compared with hand-written SQL, group commit, fail-over of a leader.

Keys, targets and how to read them: bench/README.md.
"""

from bench import machine
from bench.report import Report, main
from bench.store import claims, failover, group_commit
from tests.servers.postgres import PostgresServer, find_binaries
from tests.servers.process import ServerUnavailable


def measure(report: Report) -> None:
    try:
        find_binaries()
    except ServerUnavailable as reason:  # now, not after everything else has been measured
        raise SystemExit(str(reason)) from None
    with machine.scratch("store") as folder:
        report.machine["disk"] = machine.sync_ms(folder)
        claims.sqlite(report, folder)
        group_commit.measure(report, folder)
        failover.measure(report, folder)
    with PostgresServer(durable=True) as server:
        claims.postgres(report, server, connections=1)
        claims.postgres(report, server, connections=4)


if __name__ == "__main__":
    main("store", __doc__, measure)
