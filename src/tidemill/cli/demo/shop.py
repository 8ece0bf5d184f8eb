"""The pipeline of `tidemill demo`: read orders from files, clean them, and sum them up by region and day."""

import tidemill as tm

shop = tm.Pipeline("shop", home="shop-home", spark="local[2]")

orders = shop.dataset("orders", "id BIGINT, customer BIGINT, amount DECIMAL(10,2), day DATE")
customers = shop.dataset("customers", "id BIGINT, region STRING", key="id")

shop.source(orders, tm.folder("landing/*.json", settle_s=0, max_files=4))


@shop.arc(reads=orders, writes="clean_orders", partition_by="day")
def clean(df):  # type: ignore[no-untyped-def] # as users write it
    """Keep only the orders with a positive amount."""
    return df.where("amount > 0")


revenue = shop.view(
    "revenue",
    """SELECT c.region, o.day, count(*) AS orders, sum(o.amount) AS total
       FROM clean_orders o JOIN customers c ON o.customer = c.id
       GROUP BY c.region, o.day""",
)
