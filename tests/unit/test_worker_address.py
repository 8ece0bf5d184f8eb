"""The address of a worker is unique, and a worker that restarts has it again."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tidemill.futures.home import ClusterAddress
from tidemill.futures.values.signatures import ClusterKey
from tidemill.futures.worker.worker import own_address

PLACE = ClusterAddress(store="postgresql://host/db", objects="", key=ClusterKey(b"k" * 32))


@pytest.fixture
def private_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.rule("FUT-37", "FUT-39")
def test_workers_with_separate_temporary_folders_have_different_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = set()
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        with own_address(PLACE, "host-1", token=f"boot {number}") as address:
            addresses.add(address)
    assert len(addresses) == 3


@pytest.mark.rule("FUT-39")
def test_a_worker_that_restarts_has_the_address_of_its_last_start(private_tmp: Path) -> None:
    with (
        own_address(PLACE, "host-1", token="first") as first,
        own_address(PLACE, "host-1", token="second") as second,
    ):
        assert second != first
    with own_address(PLACE, "host-1", token="third") as again:
        assert again == first


@pytest.mark.rule("FUT-39")
def test_a_copy_of_the_folder_gives_another_address(private_tmp: Path) -> None:
    with own_address(PLACE, "host-1", token="first") as first:
        pass
    (folder,) = private_tmp.iterdir()
    shutil.move(folder, private_tmp / "old")
    shutil.copytree(private_tmp / "old", folder)
    with own_address(PLACE, "host-1", token="second") as second:
        assert second != first
