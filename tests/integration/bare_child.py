"""A process that runs a pipeline on a Spark whose executors have no Tidemill: `python -m … SETTINGS FOLDER`.

All steps run as Spark jobs. It writes the rows of its views, and what executors import, to stdout as JSON.
"""

import os
import sys
from typing import TYPE_CHECKING

import msgspec

import tidemill as tm
from tidemill.spark import executor_code, sessions
from tidemill.spark.executor_code import release_on_executors
from tidemill.spark.sessions import SparkSettings, open_session
from tidemill.views.spark.execution import SETTING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(settings: SparkSettings, folder: str) -> dict[str, object]:
    os.environ[SETTING] = "spark"
    sent: list[bool] = []

    def ship(session: "SparkSession") -> bool:
        sent.append(executor_code.ship(session))
        return sent[-1]

    sessions.ship = ship
    with tm.Pipeline("shop", home=f"{folder}/home", spark=settings) as shop:
        orders = shop.dataset("orders", "id BIGINT, region STRING, amount DECIMAL(10,2)", deletes=True)
        shop.dataset("regions", "region STRING, name STRING", key="region")
        totals = shop.view(
            "totals",
            "SELECT r.name, count(*) AS n, sum(o.amount) AS s FROM orders o JOIN regions r"
            " ON o.region = r.region GROUP BY r.name",
        )
        shop["regions"].upsert([("r0", "north"), ("r1", "south")])
        orders.append([(n, f"r{n % 2}", f"{n}.25") for n in range(10)])
        loaded = shop.run()
        orders.delete([(0, "r0", "0.25")])
        stepped = shop.run()
        rows = sorted((row.name, row.n, str(row.s)) for row in totals.df().collect())
        release = release_on_executors(open_session(settings))
    return {"ok": loaded.ok and stepped.ok, "rows": rows, "release": release, "sent": sent}


if __name__ == "__main__":
    results = main(msgspec.json.decode(sys.argv[1], type=SparkSettings), sys.argv[2])
    sys.stdout.write(msgspec.json.encode(results).decode() + "\n")
