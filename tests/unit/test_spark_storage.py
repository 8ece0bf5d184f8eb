"""The three spellings of an object: its key, the URI for Spark, and the path that Spark reports."""

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemill.clock import SYSTEM
from tidemill.errors import UsageError
from tidemill.objects import open_objects
from tidemill.objects.key import fault
from tidemill.spark.storage import Storage

SECRET = "s3cr3t/+key"
SPECIAL = "=%{}[]*?#+&:;,@!~()'\"`|<>^$ .-é\u00a0\u3000漢\U0001f600"
NAMES = st.text(st.sampled_from(SPECIAL) | st.characters(codec="utf-8"), min_size=1, max_size=40)


def local(root: Path | str) -> Storage:
    return Storage(open_objects(str(root), clock=SYSTEM))


def remote(url: str) -> Storage:
    return Storage(open_objects(url, clock=SYSTEM, probe=False))


BUCKET = remote("s3://bucket/pre%20fix")


@given(st.lists(NAMES, min_size=1, max_size=3).map("/".join), NAMES)
def test_a_path_that_spark_reports_is_converted_to_the_key(key: str, root: str) -> None:
    assume(not fault(key) and not fault(root) and "/" not in root)
    for storage in (local(f"/some where/{root}"), BUCKET):
        assert storage.key(storage.file_path(key)) == key
        assert storage.uri(key).endswith(key)


@given(st.lists(NAMES, min_size=1, max_size=3).map("/".join))
def test_only_characters_of_patterns_are_escaped_in_a_path_to_read(key: str) -> None:
    assume(not fault(key))
    read = local("/data").read_uri(key)
    assert read.replace("\\", "") == "file:///data/" + key
    bare = [c for n, c in enumerate(read) if c in "{}[]*?" and read[n - 1] != "\\"]
    assert bare == []


def test_both_spellings_of_a_local_uri_are_converted_to_the_key() -> None:
    storage = local("/data/a b")
    assert storage.file_path("x=%41/p.parquet") == "file:/data/a%20b/x=%2541/p.parquet"
    assert storage.key("file:///data/a%20b/x=%2541/p.parquet") == "x=%41/p.parquet"


def test_a_path_outside_the_storage_has_no_key() -> None:
    with pytest.raises(UsageError, match="is not in"):
        local("/data").key("file:/other/p.parquet")


def test_each_provider_has_the_scheme_of_its_connector() -> None:
    assert remote("s3://b/p").uri("k") == "s3a://b/p/k"
    assert remote("gs://b").uri("k") == "gs://b/k"
    assert remote("az://c/p?account=me&account_key=eA==").uri("k") == "abfss://c@me.dfs.core.windows.net/p/k"


def test_s3a_gets_the_options_of_the_url() -> None:
    url = "s3://KEY:s3cr3t%2F%2Bkey@bucket?endpoint=http://127.0.0.1:9000&region=eu-1&session_token=tok"
    storage = remote(url)
    assert storage.read_options() == {
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.endpoint.region": "eu-1",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": "KEY",
        "fs.s3a.secret.key": SECRET,
        "fs.s3a.session.token": "tok",
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    }
    assert SECRET not in repr(storage)
    assert remote("s3://bucket").read_options() == {}  # then S3A looks where AWS tools look


def test_spark_cannot_access_memory() -> None:
    with pytest.raises(UsageError, match="cannot access memory"):
        Storage(open_objects("memory://", clock=SYSTEM))
