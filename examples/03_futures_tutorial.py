"""The code of docs/tutorial/futures.md, in its order; the tutorial explains it.

python examples/03_futures_tutorial.py
"""

# region: functions
import tidemill as tm

HOME = "tidemill-home"


def fetch(day: int) -> list[int]:
    """The amounts of one day's orders."""
    return [day * 100 + n for n in range(5)]


def total(amounts: list[int]) -> int:
    return sum(amounts)


def report(totals: list[int]) -> str:
    return f"{len(totals)} days, {sum(totals):,} in all"


# endregion


# region: classes
class Register:
    """It lives on one worker and keeps its state there."""

    def __init__(self) -> None:
        self.sales: list[int] = []

    def sell(self, amount: int) -> int:
        self.sales.append(amount)
        return sum(self.sales)


# endregion

with tm.connect(home=HOME, workers=2) as client:
    # region: submit
    monday = client.submit(fetch, 0)
    print(monday.result())
    # endregion

    # region: depend
    totals = [client.submit(total, client.submit(fetch, day)) for day in range(3)]
    days = client.submit(report, totals)
    print(days.result())
    print(days.lineage())
    # endregion

    # region: many
    squares = client.map(lambda x: x * x, range(1_000))
    print(sum(client.gather(squares)))
    # endregion

    # region: fail
    wrong = client.submit(total, ["three", "four"], retries=1)
    after = client.submit(report, [wrong])
    print(repr(wrong.exception()))
    print(type(after.exception()).__name__)
    # endregion

    # region: once
    first = client.submit(report, totals, key="report/2026-01-05")
    second = client.submit(report, totals, key="report/2026-01-05")
    print(first == second)
    # endregion

    # region: actor
    register = client.actor(Register)
    print([register.sell(amount).result() for amount in (3, 4, 5)])
    # endregion

# region: leave
with tm.connect(home=HOME) as client:  # no worker is running
    later = client.submit(total, client.submit(fetch, 6))
    print(later.state)
    note = later.id.hex()
# endregion

# region: return
with tm.connect(home=HOME, workers=1) as client:
    print(client.future(note).result())
# endregion
