"""The configuration file of a pipeline, and the commands that find their cluster through it."""

import json
from pathlib import Path

import pytest

from tidemill.cli import main
from tidemill.errors import PipelineNotFound
from tidemill.pipeline import pipeline_file

SHOP = """
import tidemill as tm

shop = tm.Pipeline("shop", home="home", cluster="harbour")
shop.dataset("orders", "id BIGINT").append([(1,)])
"""


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ('pipelin = "shop.py"', "did you mean pipeline?"),
        ('spark = "local"', "use one of: pipeline, profiles"),
    ],
)
@pytest.mark.parametrize("file", ["tidemill.toml", "pyproject.toml"])
def test_an_unknown_setting_is_an_error(tmp_path: Path, file: str, setting: str, hint: str) -> None:
    section = "[tool.tidemill]\n" if file == "pyproject.toml" else ""
    (tmp_path / file).write_text(f'{section}pipeline = "shop.py:shop"\n{setting}\n')
    name = setting.partition(" ")[0]
    with pytest.raises(PipelineNotFound, match=f"{file}: unknown setting `{name}`") as error:
        pipeline_file.locate(start=tmp_path)
    assert error.value.hint == hint


@pytest.mark.parametrize("command", ["nodes", "futures", "triggers"])
def test_a_command_finds_the_cluster_of_the_configured_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command]) == 2
    assert "there is no tidemill.toml here" in capsys.readouterr().err
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "tidemill.toml").write_text('pipeline = "shop.py"\n')
    for arguments in ([], ["-f", "shop.py:shop"]):
        assert main([command, *arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])[command] == []
    assert main([command, "--home", "home", "--store", "memory:"]) == 2


@pytest.mark.parametrize(
    "content", ["tool = 1", "tool = []", "[tool]\ntidemill = 3", "[[tool.tidemill]]\npipeline = 'x'"]
)
def test_a_section_that_is_not_a_table_is_an_error_or_absent(tmp_path: Path, content: str) -> None:
    (tmp_path / "pyproject.toml").write_text(content)
    with pytest.raises(PipelineNotFound) as error:
        pipeline_file.locate(start=tmp_path)
    assert error.value.hint


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000])
def test_a_configuration_that_cannot_be_read_is_an_error(tmp_path: Path, value: str) -> None:
    (tmp_path / "tidemill.toml").write_text(f"pipeline = {value}")
    with pytest.raises(PipelineNotFound, match="cannot be read"):
        pipeline_file.locate(start=tmp_path)
