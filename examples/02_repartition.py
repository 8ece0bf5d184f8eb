"""Repartition a dataset that is larger than any one worker's memory.

Two workers hold orders, partitioned by day. The example partitions them by customer. It splits each partition
on the worker that holds it and stores every piece as a future. A task that requires as much memory as the
piece takes ownership of the piece for its worker. The old partition is deleted before the next one is split.

python examples/02_repartition.py
"""

import tempfile

import numpy as np

import tidemill as tm

DAYS, PARTS = 12, 4
ORDERS = 250_000  # a day: 4 MB
WORKER_RAM = "32MB"  # of each of two workers, all of it for results; the dataset has 46 MB


def load(day: int) -> np.ndarray:
    """Return one day's orders: (customer, amount)."""
    chance = np.random.default_rng(day)
    orders = np.empty(ORDERS, dtype=[("customer", "i8"), ("amount", "i8")])
    orders["customer"] = chance.integers(0, 100_000, ORDERS)
    orders["amount"] = chance.integers(1, 1_000, ORDERS)
    return orders


def split(orders: np.ndarray, parts: int) -> list[tm.Future[np.ndarray]]:
    """Cut a partition by customer; each piece becomes a future. Inside a task `connect()` is its client."""
    client = tm.connect()
    owner = orders["customer"] % parts
    return [client.put(orders[owner == part]) for part in range(parts)]


def take(piece_id: bytes) -> bool:
    """Move a piece to this worker. It gets the id, because a future as an argument becomes its value."""
    client = tm.connect()
    return client.take_ownership(client.future(piece_id))


def summary(pieces: list[np.ndarray]) -> tuple[int, int, set[int]]:
    """Return the number of rows, the amount, and the parts of the customers."""
    rows = sum(len(piece) for piece in pieces)
    amount = sum(int(piece["amount"].sum()) for piece in pieces)
    return rows, amount, {int(part) for piece in pieces for part in np.unique(piece["customer"] % PARTS)}


with tempfile.TemporaryDirectory() as home, tm.connect(home=home) as client:
    for _ in range(2):
        client.start_worker(slots=1, ram=WORKER_RAM, results_ram=WORKER_RAM)

    days = client.map(load, range(DAYS), ram="12MB")
    before = client.gather(client.map(lambda orders: (len(orders), int(orders["amount"].sum())), days))
    by_customer: list[list[tm.Future[np.ndarray]]] = [[] for _ in range(PARTS)]

    for day in days:
        pieces = client.submit(split, day, PARTS, near=day).result()
        # A worker that took several pieces may be full; a retry then runs on the other worker.
        moves = [client.submit(take, piece.id, ram=piece.size_in_bytes, retries=5) for piece in pieces]
        client.gather(moves)
        client.delete(moves)
        client.delete(day)
        for part, piece in zip(by_customer, pieces, strict=True):
            part.append(piece)

    after = client.gather([client.submit(summary, part) for part in by_customer])
    size = sum(piece.size_in_bytes for part in by_customer for piece in part)
    print(f"{size / 2**20:.0f} MiB in {PARTS} parts by customer, on workers with {WORKER_RAM} each")
    assert sum(rows for rows, _, _ in after) == sum(rows for rows, _ in before)
    assert sum(amount for _, amount, _ in after) == sum(amount for _, amount in before)
    assert [parts for _, _, parts in after] == [{part} for part in range(PARTS)]
    print("every order is in the part of its customer, and none was lost")
