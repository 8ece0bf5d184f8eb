"""A pipeline with everything on a real S3 server: what arrives, manifests, and the data that Spark writes."""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests import shop
from tests.acceptance.pipeline_processes import Run
from tests.servers.jars import fetched
from tests.servers.process import ServerUnavailable
from tests.servers.s3 import S3Server
from tests.servers.spark import SMALL, small_spark
from tidemill.clock import SYSTEM
from tidemill.objects import Objects, open_objects
from tidemill.pipeline import pipeline_file
from tidemill.pipeline.pipeline import Pipeline

FILE = """
import json
import tidemill as tm
from tidemill.spark.sessions import SparkSettings

given = json.loads({given!r})
shop = tm.Pipeline("shop", **given["at"], spark=SparkSettings(**given["spark"]))
orders = shop.dataset("orders", "id BIGINT, region STRING, amount BIGINT")
shop.source(orders, tm.bucket(given["landing"]))


@shop.arc(reads=orders, writes="cleaned", partition_by="region")
def clean(df):
    return df.where("amount > 0")


shop.view("totals", "SELECT region, sum(amount) AS amount, count(*) AS n FROM cleaned GROUP BY region")
"""
REGIONS = ["north", "New York", "a=b%/c", "Łódź"]


class Bucket:
    """A folder with the pipeline's file, and a bucket that has all the rest but the store."""

    def __init__(self, folder: Path, server: S3Server, conf: Mapping[str, str]) -> None:
        credentials = f"{server.access_key}:{server.secret_key}"
        settings = f"?endpoint={server.endpoint}&region={server.region}"
        name = server.new_bucket()
        self.folder = folder
        self.secret = server.secret_key
        self.objects: Objects = open_objects(f"s3://{credentials}@{name}{settings}", clock=SYSTEM)
        key = folder / "cluster.key"
        key.write_bytes(bytes(range(32)).hex().encode())
        key.chmod(0o600)
        given = {
            "at": {
                "store": f"sqlite:///{folder}/store.db",
                "objects": f"s3://{credentials}@{name}/lake{settings}",
                "key_file": str(key),
            },
            "spark": msgspec.to_builtins(small_spark({**SMALL, **conf})),
            "landing": f"s3://{credentials}@{name}/landing/**/*.json{settings}",
        }
        (folder / "shop.py").write_text(FILE.format(given=json.dumps(given)))
        (folder / "tidemill.toml").write_text('pipeline = "shop.py:shop"\n')

    def land(self, name: str, ids: range, *more: str) -> None:
        rows = [{"id": n, "region": REGIONS[n % len(REGIONS)], "amount": n - 1} for n in ids]
        lines = [*(json.dumps(row, ensure_ascii=False) for row in rows), *more]
        self.objects.put(f"landing/{name}", "".join(line + "\n" for line in lines).encode())


@pytest.mark.rule("LOT-35")
def test_a_pipeline_runs_from_end_to_end_on_a_real_s3_server(tmp_path: Path, s3_server: S3Server) -> None:
    try:
        jars = fetched("s3a")
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    place = Bucket(tmp_path, s3_server, {"spark.jars": ",".join(map(str, jars))})
    place.land("day=1/a b'1.json", range(8))
    place.land("day=2/{x}.json", range(8, 16), "no JSON at all")
    place.land("_tmp/half.json", range(100, 108))
    run = Run(place, "--watch")  # type: ignore[arg-type] # it needs the folder alone
    try:
        with pipeline_file.load("shop.py:shop", tmp_path) as pipeline:
            run.until(lambda: _is_there(pipeline, 16), "the first files")
            place.land("day=3/late.json", range(16, 20))
            run.until(lambda: _is_there(pipeline, 20), "the late one")
            assert [row[3] for row in shop.table(pipeline, "orders_quarantine")] != []
            assert run.drain() == 0, run.said()
            orders = sorted(shop.table(pipeline, "orders"))
            assert orders == [(n, REGIONS[n % len(REGIONS)], n - 1) for n in range(20)], "each once"
            assert sorted(shop.table(pipeline, "cleaned")) == orders[2:]
    finally:
        run.end()
    kinds = {info.key.removeprefix("lake/").partition("/")[0] for info in place.objects.list("lake/")}
    assert {"data", "datasets"} <= kinds, kinds
    assert not list(tmp_path.rglob("*.parquet")), "nothing of it is on this machine"
    for log in tmp_path.glob("run-*.err"):
        assert place.secret not in log.read_text(errors="replace")


def _is_there(pipeline: Pipeline, orders: int) -> bool:
    """Has the view all of the orders up to this one?"""
    totals: dict[str, list[int]] = {}
    for n in range(2, orders):
        totals.setdefault(REGIONS[n % len(REGIONS)], []).append(n - 1)
    expected = {(region, sum(ids), len(ids)): 1 for region, ids in totals.items()}
    return bool(pipeline["totals"].position) and shop.view(pipeline) == expected
