"""Durable futures in a few lines; docs/tutorial/futures.md continues from here.

python examples/01_futures.py
"""

# region: readme
import tidemill as tm


def fetch(day: int) -> list[int]:
    return [day * 100 + n for n in range(5)]


def report(days: list[list[int]]) -> str:
    return f"{len(days)} days, {sum(map(sum, days)):,} in all"


with tm.connect(home="tidemill-home", workers=2) as client:
    days = client.map(fetch, range(7))  # seven durable calls; two run at a time
    week = client.submit(report, days, retries=2)  # runs when all seven have their results
    print(week.result())
# endregion
