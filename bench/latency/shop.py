"""The pipeline of the bench, as a user writes it, and the files that arrive.

Files are moved into their folder when they are complete, so the source does not wait until they settle.
"""

import json
import random
from pathlib import Path

PIPELINE = '''\
import tidemill as tm

shop = tm.Pipeline("shop", home="home")
orders = shop.dataset("orders", "id BIGINT, cust BIGINT, amount DECIMAL(10,2), day DATE")
customers = shop.dataset("customers", "id BIGINT, region STRING", key="id")
shop.source(orders, tm.folder("landing/orders/*.json", settle_s=0))
shop.source(customers, tm.folder("landing/customers/*.csv"))
shop.view(
    "revenue",
    """SELECT c.region, o.day, count(*) AS n, sum(o.amount) AS total
    FROM orders o JOIN customers c ON o.cust = c.id WHERE o.amount > 0 GROUP BY c.region, o.day""",
)
'''

PIPELINE_WITH_ARC = '''\
import tidemill as tm

shop = tm.Pipeline("shop", home="home")
raw = shop.dataset("raw", "id BIGINT, cust BIGINT, amount DECIMAL(10,2), day DATE")
customers = shop.dataset("customers", "id BIGINT, region STRING", key="id")
shop.source(raw, tm.folder("landing/orders/*.json", settle_s=0))
shop.source(customers, tm.folder("landing/customers/*.csv"))


@shop.arc(reads=raw, writes="orders")
def clean(df):
    return df.where("amount > 0")


shop.view(
    "revenue",
    """SELECT c.region, o.day, count(*) AS n, sum(o.amount) AS total
    FROM orders o JOIN customers c ON o.cust = c.id GROUP BY c.region, o.day""",
)
'''

CUSTOMERS = 1_000


class Shop:
    """A folder with the pipeline and its landing folders."""

    def __init__(self, folder: Path, pipeline: str = PIPELINE) -> None:
        self.folder = folder
        self._chance = random.Random(7)
        self._files = 0
        (folder / "landing" / "orders").mkdir(parents=True)
        (folder / "landing" / "customers").mkdir()
        (folder / "pipeline.py").write_text(pipeline)
        (folder / "tidemill.toml").write_text('pipeline = "pipeline.py:shop"\n')
        rows = "".join(f"{number},region {number % 20}\n" for number in range(CUSTOMERS))
        (folder / "landing" / "customers" / "customers.csv").write_text(f"id,region\n{rows}")

    def arrive(self, rows: int) -> None:
        """Let one file of orders arrive, complete at once."""
        first, self._files = self._files * rows, self._files + 1
        target = self.folder / "landing" / "orders" / f"{self._files:06}.json"
        hidden = self.folder / f"{self._files:06}.part"
        with hidden.open("w") as file:
            for number in range(first, first + rows):
                order = {
                    "id": number,
                    "cust": self._chance.randrange(CUSTOMERS),
                    "amount": self._chance.randrange(-100, 10_000) / 100,
                    "day": f"2026-{self._chance.randrange(1, 13):02}-{self._chance.randrange(1, 29):02}",
                }
                file.write(json.dumps(order) + "\n")
        hidden.replace(target)
