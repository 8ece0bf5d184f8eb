"""Where a machine keeps run files: a folder of the user, of this boot, of bounded size."""

from pathlib import Path

import pytest

from tidemill.views.trace import cache_folder as module
from tidemill.views.trace.cache_folder import ENVIRONMENT, LIMIT_BYTES, cache_folder


def test_the_folder_is_named_after_the_boot_and_folders_of_earlier_boots_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot"
    monkeypatch.setattr(module, "_BOOT", boot)
    boot.write_text("one\n")
    first = cache_folder(str(tmp_path / "cache"))
    assert first is not None
    (first.folder / "run").write_bytes(b"x")
    other = first.folder.parent / "traces-another_machine-zero"
    other.mkdir()
    again = cache_folder(str(tmp_path / "cache"))
    assert again is not None
    assert again.folder == first.folder
    assert (first.folder / "run").exists()
    boot.write_text("two\n")
    second = cache_folder(str(tmp_path / "cache"))
    assert second is not None
    assert second.folder.name.endswith("-two")
    assert not first.folder.exists()
    assert other.exists()  # of a machine that shares this home
    assert 0 < second.limit_bytes <= LIMIT_BYTES
    assert second.folder.stat().st_mode & 0o777 == 0o700


def test_the_environment_sets_the_folder_or_disables_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot"
    monkeypatch.setattr(module, "_BOOT", boot)
    boot.write_text("b")
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "there"))
    cache = cache_folder()
    assert cache is not None
    assert cache.folder.parent == tmp_path / "there"
    here = cache_folder(str(tmp_path / "here"))  # a setting wins
    assert here is not None
    assert here.folder.parent == tmp_path / "here"
    monkeypatch.setenv(ENVIRONMENT, "off")
    assert cache_folder() is None
    monkeypatch.delenv(ENVIRONMENT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    usual = cache_folder()
    assert usual is not None
    assert usual.folder.parent == tmp_path / "xdg" / "tidemill"


def test_a_folder_that_others_can_write_or_that_cannot_be_created_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot"
    monkeypatch.setattr(module, "_BOOT", boot)
    boot.write_text("b")
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o777)
    assert cache_folder(str(public)) is None
    (tmp_path / "file").write_text("")
    assert cache_folder(str(tmp_path / "file")) is None
    monkeypatch.setattr(module, "_BOOT", tmp_path / "none")
    monkeypatch.setattr(module.sys, "platform", "plan9")
    assert cache_folder(str(tmp_path / "cache")) is None
