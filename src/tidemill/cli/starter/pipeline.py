"""Orders arrive as files, an arc cleans them, and the views in the folder `views` follow."""

import tidemill as tm

pipeline = tm.Pipeline("starter", home="starter-home")

orders = pipeline.dataset(
    "orders",
    "id BIGINT, customer BIGINT, amount DECIMAL(10,2), day DATE",
    checks=[tm.not_null("id")],
)
customers = pipeline.dataset("customers", "id BIGINT, name STRING, region STRING", key="id")

pipeline.source(orders, tm.folder("landing/orders/*.json"))  # each file is read once
pipeline.source(customers, tm.folder("landing/customers/*.csv"))


@pipeline.arc(reads=orders, writes="clean_orders", partition_by="day")
def clean(df):  # a Spark DataFrame with the rows of one lot
    """Keep only the orders with a positive amount."""
    return df.where("amount > 0")


pipeline.views_in("views")
