"""`tidemill init`, the suggestions for mistyped commands, and the scripts for shells."""

import json
from pathlib import Path

import pytest

from tidemill.cli import main
from tidemill.pipeline.pipeline_file import load, locate


def test_init_creates_a_pipeline_that_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "harbour", "--json"]) == 0
    created = json.loads(capsys.readouterr().out)
    assert created["folder"] == str(tmp_path / "harbour")
    written = {str(path.relative_to("harbour")) for path in Path("harbour").rglob("*") if path.is_file()}
    assert set(created["files"]) == written
    assert {".gitignore", "tidemill.toml", "test_pipeline.py", "views/revenue.sql"} <= written
    assert not [
        path for path in Path("harbour").rglob("*") if path.is_file() and "starter" in path.read_text()
    ]

    pipeline = load(*locate(start=tmp_path / "harbour"), fresh=True)
    assert pipeline.name == "harbour"
    assert pipeline.names == ["orders", "customers", "clean_orders", "best_days", "revenue"]
    assert pipeline.views["revenue"].refresh == "incremental"


def test_init_changes_nothing_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop").mkdir()
    Path("shop", "mine.txt").write_text("mine")
    assert main(["init", "shop"]) == 1
    assert "shop already exists" in capsys.readouterr().err
    assert [path.name for path in Path("shop").iterdir()] == ["mine.txt"]
    assert main(["init", "my shop"]) == 2
    assert main(["init", "empty"]) == 0


def test_a_pipeline_that_is_moved_uses_another_home(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import tidemill as tm\nshop = tm.Pipeline('shop')\nshop.dataset('orders', 'id BIGINT')\n"
    )
    first = load("shop.py", tmp_path)
    assert load("shop.py", tmp_path) is first
    with load("shop.py", tmp_path, fresh=True) as second:
        assert second is not first
        second.move_to(tmp_path / "elsewhere")
        second["orders"].append([(1,)])
        assert (tmp_path / "elsewhere" / "shop-home").is_dir()
        assert not (tmp_path / "shop-home").exists()


@pytest.mark.parametrize(("typed", "meant"), [("rum", "run"), ("explian", "explain"), ("stats", "status")])
def test_a_mistyped_command_is_corrected(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_a_command_that_is_like_no_other_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_TIDEMILL_COMPLETE" in capsys.readouterr().out
    assert main(["completion", shell, "--json"]) == 0
    assert "_TIDEMILL_COMPLETE" in json.loads(capsys.readouterr().out)["script"]
