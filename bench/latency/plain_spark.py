"""The peer of the first load: a plain Spark script that reads, cleans, joins and aggregates the same files.

`python -m bench.latency.plain_spark FOLDER` runs it in a new process, as a user would.
"""

import sys
from pathlib import Path

from tidemill.spark.sessions import SparkSettings, open_session


def main(folder: Path) -> None:
    spark = open_session(SparkSettings())
    landing = f"{folder}/landing"
    raw = spark.read.schema("id BIGINT, cust BIGINT, amount DECIMAL(10,2), day DATE").json(
        f"{landing}/orders"
    )
    customers = spark.read.schema("id BIGINT, region STRING").csv(f"{landing}/customers", header=True)
    raw.where("amount > 0").write.parquet(f"{folder}/plain/orders")
    spark.read.parquet(f"{folder}/plain/orders").createOrReplaceTempView("orders")
    customers.createOrReplaceTempView("customers")
    revenue = spark.sql(
        "SELECT c.region, o.day, count(*) AS n, sum(o.amount) AS total"
        " FROM orders o JOIN customers c ON o.cust = c.id GROUP BY c.region, o.day"
    )
    revenue.write.parquet(f"{folder}/plain/revenue")
    print(spark.read.parquet(f"{folder}/plain/revenue").count())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
