"""A whole pipeline under faults: `make soak`, or `python -m tests.soak --minutes 20`.

Senders feed a folder, a push endpoint, a topic and a keyed dataset. Three runners and two Spark workers
process the rows, on PostgreSQL and a real S3 server. Faults hit processes, servers, a disk, a clock and
connections while their targets hold claims or leases. At the end, an oracle that knows every row compares
every table and view. A last check looks for files, leases, heap items and futures that were left behind.
"""
