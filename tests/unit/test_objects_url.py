"""URLs of object storage: how they are parsed, and that they never show their secrets (STO-14)."""

import pickle
import random
import traceback
from pathlib import Path

import pytest

from tidemill.clock import SYSTEM
from tidemill.errors import BadUrl, TidemillError, UsageError
from tidemill.objects import open_objects
from tidemill.objects.local import LocalObjects
from tidemill.objects.memory import MemoryObjects
from tidemill.objects.remote import RemoteObjects
from tidemill.objects.url import RemoteUrl, parse_remote, redact

SECRET = "pLanT3d"


def test_a_path_or_a_file_url_is_a_folder(tmp_path: Path) -> None:
    for url in (str(tmp_path / "a b"), (tmp_path / "a b").as_uri(), f"file://localhost{tmp_path}/a%20b"):
        objects = open_objects(url, clock=SYSTEM)
        assert isinstance(objects, LocalObjects)
        assert objects.root == tmp_path / "a b"
    assert not (tmp_path / "a b").exists()  # opening writes nothing


def test_memory_is_private_to_its_handle() -> None:
    first, second = (open_objects(url, clock=SYSTEM) for url in ("memory://", "memory:///"))
    assert isinstance(first, MemoryObjects)
    first.put("k", b"x")
    assert list(second.list()) == []


def test_an_s3_url_names_the_bucket_and_its_options() -> None:
    url = "s3://KEY:s%2F%2B%40cret@my-bucket/a/b%20c/?endpoint=http://127.0.0.1:9000&region=eu-1&virtual_hosted=false"
    where = parse_remote(url + "&bulk_delete=false&listing=flat&timeout_s=2.5&session_token=t%20k")
    assert (where.kind, where.bucket, where.prefix) == ("s3", "my-bucket", "a/b c")
    assert where.settings == {
        "endpoint": "http://127.0.0.1:9000",
        "region": "eu-1",
        "virtual_hosted_style_request": "false",
        "disable_bulk_delete": "true",
    }
    assert where.secrets == {"access_key_id": "KEY", "secret_access_key": "s/+@cret", "session_token": "t k"}
    assert (where.listing, where.timeout_s, where.allow_http) == ("flat", 2.5, True)
    assert not parse_remote("s3://b?endpoint=https://host").allow_http


def made(url: str) -> RemoteObjects:
    objects = open_objects(url, clock=SYSTEM, chance=random.Random(1), probe=False)
    assert isinstance(objects, RemoteObjects)
    return objects


def test_google_and_azure_are_made_with_the_settings_of_their_urls() -> None:
    google = made(f"gs://bucket/pre?bearer_token={SECRET}&endpoint=http://127.0.0.1:1")._opened
    assert type(google).__name__ == "GCSStore"
    assert google.config == {"bucket": "bucket", "bearer_token": SECRET, "base_url": "http://127.0.0.1:1"}
    assert google.client_options is not None
    assert google.client_options["allow_http"]
    azure = made("az://acc:a2V5@box/pre?timeout_s=7")._opened
    assert type(azure).__name__ == "AzureStore"
    assert azure.config == {"container_name": "box", "account_name": "acc", "account_key": "a2V5"}
    assert made("az://box?account=acc&sas_key=sv%3D1%26sig%3Dx")._opened.config["account_name"] == "acc"
    for store in (google, azure):
        assert store.retry_config is not None
        assert store.retry_config["max_retries"] == 0


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "s3://",
            "s3:///prefix",
            "s3://b/../x",
            "s3://b/a//b",
            "s3://b/%00",
            "s3://b:9000/x",
            "s3:/b",
            "s3:b",
        ),
        *("s3://b?endpoint=ftp://x", "s3://b?endpoint=http://u:p@x", "s3://b?endpoint=", "s3://b?color=red"),
        *(
            "s3://b?virtual_hosted=maybe",
            "s3://b?listing=random",
            "s3://b?timeout_s=0",
            "s3://b?timeout_s=soon",
        ),
        *(
            "s3://key@b",
            "s3://:secret@b",
            "s3://key:@b",
            "gs://a:b@bucket",
            "az://box?account=a&account_key=!!",
        ),
        *(
            "s3://b/" + "x" * 200,
            "memory://name",
            "memory://?x=1",
            "file://host/path",
            "file://",
            "file:///x?y=1",
        ),
        *("http://host/bucket", "ftp://x", "nonsense://", "a\0b", "postgresql://u:p@h/db"),
    ],
)
def test_a_url_that_makes_no_sense_is_a_bad_url_with_a_hint(url: str) -> None:
    with pytest.raises(BadUrl) as caught:
        open_objects(url, clock=SYSTEM, probe=False)
    assert caught.value.hint
    assert caught.value.code == "bad-url"


@pytest.mark.rule("STO-14")
@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET}@bucket/prefix?region=x",
        f"s3://key:{SECRET}@bucket/../x",
        f"s3://key:{SECRET}/half@bucket/x",
        f"s3://key:{SECRET}?half@bucket",
        f"s3://key:{SECRET}#half@bucket",
        f"s3://key:half@{SECRET}@bucket?color=red",
        f"s3://key:{SECRET}",
        f"s3://key:{SECRET}/bucket",
        f"s3://{SECRET}@bucket",
        f"s3://b?secret_access_key={SECRET}&access_key_id=k",
        f"s3://b?session_token={SECRET}&timeout_s=x",
        f"s3://b?endpoint=http://user:{SECRET}@host",
        f"s3://b?endpoint=http%3A%2F%2Fuser%3A{SECRET}%40host",
        f"s3://b?pass={SECRET}",
        f"s3://b?{SECRET}",
        f"gs://u:{SECRET}@b",
        f"gs://b?bearer_token={SECRET}",
        f"az://acc:{SECRET}@box",
        f"az://acc:!{SECRET}!@box",
        f"az://box?account=a&sas_key={SECRET}",
        f"s3:/key:{SECRET}@bucket",
        f"http://u:{SECRET}@host/x",
        f"nonsense://u:{SECRET}@host?x={SECRET}",
        f"memory://u:{SECRET}@x",
        f"file://u:{SECRET}@host/path",
    ],
)
def test_a_planted_secret_is_nowhere_to_be_seen(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    assert SECRET not in redact(url)
    try:
        objects = open_objects(url, clock=SYSTEM, probe=False)
    except TidemillError as error:
        # as it is printed, and as a tool sees it that follows the chain whatever the error says
        shown = [repr(error), str(error), error.hint, *traceback.format_exception(error)]
        shown += [repr(error.__context__), repr(error.__cause__)]
    else:
        shown = [repr(objects), str(objects), objects.url]
        with pytest.raises(UsageError):
            pickle.dumps(objects)
    assert SECRET not in "\n".join(shown + caplog.messages)


@pytest.mark.rule("STO-14")
def test_a_parsed_url_does_not_show_its_secrets() -> None:
    where = parse_remote(f"s3://key:{SECRET}@bucket/p?session_token={SECRET}")
    assert isinstance(where, RemoteUrl)
    assert SECRET not in repr(where) + where.shown
    assert where.shown == "s3://***@bucket/p?session_token=***"
    assert (
        redact("s3://k:v@b/p?region=eu&endpoint=http%3A%2F%2Fh%3A1")
        == "s3://***@b/p?region=eu&endpoint=http://h:1"
    )
