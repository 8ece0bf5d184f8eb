"""Declarations: names, durations, schedules, addresses and patterns are accepted, or refused with a hint."""

import os
import random
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import tidemill as tm
from tests.fuzz.campaign import check_refusal
from tests.fuzz.mutation import NUMBERS, TEXTS, mutated_text, text
from tidemill.clock import SYSTEM
from tidemill.errors import TidemillError
from tidemill.lots import ids, layout
from tidemill.objects.open import open_objects
from tidemill.objects.url import KINDS, parse_remote, scheme
from tidemill.objects.url import redact as redact_objects
from tidemill.pipeline.registry import Registry
from tidemill.store.open import open_store
from tidemill.store.postgres.address import Address
from tidemill.store.secrets import redact
from tidemill.triggers.cron import Cron, next_after, zone_of
from tidemill.triggers.patterns import Pattern

CASES = 400
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _shop() -> Registry:
    return tm.Pipeline("shop", home="home")


def _store(url: str) -> None:
    if "postgres" in url.lower():
        Address(url)
    elif "foundationdb" not in url.lower():
        open_store(url, clock=SYSTEM).close()


def _objects(url: str) -> None:
    if scheme(url) in KINDS:
        parse_remote(url)
    else:
        open_objects(url, clock=SYSTEM)


def _cron(cron: str) -> None:
    next_after(Cron.parse(cron), zone_of("Europe/Rome"), _NOW)


# What each text is, with examples, and the function that takes it.
TAKEN: Mapping[str, tuple[tuple[str, ...], Callable[[str], object]]] = {
    "lot": (("20230101PT5M050", "20230101", "A00000000000000017"), ids.parse),
    "unit": (("PT5M", "PT1H", "P1D"), ids.Unit.parse),
    "cron": (("0 6 * * *", "*/5 8-18 * * mon-fri", "0 0 29 2 *", "15,45 * 1 jan,dec ?"), _cron),
    "zone": (("UTC", "Europe/Rome"), lambda zone: tm.Pace(cron="0 6 * * *", zone=zone)),
    "pattern": (("raw_*", "*_x"), Pattern.parse),
    "pattern target": (("clean_{name}",), Pattern.parse_target),
    "duration": (("PT5M", "P1DT2H3M4.5S", "PT0.5S"), lambda given: tm.Pace(cadence=given)),
    "name": (("orders", "my orders", "bestellungen"), layout.quote),
    "pipeline": (("shop",), lambda name: tm.Pipeline(name, home="home")),
    "home": (("home", "~/home", "/tmp/x"), lambda home: tm.Pipeline("shop", home=home)),
    "cluster": (("main",), lambda name: tm.Pipeline("shop", home="home", cluster=name)),
    "dataset": (("orders",), lambda name: _shop().dataset(name, "id BIGINT")),
    "dataset version": (("1", "2024-01"), lambda version: _shop().dataset("o", "id BIGINT", version=version)),
    "dataset lots": (("PT5M",), lambda unit: _shop().dataset("o", "id BIGINT", lots=unit)),
    "dataset key": (("id",), lambda key: _shop().dataset("o", "id BIGINT", key=key, order_by=key)),
    "view": (("totals",), lambda name: _shop().view(name, "SELECT 1", group=name)),
    "arc": (("raw_*", "orders"), lambda name: _shop().arc(reads=name, writes="{name}", name="x")(print)),
    "arc writes": (
        ("copy_{name}",),
        lambda name: _shop().arc(reads="raw_*", writes=name, partition_by=name)(print),
    ),
    "expect": (("amount > 0",), tm.expect),
    "not_null": (("id",), lambda name: tm.not_null(name, on_fail=name)),  # type: ignore[arg-type]
    "folder": (("landing/*.json", "landing/**/*.csv", "/a/[a-z]?.parquet", "x{a,b}.json"), tm.folder),
    "bucket": (("s3://bucket/in/*.json", "gs://b/**/*.csv", "memory://x/*.json"), tm.bucket),
    "folder format": (("json", "csv"), lambda form: tm.folder("x/*", format=form, on_change=form)),
    "poll": (("https://example.com:8080/a.json?key=x", "http://[::1]/"), tm.http_poll),
    "poll header": (("Bearer x",), lambda header: tm.http_poll("http://x/", headers={header: header})),
    "redirects": (
        ("https://example.com",),
        lambda given: tm.http_poll("http://x/", redirect_origins=[given]),
    ),
    "push": (("orders", "/orders"), tm.http_push),
    "push token": (
        ("a-token-that-is-long-enough",),
        lambda token: tm.http_push("x", token=token, host=token),
    ),
    "kafka": (("localhost:9092", "a:1,b:2"), lambda brokers: tm.kafka(brokers, "topic")),
    "topic": (("orders",), lambda topic: tm.kafka("localhost:9092", topic, start=topic)),
    "store": (("sqlite:///tmp/x.db", "memory://", "postgresql://u:p@h:5432/db?schema=x", "x.db"), _store),
    "objects": (
        ("s3://k:s@b/p?endpoint=http://x&listing=flat", "file:///tmp/x", "gs://b", "az://c/p", "x"),
        _objects,
    ),
    "secret store": (("postgresql://u:p@h/db?sslpassword=x",), redact),
    "secret objects": (("s3://k:s@b/p?secret_key=x",), redact_objects),
}
# Numbers, each with the function that takes it.
COUNTED: Mapping[str, Callable[[Any], object]] = {
    "cadence": lambda given: tm.Pace(cadence=given),
    "debounce": lambda given: tm.Pace(debounce=given, max_wait=given),
    "most_failures": lambda given: tm.Pace(most_failures=given),
    "every_s": lambda given: tm.http_poll("http://x/", every_s=given),
    "timeout_s": lambda given: tm.http_poll("http://x/", timeout_s=given),
    "body_bytes": lambda given: tm.http_poll("http://x/", body_bytes=given),
    "port": lambda given: tm.http_push("x", port=given),
    "push body_bytes": lambda given: tm.http_push("x", body_bytes=given),
    "max_files": lambda given: tm.folder("x/*.json", max_files=given),
    "max_bytes": lambda given: tm.folder("x/*.json", max_bytes=given),
    "settle_s": lambda given: tm.folder("x/*.json", settle_s=given),
    "listing_shards": lambda given: tm.folder("x/*.json", listing_shards=given),
    "max_records": lambda given: tm.kafka("x:1", "t", max_records=given),
    "linger_s": lambda given: tm.kafka("x:1", "t", linger_s=given),
    "rows": lambda given: tm.rows(at_least=given),
    "retries": lambda given: _shop().arc(reads="a", writes="b", retries=given, name="x")(print),
    "parts": lambda given: _shop().arc(reads="a", writes="b", parts=given, max_concurrent=given, name="x")(
        print
    ),
}


def generate(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.2:
        return {"what": rng.choice(list(COUNTED)), "given": rng.choice(NUMBERS)}
    what = rng.choice(list(TAKEN))
    given = rng.choice(TAKEN[what][0])
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        given = mutated_text(
            rng, given, (*TEXTS, "*", "**", "[", "]", "{", "}", "?", "@", ":", "#", "&", "=")
        )
    return {"what": what, "given": text(rng) if rng.random() < 0.2 else given}


def check(case: dict[str, Any]) -> None:
    what, given = case.get("what", "name"), case.get("given", "")
    function = COUNTED[what] if what in COUNTED else TAKEN[what][1]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOME"] = folder
        os.chdir(folder)
        try:
            function(given)
        except TidemillError as error:
            check_refusal(error)
        finally:
            os.chdir("/")
