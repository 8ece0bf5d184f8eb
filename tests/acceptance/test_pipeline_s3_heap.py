"""Two runners of a pipeline whose data lies in a bucket share a heap there, on a real S3 server."""

import json
from pathlib import Path

import msgspec
import pytest

import tidemill as tm
from tests import shop
from tests.acceptance.pipeline_processes import Run
from tests.servers.jars import fetched
from tests.servers.process import ServerUnavailable, wait_until
from tests.servers.s3 import S3Server
from tests.servers.spark import SMALL, small_spark
from tidemill.cli import main
from tidemill.clock import SYSTEM
from tidemill.objects import Objects, open_objects
from tidemill.pipeline import pipeline_file
from tidemill.testing.threads import STUCK_S
from tidemill.triggers.object_heap import ROOT

FILE = """
import json
import tidemill as tm
from tidemill.spark.sessions import SparkSettings

given = json.loads({given!r})
shop = tm.Pipeline("shop", **given["at"], spark=SparkSettings(**given["spark"]))
shop.dataset("raw_a", "id BIGINT")


@shop.arc(reads="raw_*", writes="clean_{{name}}")
def clean(df):
    return df.where("id > 0")
"""
GARBAGE = (
    f"{ROOT}/readme.txt",
    f"{ROOT}/shard=00/2026-01-31T14:05Z/no epoch",
    f"{ROOT}/shard=00/x/y.000000000001",
)


class Bucket:
    """A folder with the pipeline's file and its store, and a bucket that has all the rest."""

    def __init__(self, folder: Path, server: S3Server, jars: str) -> None:
        self.folder = folder
        self.objects_url = (
            f"s3://{server.access_key}:{server.secret_key}@{server.new_bucket()}/lake"
            f"?endpoint={server.endpoint}&region={server.region}"
        )
        self.store_url = f"sqlite:///{folder}/store.db"
        self.objects: Objects = open_objects(self.objects_url, clock=SYSTEM)
        key = folder / "cluster.key"
        key.write_bytes(bytes(range(32)).hex().encode())
        key.chmod(0o600)
        self.at = {"store": self.store_url, "objects": self.objects_url, "key_file": str(key)}
        given = {"at": self.at, "spark": msgspec.to_builtins(small_spark({**SMALL, "spark.jars": jars}))}
        (folder / "shop.py").write_text(FILE.format(given=json.dumps(given)))
        (folder / "tidemill.toml").write_text('pipeline = "shop.py:shop"\n')

    def heap(self) -> set[str]:
        return {info.key for info in self.objects.list(f"{ROOT}/")}


@pytest.mark.crash
@pytest.mark.rule("HEAP-9")
@pytest.mark.rule("HEAP-12")
def test_two_runners_share_a_heap_in_the_bucket_and_pass_over_what_does_not_belong_there(
    tmp_path: Path, s3_server: S3Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        jars = ",".join(map(str, fetched("s3a")))
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    place = Bucket(tmp_path, s3_server, jars)
    for key in GARBAGE:
        place.objects.put(key, b"not ours")
    monkeypatch.chdir(tmp_path)
    runs = [Run(place, "--watch") for _ in range(2)]  # type: ignore[arg-type] # it needs the folder alone
    try:
        with pipeline_file.load("shop.py:shop", tmp_path) as pipeline:
            append(pipeline, "raw_a", 0, 1)
            runs[0].until(lambda: there(pipeline, "clean_a", {1}), "the first lot")
            runs.pop(0).end()  # like kill -9, without notice
            append(pipeline, "raw_a", 2)
            with tm.Pipeline("others", **place.at) as others:  # type: ignore[arg-type] # all of it text
                others.dataset("raw_b", "id BIGINT")
                append(others, "raw_b", 3)
                runs[0].until(lambda: there(pipeline, "clean_a", {1, 2}), "what came after a death")
                runs[0].until(lambda: there(pipeline, "clean_b", {3}), "a table that came later")
            assert wait_until(lambda: place.heap() == set(GARBAGE), timeout_s=STUCK_S), (
                "no item is left behind"
            )
            log = runs[0].said()
            assert all(f"ignored the key {key}" in log for key in GARBAGE[1:]), log
            assert runs[0].drain() == 0, runs[0].said()
    finally:
        for run in runs:
            run.end()
    assert main(["triggers", "--json"]) == 0  # of the pipeline that tidemill.toml names
    shown = json.loads(capsys.readouterr().out)
    assert shown["overview"]["heap"] == "objects, 1 shards"
    assert {trigger["name"]: trigger["state"] for trigger in shown["triggers"]} == {
        "arc:shop/clean[raw_a]": "waiting",
        "arc:shop/clean[raw_b]": "waiting",
    }


def append(pipeline: tm.Pipeline, name: str, *ids: int) -> None:
    table = pipeline[name]
    assert isinstance(table, tm.Dataset)
    table.append([(number,) for number in ids])


def there(pipeline: tm.Pipeline, name: str, ids: set[int]) -> bool:
    return name in pipeline.names and {row[0] for row in shop.table(pipeline, name)} == ids
