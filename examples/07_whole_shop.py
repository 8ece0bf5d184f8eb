"""A shop that uses most of Tidemill: sources, an arc, checks, views over views, corrections."""

from pathlib import Path

import tidemill as tm

landing = Path("landing").resolve()
landing.mkdir(exist_ok=True)
(landing / "a.json").write_text('{"id": 1, "cust": 1, "amount": 10}\n{"id": 2, "cust": 2, "amount": "x"}\n')
(landing / "b.csv").write_text("id,cust,amount\n3,2,7\n4,9,5\n5,1,-2\n")

shop = tm.Pipeline("shop", home=Path("shop-home").resolve(), spark="local[2]")
customers = shop.dataset("customers", "id BIGINT, region STRING", key="id")
orders = shop.dataset("orders", "id BIGINT, cust BIGINT, amount BIGINT, _file STRING")
shop.source(orders, tm.folder(landing / "*.json", settle_s=0, file_column="_file"))
shop.source(orders, tm.folder(landing / "*.csv", settle_s=0, file_column="_file"), name="csv")


@shop.arc(reads=orders, writes="clean", checks=[tm.expect("amount > 0", on_fail="drop")])
def clean(df):
    return df.dropDuplicates(["id"])


shop.view("known", "SELECT o.*, c.region FROM clean o JOIN customers c ON o.cust = c.id")
shop.view("strays", "SELECT id FROM clean WHERE cust NOT IN (SELECT id FROM customers)")
revenue = shop.view("revenue", "SELECT region, sum(amount) AS total FROM known GROUP BY region")
best = shop.view("best", "SELECT region, total FROM revenue ORDER BY total DESC LIMIT 1")


def show(title: str) -> None:
    print(title, sorted(map(tuple, revenue.df().collect())), *map(tuple, best.df().collect()))


customers.upsert([(1, "north"), (2, "south")])
shop.run(select="source:*")  # only take in the files
print("arrived", orders.position, "lots; in quarantine:", shop["orders_quarantine"].df().count())
shop.run()
show("first")
before = revenue.position

customers.upsert([(9, "south"), (1, "south")])  # a stray order is known now, and a customer has moved
shop.run()
show("moved")
print(
    "changes",
    sorted((row["region"], row["total"], row["_weight"]) for row in revenue.changes(after=before).collect()),
)

(lot,) = [lot.lot for lot in orders.lots() if lot.rows == 1]
orders.replace(lot, [(1, 1, 100, "corrected by hand")])  # the arc makes its lot again, and views follow
shop.run()
show("corrected")
