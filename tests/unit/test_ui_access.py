"""Who may read the page and who may act: tokens, sessions, forged requests, other hosts, and secrets."""

from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

import tidemill as tm
from tests.unit.page_stage import TOKEN, URL, PageStage
from tidemill.errors import UsageError
from tidemill.pipeline import child_process
from tidemill.pipeline.child_process import RunRequest
from tidemill.runner.child import ChildContext, RunnerHello
from tidemill.ui import runner_page
from tidemill.ui.access import COOKIE, SESSION_S, AccessPolicy, read_token
from tidemill.ui.client import PageClient
from tidemill.ui.runner_page import PageRunRequest
from tidemill.ui.server import PageOptions

RETRY = {"name": "retry", "pipeline": "shop", "target": "clean", "lots": ["A00000000000000005"]}
ORIGIN = {"origin": URL}


@pytest.fixture
def stage() -> PageStage:
    return PageStage().fill()


def signed_in(client: TestClient) -> str:
    """Sign in; return the form token."""
    response = client.post("/login", data={"token": TOKEN}, headers=ORIGIN)
    assert response.status_code == 303
    page = client.get("/runs").text
    return page.partition('name="form_token" value="')[2].partition('"')[0]


def failed_future(client: TestClient) -> str:
    return str(client.get("/api/v1/futures?state=failed").json()["items"][0]["id"])


def state_of(client: TestClient, future: str) -> str:
    return str(client.get("/api/v1/future", params={"id": future}).json()["state"])


def test_without_a_token_the_page_is_read_only(stage: PageStage) -> None:
    client = stage.client(token="")
    future = failed_future(client)
    for headers in ({}, {"authorization": "Bearer "}, {"authorization": f"Bearer {TOKEN}"}, ORIGIN):
        response = client.post("/api/v1/actions", json={"name": "requeue", "target": future}, headers=headers)
        assert response.status_code == 403
        assert response.json()["code"] == "read-only"
    assert client.post("/login", data={"token": ""}, headers=ORIGIN).status_code == 401
    form = {"name": "requeue", "target": future, "form_token": ""}
    assert client.post("/actions", data=form, headers=ORIGIN).status_code == 403
    assert state_of(client, future) == "failed"
    assert '<form method="post" action="/actions"' not in client.get("/runs").text


def test_an_action_needs_the_token_or_a_session_of_this_page(stage: PageStage) -> None:
    client = stage.client()
    future = failed_future(client)
    action = {"name": "requeue", "target": future}
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
        assert client.post("/api/v1/actions", json=action, headers=headers).status_code == 401
    assert client.post("/login", data={"token": "wrong"}, headers=ORIGIN).status_code == 401
    token = signed_in(client)
    assert token
    form = {**action, "form_token": token, "back": "/futures?state=failed"}
    forged = [
        ({**form, "form_token": "0" * 64}, ORIGIN),
        ({**form, "form_token": ""}, ORIGIN),
        (form, {}),
        (form, {"origin": "null"}),
        (form, {"origin": "http://evil.example"}),
        (form, {"origin": URL.replace("127.0.0.1", "localhost")}),
    ]
    for body, headers in forged:
        assert client.post("/actions", data=body, headers=headers).status_code == 403
        in_json = client.post(
            "/api/v1/actions", json=action, headers={**headers, "x-form-token": body["form_token"]}
        )
        assert in_json.status_code == 401
    assert state_of(client, future) == "failed"
    response = client.post("/actions", data=form, headers=ORIGIN)
    assert response.status_code == 303
    assert response.headers["location"] == "/futures?state=failed&message=the+future+runs+again"
    assert state_of(client, future) == "unclaimed"


def test_the_way_back_never_leaves_the_page(stage: PageStage) -> None:
    client = stage.client()
    token = signed_in(client)
    for back in ("http://evil.example/", "//evil.example", "/nothing", "javascript:alert(1)"):
        form = {"name": "requeue", "target": "zz", "form_token": token, "back": back}
        location = client.post("/actions", data=form, headers=ORIGIN).headers["location"]
        assert location.startswith("/?failed=")


def test_a_session_ends_and_cannot_be_forged(stage: PageStage) -> None:
    client = stage.client()
    signed_in(client)
    assert "signed in" in client.get("/").text
    cookie = client.cookies[COOKIE]
    expires_at, nonce, signature = cookie.split(".")
    forged = stage.client(cookies={COOKIE: f"{int(expires_at) + 1}.{nonce}.{signature}"})
    assert "signed in" not in forged.get("/").text
    stage.clock.advance(SESSION_S + 1)
    assert "signed in" not in client.get("/").text


def test_the_cookie_is_not_readable_by_scripts_and_not_sent_by_other_sites(stage: PageStage) -> None:
    response = stage.client().post("/login", data={"token": TOKEN}, headers=ORIGIN)
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie


@pytest.mark.parametrize(
    "address", ["/", "/api/v1/summary", "/metrics", "/healthz", "/nothing", "/assets/page.js"]
)
def test_every_response_has_a_strict_policy(stage: PageStage, address: str) -> None:
    headers = stage.client().get(address).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers


