"""The HTTP API: every operation answers as its schema says, is paged, and never fails with status 500."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from tests.unit.page_stage import HOSTILE, TOKEN, PageStage
from tidemill.errors import PageError, UsageError
from tidemill.ui import client as client_module
from tidemill.ui.client import PageClient
from tidemill.ui.model.answers import Action
from tidemill.ui.operations import OPERATIONS, Operation
from tidemill.ui.server import PageOptions, in_background, make_server

ARGUMENTS = {
    "table": {"name": "orders"},
    "lots": {"table": "cleaned"},
    "run": {"arc": "arc:shop/clean", "lot": "A00000000000000005"},
    "view": {"name": "totals"},
    "steps": {"view": "totals"},
    "sample": {"table": HOSTILE},
    "records": {"table": "cleaned"},
    "changes": {"view": "totals"},
    "columns": {"name": "totals"},
}


TOKEN_HEADER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def stage() -> PageStage:
    stage = PageStage().fill()
    stage.quarantine(stage.orders, "A00000000000000001", 3)
    return stage


@pytest.fixture(scope="module")
def client(stage: PageStage) -> TestClient:
    return stage.client()


def arguments(client: TestClient, operation: Operation) -> dict[str, str]:
    if operation.path == "future":
        return {"id": client.get("/api/v1/futures?state=failed").json()["items"][0]["id"]}
    return ARGUMENTS.get(operation.path, {})


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.path)
def test_every_operation_answers_as_its_class_says(client: TestClient, operation: Operation) -> None:
    given = arguments(client, operation)
    response = client.get(f"/api/v1/{operation.path}", params=given)
    if operation.rows:
        assert response.status_code == 401, "with a token, rows need it"
        response = client.get(f"/api/v1/{operation.path}", params=given, headers=TOKEN_HEADER)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    msgspec.json.decode(response.content, type=operation.answer)


@pytest.mark.parametrize("path", ["grid", "tables", "views", "futures", "triggers", "runs"])
def test_pages_of_one_item_have_the_items_of_one_large_page(client: TestClient, path: str) -> None:
    cursor = "before" if path == "futures" else "after"
    whole = client.get(f"/api/v1/{path}?limit=500").json()
    assert whole["next"] == ""
    items: list[Any] = []
    at = ""
    for _ in range(100):
        page = client.get(f"/api/v1/{path}", params={"limit": 1, cursor: at}).json()
        items += page["items"]
        at = page["next"]
        if not at:
            break
    assert [item for item in items if item not in whole["items"]] == []
    assert len(items) == len(whole["items"])


def test_steps_have_rows_and_are_paged(client: TestClient) -> None:
    first = client.get("/api/v1/steps?view=totals&limit=2").json()
    rest = client.get("/api/v1/steps", params={"view": "totals", "limit": 9, "before": first["next"]}).json()
    steps = [item["step"] for item in first["items"] + rest["items"]]
    assert steps == sorted(set(steps), reverse=True)
    assert {item["rows"] for item in first["items"]} == {1}


def test_the_document_describes_every_operation_and_its_references_resolve(client: TestClient) -> None:
    document = client.get("/api/v1/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {f"/api/v1/{each.path}" for each in OPERATIONS} | {"/api/v1/actions"}
    schemas = document["components"]["schemas"]

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for each in value.values():
                yield from references(each)
        elif isinstance(value, list):
            for each in value:
                yield from references(each)

    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for path, item in document["paths"].items():
        for operation in item.values():
            assert operation["operationId"], path
            for parameter in operation.get("parameters", ()):
                assert parameter["schema"], (path, parameter)


def test_random_arguments_never_give_status_500(client: TestClient) -> None:
    """Every answer is a value or an error with a code, whatever the arguments are."""
    chance = random.Random(5)
    texts = [
        "",
        "0",
        "-1",
        "zz",
        "ff",
        "\x00",
        "é" * 300,
        HOSTILE,
        "9" * 400,
        "A00000000000000005",
        "20260131",
    ]
    texts += ["orders", "%", "arc:shop/clean", "\ud800", "null", "[]", "20260131PT5M999", "S1"]
    for _ in range(300):
        operation = chance.choice(OPERATIONS)
        names = [field.encode_name for field in msgspec.structs.fields(operation.parameters)]
        given = {name: chance.choice(texts) for name in names if chance.random() < 0.7}
        given = {name: text.encode("utf-8", "surrogatepass") for name, text in given.items()}
        response = client.get(f"/api/v1/{operation.path}", params=given, headers=TOKEN_HEADER)
        assert response.status_code in (200, 400, 404), (operation.path, given, response.text)
        if response.status_code != 200:
            assert response.json()["code"], (operation.path, given)
    for body in (b"", b"{", b"[]", b"null", b'{"name":"drop"}', b'{"name":"retry","other":1}', b"\xff" * 50):
        response = client.post("/api/v1/actions", content=body, headers=TOKEN_HEADER)
        assert response.status_code == 400, (body, response.text)


def test_metrics_parse_and_have_no_lot_as_label(client: TestClient) -> None:
    response = client.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    named = {
        "tidemill_build_info",
        "tidemill_lots",
        "tidemill_steps",
        "tidemill_rows",
        "tidemill_step_duration_seconds",
        "tidemill_last_published_timestamp_seconds",
        "tidemill_state_bytes",
        "tidemill_fresh_within_seconds",
        "tidemill_age_seconds",
        "tidemill_nodes",
        "tidemill_futures",
    }
    assert named <= set(families)
    lots = {
        (sample.labels["table"], sample.labels["state"]): sample.value
        for sample in families["tidemill_lots"].samples
    }
    assert lots["cleaned", "partial"] == 1
    assert lots["cleaned", "running"] == 1
    assert lots["orders", "complete"] == 11
    steps = {sample.labels["group"]: sample.value for sample in families["tidemill_steps"].samples}
    assert steps["totals"] == steps[HOSTILE] >= 3
    for family in families.values():
        for sample in family.samples:
            assert not [
                value for value in sample.labels.values() if value.startswith(("A0000", "2023", "S0"))
            ]


def test_metrics_count_each_step_once(client: TestClient) -> None:
    first, second = (client.get("/metrics").text for _ in range(2))
    lines = [line for line in first.splitlines() if line.startswith("tidemill_steps_total")]
    assert lines
    assert [line for line in second.splitlines() if line.startswith("tidemill_steps_total")] == lines


def test_the_health_check_reads_the_store(client: TestClient) -> None:
    response = client.get("/healthz")
    assert (response.status_code, response.json()["ok"]) == (200, True)


def test_the_client_reads_a_real_server_and_raises_its_errors(stage: PageStage, tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    server = make_server(stage.store, "c", PageOptions(port=0, token_file=str(token)), clock=stage.clock)
    with in_background(server):
        reading = PageClient(server.url)
        assert reading.summary().cluster == "c"
        assert reading.table("orders").table.kind == "dataset"
        lots = list(client_module.pages(lambda before: reading.lots("cleaned", before=before, limit=5)))
        assert len(lots) == 12
        assert [line.about for line in reading.events(severity="error").items] == ["clean"]
        assert reading.run("arc:shop/clean", "A00000000000000005").state == "partial"
        assert {node.kind for node in reading.lineage().nodes} == {"source", "dataset", "arc", "view"}
        with pytest.raises(PageError, match="there is no table 'nothing'"):
            reading.table("nothing")
        failed = reading.futures(state="failed").items[0]
        with pytest.raises(PageError, match="no valid token"):
            reading.act(Action(name="requeue", target=failed.id))
        acting = PageClient(server.url, token=TOKEN)
        assert acting.act(Action(name="requeue", target=failed.id)).changed == (failed.id,)
        assert acting.future(failed.id).state == "unclaimed"
    with pytest.raises(PageError, match="does not answer"):
        reading.summary()


def test_a_client_refuses_other_addresses() -> None:
    with pytest.raises(UsageError, match="not the address of a page"):
        PageClient("file:///etc/passwd")
