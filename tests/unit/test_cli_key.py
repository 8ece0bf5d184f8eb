"""`tidemill key` creates a key that a cluster accepts, and never overwrites one."""

import json
import stat
from pathlib import Path

import pytest

from tidemill.cli import main
from tidemill.futures.values.signatures import read_key


def test_a_new_key_can_be_read_by_its_owner_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys" / "cluster.key"
    assert main(["key", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(path)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = read_key(path).secret
    assert secret.hex() not in capsys.readouterr().out

    assert main(["key", str(path)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert read_key(path).secret == secret
    assert [file.name for file in path.parent.iterdir()] == ["cluster.key"]


def test_a_folder_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["key", str(tmp_path / "file" / "cluster.key")]) == 1
    assert "cluster.key" in capsys.readouterr().err
