"""A planted secret is in no output: log, event, error, metric, lineage, trace, bundle, answer or screen."""

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidemill as tm
from tests.unit.page_stage import TOKEN, PageStage
from tidemill.events import Event
from tidemill.obs.event_log import EventFilter, all_of
from tidemill.obs.json_log import JsonLog
from tidemill.pipeline import observing, support_bundle
from tidemill.ui.operations import OPERATIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRETS = ("hook-s3cret", "push-s3cret-of-16-chars", "url-s3cret", "header-s3cret", "view-s3cret")
SCREENS = (
    "/",
    "/lineage",
    "/runs",
    "/views",
    "/view?view=totals",
    "/view-query?name=totals",
    "/view-columns?name=totals",
    "/view-rows?view=totals",
    "/changes?view=totals",
    "/table?table=orders",
    "/table?table=cleaned",
    "/rows?table=orders",
    "/columns?name=orders",
    "/cluster",
    "/futures",
    "/events?severity=",
    "/metrics",
)


@contextmanager
def receiving() -> Iterator[tuple[str, list[bytes]]]:
    """Receive traces on loopback; yield the address and the bodies."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.rule("STO-14")
def test_planted_secrets_are_in_no_output(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hook, push, url, header, view = SECRETS
    outputs: dict[str, str] = {}
    log = io.StringIO()
    events: list[Event] = []
    with receiving() as (address, traces):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-key={header}")
        monkeypatch.setenv("OPENLINEAGE_API_KEY", header)
        with tm.Pipeline(
            "shop",
            home=tmp_path / "home",
            spark=spark,
            lineage=tmp_path / "lineage.jsonl",
            on_failure=tm.webhook(f"{address}/{hook}", headers={"authorization": hook}),
        ) as shop:
            orders = shop.dataset("orders", "id BIGINT")
            shop.source(shop.dataset("pushed", "id BIGINT"), tm.http_push(token=push))

            @shop.arc(reads=orders, writes="cleaned", retries=0)
            def clean(df: Any) -> Any:
                if df.count():
                    raise ValueError(f"cannot reach postgresql://ann:{url}@db/shop?password={url}")
                return df

            shop.view("totals", "SELECT count(*) AS n FROM orders")
            orders.append([(1,)])
            report = shop.run(emit=all_of(JsonLog(log, pipeline="shop"), events.append))
            assert not report.ok
            with pytest.raises(tm.TidemillError) as raised:
                tm.Pipeline("other", store=f"postgresql://ann:{view}@127.0.0.1:1/x", objects="s3://b").run()
            archive = io.BytesIO()
            support_bundle.write_bundle(shop, archive)
            rows = observing.log_rows(shop, EventFilter(), 1_000)
            outputs["event log"] = "".join(str(row.event) for row in rows)
            outputs["report"] = f"{report} {report.failures!r}"
            outputs["error"] = f"{raised.value} {raised.value.hint} {raised.value!r}"
            with zipfile.ZipFile(archive) as files:
                outputs |= {f"bundle {name}": files.read(name).decode() for name in files.namelist()}
            stage = PageStage(shop.context.store)
            stage.objects = shop.context.objects
            client = stage.client(cluster=shop.context.place.cluster)
            client.headers["authorization"] = f"Bearer {TOKEN}"
            arguments = {"table": "cleaned", "name": "totals", "view": "totals", "arc": "arc:shop/clean"}
            lot = client.get("/api/v1/runs").json()["items"][0]["lot"]
            future = client.get("/api/v1/futures").json()["items"][0]["id"]
            for address_ in (*SCREENS, f"/run?arc=arc:shop/clean&lot={lot}", f"/future?id={future}"):
                answer = client.get(address_)
                assert answer.status_code == 200, address_
                outputs[address_] = answer.text
            for operation in OPERATIONS:
                given = {"lot": lot, "id": future, **arguments}
                known = operation.parameters.__struct_fields__
                answer = client.get(
                    f"/api/v1/{operation.path}", params={k: v for k, v in given.items() if k in known}
                )
                outputs[f"api {operation.path}"] = answer.text
    outputs["trace"] = b"".join(traces).decode(errors="replace")
    outputs["lineage"] = (tmp_path / "lineage.jsonl").read_text()
    outputs["json log"] = log.getvalue()
    outputs["events"] = json.dumps([str(event) for event in events])
    outputs["terminal"] = "".join(capfd.readouterr())
    for part in ("lineage", "json log", "event log", "trace", "/", "api run"):
        assert "cannot reach" in outputs[part], f"the failure is not in {part}: the test shows nothing"
    leaks = {(name, secret) for name, text in outputs.items() for secret in SECRETS if secret in text}
    assert leaks == set()
