"""A bucket as a source, on a real S3 server and in memory."""

import gzip
from pathlib import Path

import pytest

from tests.servers.s3 import S3Server
from tests.unit.sources_stage import PlainParts, SourceStage, ids
from tidemill.clock import SYSTEM
from tidemill.errors import BadSource, SourceUnavailable
from tidemill.objects import Objects, open_objects
from tidemill.sources.bucket import BucketListing, bucket
from tidemill.sources.events import FileChanged
from tidemill.sources.file_ingestion import FileIngestion
from tidemill.sources.path_patterns import PathPattern
from tidemill.sources.source import SourceContext
from tidemill.spark.ingest.csv_headers import first_line
from tidemill.spark.ingest.foreign_files import salvage_gzip
from tidemill.spark.ingest.formats import Format


@pytest.fixture(scope="module")
def landing(s3_server: S3Server) -> tuple[str, Objects]:
    name = s3_server.new_bucket()
    credentials = f"{s3_server.access_key}:{s3_server.secret_key}"
    settings = f"?endpoint={s3_server.endpoint}&region={s3_server.region}"
    objects = open_objects(f"s3://{credentials}@{name}{settings}", clock=SYSTEM, probe=False)
    return f"s3://{credentials}@{name}/landing/**/*.json{settings}", objects


@pytest.mark.rule("LOT-35")
@pytest.mark.rule("CLU-22")
def test_objects_of_a_bucket_become_lots_each_once(landing: tuple[str, Objects], tmp_path: Path) -> None:
    url, objects = landing
    spec = bucket(url)
    stage = SourceStage(tmp_path / "unused", settle_s=0)
    for number in range(25):
        objects.put(f"landing/day={number % 3}/a b'{number}.json", b'{"id":%d}\n' % number)
    objects.put("landing/_tmp/x.json", b'{"id":-1}\n')
    objects.put("landing/x.csv", b"no\n")
    objects.put("elsewhere/x.json", b'{"id":-2}\n')

    class Parts(PlainParts):
        """Reads through the listing, as no Spark is at hand that knows this server."""

        def text_of(self, path: str) -> str:
            with spec.listing().open(path) as file:
                return file.read().decode()

    def ingestion(name: str) -> FileIngestion:
        parts = Parts(stage.root, stage.objects, stage.chance)
        return FileIngestion(stage.spec, spec.listing(), stage.scope(stage.node(name)), parts)

    first = ingestion("one")
    first.discover()
    first.ingest()
    objects.put("landing/day=1/late.json", b'{"id":100}\n')
    objects.put("landing/day=0/a b'0.json", b'{"id":200}\n')  # replaced after it was taken
    second = ingestion("two")
    second.discover()
    second.ingest()
    assert ids(stage.published()) == [*range(25), 100]
    assert [event.path for event in stage.heard(FileChanged)] == ["day=0/a b'0.json"]


def test_a_shard_of_a_bucket_is_listed_by_itself(landing: tuple[str, Objects]) -> None:
    url, objects = landing
    for path in ("a.json", "b/c.json", "b/d.json", "e.json"):
        objects.put(f"stretches/{path}", b"{}")
    listing = bucket(url.replace("/landing/", "/stretches/")).listing()
    everything = [file.path for file in listing.files(lambda *_: None)]
    assert everything == ["a.json", "b/c.json", "b/d.json", "e.json"]
    middle = listing.files(lambda *_: None, after="a.json", until="b/d.json")
    assert [file.path for file in middle] == ["b/c.json", "b/d.json"]


def test_objects_are_looked_at_and_opened(landing: tuple[str, Objects]) -> None:
    url, objects = landing
    objects.put("look/a.json", b"one")
    objects.put("look/h.csv.gz", gzip.compress(b"id,name\n1,x\n"))
    listing = bucket(url.replace("/landing/", "/look/")).listing()
    (before, gone) = listing.stat(["a.json", "none.json"])
    assert before is not None
    assert gone is None
    objects.put("look/a.json", b"two")
    assert listing.stat(["a.json"])[0] != before
    with listing.open("a.json") as file:
        assert file.read() == b"two"
    assert first_line("h.csv.gz", listing.open) == "id,name"
    assert salvage_gzip("h.csv.gz", listing.open) is None
    with pytest.raises(FileNotFoundError):
        listing.open("none.json")
    assert listing.uri("a b.json").startswith("s3a://")
    assert "fs.s3a.endpoint" in listing.read_options()


def test_a_bucket_that_cannot_be_listed_is_told_of_without_its_secrets(s3_server: S3Server) -> None:
    name = s3_server.new_bucket()
    spec = bucket(f"s3://key:s3cr3tw0rd@{name}/x/*.json?endpoint={s3_server.endpoint}&region=us-east-1")
    assert "s3cr3tw0rd" not in repr(spec) + spec.root
    with pytest.raises(SourceUnavailable) as refused:
        list(spec.listing().files(lambda *_: None))
    assert "s3cr3tw0rd" not in str(refused.value)
    assert refused.value.hint


def test_a_bucket_is_declared_by_one_text() -> None:
    spec = bucket("s3://landing/orders/**/*.csv.gz?region=eu-west-1")
    assert (spec.url, spec.prefix) == ("s3://landing?region=eu-west-1", "orders/")
    assert (spec.pattern.text, spec.reading.format) == ("**/*.csv.gz", Format.CSV)
    whole = bucket("gs://landing", format="json")
    assert (whole.prefix, whole.pattern.text) == ("", "**")
    assert bucket("gs://landing/in", format="json").prefix == "in/"
    context = SourceContext(pipeline="shop", dataset="orders", label="orders", base=Path("/x"), secret=bytes)
    assert spec.resolve(context) is spec
    for wrong in ("landing/*.json", "http://x/*.json", "s3://landing/*"):
        with pytest.raises(BadSource):
            bucket(wrong)


def test_a_listing_of_objects_in_memory_is_the_same(tmp_path: Path) -> None:
    objects = open_objects("memory://", clock=SYSTEM)
    objects.put("in/a.json", b"{}")
    objects.put("in/.hidden.json", b"{}")
    listing = BucketListing(objects, "in/", PathPattern("*.json"))
    assert [file.path for file in listing.files(lambda *_: None)] == ["a.json"]
