"""`tidemill config` and profiles, references to secrets, and `tidemill bundle`."""

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill.cli import main
from tidemill.errors import PipelineNotFound, UsageError
from tidemill.obs.hooks import Alert, HookFailed
from tidemill.pipeline import pipeline_file
from tidemill.store.secret_references import dereferenced

Capture = pytest.CaptureFixture[str]
PIPELINE = """
import tidemill as tm

shop = tm.Pipeline("shop", on_failure=tm.webhook("https://hooks.example/hook-s3cret"))
shop.dataset("orders", "id BIGINT")
shop.view("total", "SELECT count(*) AS n FROM orders")
"""
CONFIG = """
pipeline = "shop.py:shop"

[profiles.dev]
home = "dev-home"

[profiles.prod]
store = "env:SHOP_STORE"
objects = "s3://ann:obj-s3cret@bucket/shop"
spark = "spark://master:7077"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "shop.py").write_text(PIPELINE)
    (tmp_path / "tidemill.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(pipeline_file.PROFILE, "")  # restored later, also if a command sets it
    yield tmp_path
    sys.modules.pop("tidemill_pipeline_shop", None)


def answer(capsys: Capture, *arguments: str, code: int = 0) -> Any:
    sys.modules.pop("tidemill_pipeline_shop", None)
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def settings(capsys: Capture, *arguments: str) -> dict[str, tuple[str, str]]:
    listed = answer(capsys, *arguments, "config")["settings"]
    return {setting["name"]: (setting["value"], setting["origin"]) for setting in listed}


def test_config_shows_each_value_and_where_it_was_set(folder: Path, capsys: Capture) -> None:
    shown = settings(capsys)
    assert shown["pipeline"] == ("shop.py:shop", f"configuration file in {folder}")
    assert shown["home"] == (str(folder / "shop-home"), "default")
    assert shown["spark"] == ("local[*]", "default")
    assert "store" not in shown


def test_a_profile_overrides_the_declaration_and_hides_secrets(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pipeline_file.PROFILE, "dev")
    assert settings(capsys)["home"] == (str(folder / "dev-home"), "profile dev (tidemill.toml)")
    monkeypatch.setenv("TIDEMILL_PUSH_TOKEN", "push-s3cret")
    shown = settings(capsys, "--profile", "prod")
    assert "home" not in shown
    assert shown["store"] == ("env:SHOP_STORE", "profile prod (tidemill.toml)")
    assert "obj-s3cret" not in shown["objects"][0]
    assert shown["spark"] == ("spark://master:7077", "profile prod (tidemill.toml)")
    assert shown["TIDEMILL_PROFILE"] == ("prod", "environment")
    assert shown["TIDEMILL_PUSH_TOKEN"] == ("***", "environment")


def test_a_profile_decides_which_home_a_command_uses(folder: Path, capsys: Capture) -> None:
    answer(capsys, "--profile", "dev", "ls")
    assert (folder / "dev-home" / "store.db").exists()
    assert not (folder / "shop-home").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[profiles.prod]\nhom = 'x'", "unknown setting `hom`"),
        ("[profiles.prod]\ncluster = 3", "`cluster` of the profile prod is not a text"),
        ("[profiles.prod]\nhome = 'a'\nstore = 'b'", "has a home and a store"),
        ("[profiles.dev]\nhome = 'a'", "no profile 'prod'"),
        ("profiles = 'prod'", "`profiles` is not a table"),
    ],
)
def test_a_wrong_profile_is_an_error_that_names_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    (folder / "tidemill.toml").write_text(f'pipeline = "shop.py:shop"\n{text}\n')
    monkeypatch.setenv(pipeline_file.PROFILE, "prod")
    with pytest.raises((PipelineNotFound, UsageError), match=problem) as raised:
        pipeline_file.find()
    assert "tidemill.toml" in str(raised.value)
    assert raised.value.hint


def test_a_profile_without_a_configuration_file_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(pipeline_file.PROFILE, "prod")
    (tmp_path / "lonely.py").write_text("import tidemill as tm\np = tm.Pipeline('p')\n")
    with pytest.raises(PipelineNotFound, match="there is no tidemill"):
        pipeline_file.find("lonely.py")


def test_a_reference_names_an_environment_variable_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(" s3cret \n")
    assert dereferenced("env:A", {"A": "x"}) == "x"
    assert dereferenced(f"file:{tmp_path}/secret", {}) == "s3cret"
    assert dereferenced("file:///folder", {}) == "file:///folder"
    with pytest.raises(UsageError, match="env:B, but this environment variable is not set"):
        dereferenced("env:B", {})
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        dereferenced(f"file:{tmp_path}/none", {})


def test_a_pipeline_resolves_references_when_it_opens_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidemill.futures.values.signatures import create_key

    assert create_key(tmp_path / "key")
    pipeline = tm.Pipeline("p", store="env:P_STORE", objects="env:P_OBJECTS", key_file=tmp_path / "key")
    with pytest.raises(UsageError, match="P_STORE"):
        _ = pipeline.context
    monkeypatch.setenv("P_STORE", f"sqlite://{tmp_path}/store.db")
    monkeypatch.setenv("P_OBJECTS", f"file://{tmp_path}/objects")
    with pipeline:
        assert pipeline.context.place.store == f"sqlite://{tmp_path}/store.db"


def test_a_hook_resolves_its_references_when_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = tm.webhook("env:HOOK_URL")
    assert repr(hook) == "<Webhook env:HOOK_URL>"
    alert = Alert(kind="failure", pipeline="p", name="n", text="t", at=0.0)
    with pytest.raises(HookFailed, match="HOOK_URL"):
        hook.send(alert)
    monkeypatch.setenv("HOOK_URL", "ftp://s3cret")
    with pytest.raises(HookFailed, match="not an http") as raised:
        hook.send(alert)
    assert "s3cret" not in str(raised.value)


def test_a_bundle_has_the_state_of_a_pipeline_but_no_secret(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidemill.arcs.events import ArcLotPartial
    from tidemill.pipeline import observing

    monkeypatch.setenv("SHOP_PASSWORD", "planted-s3cret")
    with pipeline_file.find() as pipeline:
        pipeline["orders"].append([(4711,)])  # type: ignore[attr-defined]
        key = pipeline.context.place.key.secret
        error = f"cannot log in with planted-s3cret at postgresql://ann:url-s3cret@db, key {key.hex()}"
        with observing.observed(pipeline, "n", lambda _: None) as emit:
            emit(ArcLotPartial(arc="arc:shop/a", lot="L7", generation=0, failed=[], error=error))
    written = answer(capsys, "bundle", "shop.zip")
    with zipfile.ZipFile("shop.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert texts.keys() == written["files"].keys()
    assert "cannot log in with ***" in texts["events.jsonl"]
    for secret in ("planted-s3cret", "url-s3cret", "hook-s3cret", key.hex()):
        assert not any(secret in text for text in texts.values()), secret
    assert json.loads(texts["about.json"])["tidemill"] == tm.__version__
    assert "SELECT count(*)" in texts["declarations.json"]
    assert json.loads(texts["status.json"])["pipeline"] == "shop"
    assert not any("cannot be collected" in text for text in texts.values()), texts
    assert not any("4711" in text for text in texts.values()), "no rows of tables"
    assert "already exists" in answer(capsys, "bundle", "shop.zip", code=1)["error"]["message"]
