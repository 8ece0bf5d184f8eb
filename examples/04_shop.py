"""A pipeline: files become lots, an arc cleans them, a view follows.

Its home and its files are next to this file.
"""

import json
import shutil
from pathlib import Path

HERE = Path(__file__).parent
for name in ("shop-home", "landing"):
    shutil.rmtree(HERE / name, ignore_errors=True)
(HERE / "landing").mkdir()


def arrive(name: str, *orders: tuple[int, int, float, str]) -> None:
    """Write a file next to the folder, then move it into the folder in one step."""
    columns = ("id", "cust", "amount", "day")
    lines = [json.dumps(dict(zip(columns, order, strict=True))) for order in orders]
    (HERE / name).write_text("\n".join(lines) + "\n")
    (HERE / name).rename(HERE / "landing" / name)


# region: declare
import tidemill as tm

shop = tm.Pipeline("shop", home="shop-home", spark="local[2]")

orders = shop.dataset("orders", "id BIGINT, cust BIGINT, amount DECIMAL(10,2), day DATE")
customers = shop.dataset("customers", "id BIGINT, region STRING", key="id")

shop.source(orders, tm.folder("landing/*.json", settle_s=0))  # files become lots; each file is read once


@shop.arc(reads=orders, writes="clean_orders", partition_by="day", retries=3)
def clean(df):  # a Spark DataFrame: one lot, or one part of it
    return df.where("amount > 0")


revenue = shop.view(
    "revenue",
    """SELECT c.region, o.day, count(*) AS n, sum(o.amount) AS total
       FROM clean_orders o JOIN customers c ON o.cust = c.id
       GROUP BY c.region, o.day""",
)
# endregion

# region: run
customers.upsert([(1, "north"), (2, "south")])
arrive("monday.json", (1, 1, 9.99, "2026-03-02"), (2, 2, 20.00, "2026-03-02"), (3, 1, -1.00, "2026-03-02"))

report = shop.run()  # catch up
print(report.ok)
print(sorted(map(tuple, revenue.df().collect())))
# endregion

# region: again
before = revenue.position
arrive("tuesday.json", (4, 1, 5.01, "2026-03-02"), (5, 2, 7.50, "2026-03-03"))
shop.run()

for row in sorted(map(tuple, revenue.changes(after=before).drop("_position", "_inputs").collect()), key=str):
    print(row)  # region, day, n, total and weight
# endregion

# region: once
receipt = orders.append([(6, 2, 1.00, "2026-03-03")], producer="till-7", seq=42)
again = orders.append([(6, 2, 1.00, "2026-03-03")], producer="till-7", seq=42)
print(receipt == again)
# endregion

# region: wrong
try:
    orders.append([{"id": 7, "amount": "a lot"}])
except tm.TidemillError as error:
    print(error)
# endregion

shop.close()
