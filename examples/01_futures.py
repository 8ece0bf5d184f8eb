"""Durable futures: submit functions to local workers, depend on results, survive failures.

python examples/01_futures.py
"""

import tempfile

import tidemill as tm


def fetch(day: int) -> list[int]:
    """Pretend to fetch the amounts of one day's orders."""
    return [day * 100 + n for n in range(5)]


def total(amounts: list[int]) -> int:
    return sum(amounts)


def report(totals: list[int]) -> str:
    return f"{len(totals)} days, {sum(totals):,} in all"


def divide(a: int, b: int) -> float:
    return a / b


class Register:
    """An actor: it lives on one worker and keeps its state there."""

    def __init__(self) -> None:
        self.sales: list[int] = []

    def sell(self, amount: int) -> int:
        self.sales.append(amount)
        return sum(self.sales)


with tempfile.TemporaryDirectory() as home, tm.connect(home=home, workers=2) as client:
    # Every submission is durable when it returns; a future among the arguments stands for its result.
    totals = [client.submit(total, client.submit(fetch, day)) for day in range(7)]
    week = client.submit(report, totals, retries=2)
    print(week.result())
    print(week.lineage())

    # Many at once, in batches; results in order, or as they come.
    squares = client.map(lambda x: x * x, range(1_000))
    print(sum(client.gather(squares)))
    print(next(client.as_completed(squares)).state)

    # An exception is raised where the result is asked for, with the remote traceback.
    try:
        client.submit(divide, 1, 0).result()
    except ZeroDivisionError as error:
        print(f"{error!r}, raised in {error.__notes__[0].splitlines()[-3].strip()}")

    register = client.actor(Register)
    print([register.sell(amount).result() for amount in (3, 4, 5)])