def test_on_loopback_a_foreign_host_name_is_refused(stage: PageStage) -> None:
    """A web site whose name points to 127.0.0.1 cannot read the page (DNS rebinding)."""
    client = stage.client()
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/api/v1/summary", headers={"host": "evil.example:8642"}).status_code == 421
    for host in ("localhost:8642", "127.0.0.1", "[::1]:8642"):
        assert client.get("/", headers={"host": host}).status_code == 200


def test_on_another_address_reading_needs_the_token_too(stage: PageStage) -> None:
    client = stage.client(host="0.0.0.0")
    assert client.get("/").headers["location"] == "/login"
    assert client.get("/api/v1/summary").status_code == 401
    assert client.get("/metrics").status_code == 401
    assert client.get("/healthz").status_code == 200
    assert client.get("/login").status_code == 200
    assert client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    signed_in(client)
    assert client.get("/").status_code == 200
    with pytest.raises(UsageError, match="without a token"):
        stage.site(token="", host="0.0.0.0")


def test_a_token_file_must_be_private_and_long(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(str(file))
    file.write_text(TOKEN)
    file.chmod(0o644)
    with pytest.raises(UsageError, match="other users can read"):
        read_token(str(file))
    file.chmod(0o600)
    assert read_token(str(file)) == TOKEN
    file.write_text("short")
    with pytest.raises(UsageError, match="is not valid"):
        read_token(str(file))


def test_tls_needs_both_files() -> None:
    with pytest.raises(UsageError, match="needs a certificate and its key"):
        PageOptions(tls_cert="cert.pem")


def test_a_policy_shows_no_token() -> None:
    policy = AccessPolicy.__dataclass_fields__["token"]
    assert not policy.repr


def test_a_planted_secret_is_on_no_page(tmp_path: Path) -> None:
    """The cluster key, the token of a push source and the page's token are in no answer."""
    secret = "planted-secret-of-this-test"
    shop = tm.Pipeline("shop", home=tmp_path / "home")
    orders = shop.dataset("orders", "id BIGINT")
    shop.source(orders, tm.http_push(token=secret))
    with shop:
        orders.append([{"id": 1}])
        stage = PageStage(shop.context.store)
        key = shop.context.place.key.secret
        client = stage.client()
        addresses = [
            "/",
            "/lineage",
            "/runs",
            "/views",
            "/cluster",
            "/futures",
            "/table?table=orders",
            "/metrics",
        ]
        addresses += ["/api/v1/summary", "/api/v1/cluster", "/api/v1/openapi.json", "/login", "/healthz"]
        for address in addresses:
            text = client.get(address).text
            for text_of_secret in (secret, key.hex(), TOKEN):
                assert text_of_secret not in text, address


def test_actions_change_the_pipeline_like_the_command_line(tmp_path: Path) -> None:
    """Retry, pause, resume, backfill and replay, over the API, on a real pipeline without Spark."""
    shop = tm.Pipeline("shop", home=tmp_path / "home")
    orders = shop.dataset("orders", "id BIGINT")
    orders.append([{"id": 1}])

    @shop.arc(reads=orders, writes="clean", name="clean")
    def clean(df: object) -> object:
        return df

    with shop:
        stage = PageStage(shop.context.store)
        client = stage.client(load=lambda: shop, cluster=shop.context.place.cluster)
        headers = {"authorization": f"Bearer {TOKEN}"}

        def act(**action: object) -> tuple[int, dict[str, object]]:
            response = client.post("/api/v1/actions", json=action, headers=headers)
            return response.status_code, response.json()

        status, answer = act(name="pause", target="clean")
        assert (status, answer["code"]) == (400, "subscription-unknown")
        status, answer = act(name="backfill", target="clean")
        assert status == 200, answer
        assert answer["message"] == "runners will produce 1 lot"
        assert act(name="retry", target="clean")[0] == 200
        assert act(name="replay", target="clean")[1]["code"] == "usage"
        assert act(name="retry", target="nothing")[0] == 400
        status, answer = act(name="retry", pipeline="other", target="clean")
        assert "not 'other'" in str(answer["message"])


def test_a_runner_serves_the_page_while_its_child_runs(
    stage: PageStage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tidemill run --ui`: the child serves the page from its own store, and stops it when it ends."""
    answers: list[str] = []

    def run(context: ChildContext) -> int:
        assert context.arguments["target"] == "shop.py"
        answers.append(PageClient(capsys.readouterr().err.split()[-1]).summary().cluster)
        return 7

    monkeypatch.setattr(child_process, "main", run)
    request = PageRunRequest(run=RunRequest(target="shop.py", folder="."), page=PageOptions(port=0))
    hello = RunnerHello(
        main=runner_page.MAIN,
        arguments=msgspec.to_builtins(request),
        store="memory://",
        objects="",
        cluster="c",
        home="",
        secret=b"0" * 32,
        node=stage.living("runner"),
        parent=0,
        ended=0,
    )
    assert runner_page.main(ChildContext(hello, stage.store)) == 7
    assert answers == ["c"]
