"""The pipeline of the soak, and the folder that the nodes run it from.

Every node imports the same file. The addresses of the store and of the bucket come from its environment,
because each node has its own connections, which the soak can cut.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tidemill as tm
from tests.servers.jars import fetched
from tests.servers.spark import SMALL, small_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "soak"
STORE, OBJECTS = "SOAK_STORE", "SOAK_OBJECTS"
TABLES = (
    "orders",
    "cleaned",
    "refused",
    "doubled",
    "raw_clicks",
    "raw_payments",
    "tidy_clicks",
    "tidy_payments",
)
"""The append-only tables. The keyed dataset is compared through the view `tiers`."""

FILE = """
import json
from tests.soak import pipeline

soak = pipeline.declare(json.loads({options!r}))
"""

VIEWS = {
    # One row for each row that was sent, in the tables that the arcs write.
    "ledger": "SELECT 'order' AS kind, id FROM doubled UNION ALL SELECT 'refused', id FROM refused"
    " UNION ALL SELECT 'click', id FROM tidy_clicks UNION ALL SELECT 'payment', id FROM tidy_payments",
    "kinds": "SELECT kind, count(*) AS n, count(DISTINCT id) AS ids FROM ledger GROUP BY kind",
    "pages": "SELECT page, count(*) AS n, count(DISTINCT id) AS ids, sum(ms) AS ms FROM tidy_clicks"
    " GROUP BY page",
    "buckets": "SELECT bucket, count(*) AS n, sum(cents) AS cents FROM tidy_payments GROUP BY bucket",
    "tiers": "SELECT id, tier FROM customers",
    "regions": "SELECT region, count(*) AS n, count(DISTINCT id) AS ids, sum(amount) AS total FROM doubled"
    " GROUP BY region",
    "by_tier": "SELECT c.tier, count(*) AS n, sum(d.amount) AS total FROM doubled d"
    " JOIN customers c ON d.cust = c.id GROUP BY c.tier",
    "all_tiers": "SELECT count(*) AS tiers, sum(n) AS n, max(total) AS best FROM by_tier",
}
"""The views and their queries. The views `kinds` and `all_tiers` read other views."""

GROUPS = {
    "rows": ("ledger", "kinds"),
    "streams": ("pages", "buckets"),
    "shop": ("tiers", "regions", "by_tier", "all_tiers"),
}


def declare(options: dict[str, Any]) -> tm.Pipeline:
    """Declare the pipeline; `SOAK_STORE` and `SOAK_OBJECTS` replace the addresses of the options."""
    temporary = tempfile.gettempdir()
    conf = {
        **SMALL,
        "spark.jars": ",".join(map(str, fetched("s3a"))),
        "spark.driver.memory": "512m",
        "spark.local.dir": temporary,
        "spark.hadoop.hadoop.tmp.dir": temporary,
        # A request to a server that restarts must fail soon, or the retries of the client hide the fault.
        "spark.hadoop.fs.s3a.attempts.maximum": "3",
        "spark.hadoop.fs.s3a.retry.limit": "3",
        "spark.hadoop.fs.s3a.connection.establish.timeout": "5000",
        "spark.hadoop.fs.s3a.connection.timeout": "20000",
    }
    settings = small_spark(conf)
    java = settings.conf["spark.driver.extraJavaOptions"].replace(
        "-Xmn400m", "-Xms512m -Xmn192m -XX:+AlwaysPreTouch"
    )
    settings.conf["spark.driver.extraJavaOptions"] = java
    pipeline = tm.Pipeline(
        NAME,
        store=os.environ.get(STORE, options["store"]),
        objects=os.environ.get(OBJECTS, options["objects"]),
        key_file=options["key_file"],
        spark=settings,
    )
    orders = pipeline.dataset("orders", "id BIGINT, cust BIGINT, region STRING, amount BIGINT")
    pipeline.source(
        orders, tm.folder(f"{options['landing']}/*.json", settle_s=0.0, max_files=options["max_files"])
    )
    pipeline.dataset("customers", "id BIGINT, tier STRING", key="id")
    clicks = pipeline.dataset("raw_clicks", "id BIGINT, page STRING, ms BIGINT")
    pipeline.source(clicks, tm.http_push())
    payments = pipeline.dataset("raw_payments", "id BIGINT, cust BIGINT, cents BIGINT")
    pipeline.source(payments, tm.kafka(options["brokers"], options["topic"], linger_s=0.5, max_records=200))

    @pipeline.arc(reads=orders, writes=("cleaned", "refused"), partition_by="region")
    def clean(df: "DataFrame") -> "tuple[DataFrame, DataFrame]":
        return df.where("amount > 0"), df.where("amount <= 0")

    @pipeline.arc(reads="cleaned", writes="doubled", partition_by="region", parts=2)
    def double(df: "DataFrame") -> "DataFrame":
        return df.selectExpr("id", "cust", "region", "amount * 2 AS amount")

    @pipeline.arc(reads="raw_*", writes="tidy_{name}")
    def tidy(df: "DataFrame") -> "DataFrame":
        return df.selectExpr("*", "id % 7 AS bucket")

    for group, names in GROUPS.items():
        for name in names:
            pipeline.view(name, VIEWS[name], group=group)
    return pipeline


class Site:
    """A folder with the pipeline's file, the landing folder and the key of the cluster."""

    def __init__(
        self, folder: Path, *, store: str, objects: str, brokers: str, topic: str, max_files: int = 2
    ) -> None:
        self.folder = folder
        self.landing = folder / "landing"
        self.landing.mkdir(parents=True)
        key = folder / "cluster.key"
        key.write_bytes(bytes(range(32)).hex().encode())
        key.chmod(0o600)
        self.options: dict[str, Any] = {
            "store": store,
            "objects": objects,
            "landing": str(self.landing),
            "brokers": brokers,
            "topic": topic,
            "max_files": max_files,
            "key_file": str(key),
        }
        (folder / "soak.py").write_text(FILE.format(options=json.dumps(self.options)))
        (folder / "tidemill.toml").write_text('pipeline = "soak.py:soak"\n')

    def declare(self) -> tm.Pipeline:
        """Declare the pipeline in this process, to read its tables and to write to its datasets."""
        return declare(self.options)
