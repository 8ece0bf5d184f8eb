import os
from pathlib import Path

import pytest

from tidemill.errors import SourceUnavailable
from tidemill.sources.folder import FolderListing, folder
from tidemill.sources.listing import ListedFile, SettleTracker
from tidemill.sources.path_patterns import PathPattern
from tidemill.testing.fake_clock import FakeClock


def listed(root: Path, pattern: str = "**/*.json", **kind: str) -> tuple[list[str], list[tuple[str, str]]]:
    skipped: list[tuple[str, str]] = []
    listing = FolderListing(root, PathPattern(pattern))
    return [file.path for file in listing.files(lambda *skip: skipped.append(skip), **kind)], skipped


def make(root: Path, *paths: str) -> None:
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("{}")


def test_files_are_listed_in_the_order_of_their_paths_after_any_path(tmp_path: Path) -> None:
    make(tmp_path, "a/x.json", "a-1.json", "a.json", "b/c/d.json", "b.json", "Z.json", "ä.json")
    everything, _ = listed(tmp_path)
    assert everything == sorted(everything)
    assert len(everything) == 7
    for place, path in enumerate(everything):
        assert listed(tmp_path, after=path)[0] == everything[place + 1 :]
        assert listed(tmp_path, until=path)[0] == everything[: place + 1]


def test_unfinished_files_are_ignored(tmp_path: Path) -> None:
    make(
        tmp_path,
        ".hidden.json",
        "_success.json",
        "_temporary/0/a.json",
        ".git/a.json",
        "a.json.tmp",
        "a.json.crdownload",
        "a.json~",
        "a.json._COPYING_",
        "a.part",
        "whole.json",
    )
    assert listed(tmp_path, "**")[0] == ["whole.json"]


def test_unusual_names_are_listed_unchanged(tmp_path: Path) -> None:
    names = [
        "a b.json",
        "it's.json",
        'say "x".json',
        "day=1.json",
        "100%.json",
        "ünï.json",
        "日本.json",
        "#;&?*[x]{y}.json",
    ]
    make(tmp_path, *names)
    assert sorted(listed(tmp_path)[0]) == sorted(names)


def test_unusable_names_are_reported(tmp_path: Path) -> None:
    make(tmp_path, "fine.json", "/".join(["d" * 200] * 5) + "/long.json", "new\nline.json")
    (tmp_path / os.fsdecode(b"bad\xff.json")).write_text("{}")
    paths, skipped = listed(tmp_path)
    assert paths == ["fine.json"]
    assert len(skipped) == 3
    assert any("UTF-8" in why for _, why in skipped)


def test_links_to_files_in_the_folder_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    root = tmp_path / "in"
    make(root, "real.json")
    (root / "link.json").symlink_to("real.json")
    (root / "gone.json").symlink_to(tmp_path / "nothing.json")
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "pipe.json")
    paths, skipped = listed(root)
    assert paths == ["link.json", "real.json"]
    assert skipped == [("loop", "a link to a folder is not followed")]


def test_a_link_out_of_the_folder_is_refused_unless_configured(tmp_path: Path) -> None:
    make(tmp_path, "landing/real.json", "secrets/x.json", "landing-2/x.json")
    root = tmp_path / "root"
    root.symlink_to(tmp_path / "landing")  # the user declares the root, so it may be a link
    (root / "absolute.json").symlink_to(tmp_path / "secrets" / "x.json")
    (root / "relative.json").symlink_to("../landing-2/x.json")
    (root / "twice.json").symlink_to("absolute.json")
    paths, skipped = listed(root)
    assert paths == ["real.json"]
    assert sorted(path for path, _ in skipped) == ["absolute.json", "relative.json", "twice.json"]
    assert {why for _, why in skipped} == {
        "a link to a place outside the folder is not followed (outside_links=False)"
    }
    listing = folder(f"{root}/*.json", outside_links=True).listing()
    files = [file.path for file in listing.files(lambda *_: None)]
    assert files == ["absolute.json", "real.json", "relative.json", "twice.json"]
    with listing.open("absolute.json") as file:
        assert file.read() == b"{}"


def test_a_file_that_is_replaced_by_a_link_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    make(tmp_path, "in/a.json", "in/sub/b.json", "out/a.json", "out/b.json")
    listing = folder(f"{tmp_path}/in/**/*.json").listing()
    assert [file.path for file in listing.files(lambda *_: None)] == ["a.json", "sub/b.json"]
    (tmp_path / "in/a.json").unlink()
    (tmp_path / "in/a.json").symlink_to(tmp_path / "out" / "a.json")
    (tmp_path / "in/sub/b.json").unlink()
    (tmp_path / "in/sub").rmdir()
    (tmp_path / "in/sub").symlink_to(tmp_path / "out")
    assert listing.stat(["a.json", "sub/b.json"]) == [None, None]
    for path in ("a.json", "sub/b.json"):
        with pytest.raises(FileNotFoundError):
            listing.open(path)


def test_files_deleted_during_the_listing_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, "a.json", "b/x.json", "c.json", "d/x.json")
    paths = []
    for file in FolderListing(tmp_path, PathPattern("**/*.json")).files(lambda *_: None):
        paths.append(file.path)
        for gone in ("c.json", "d/x.json"):
            (tmp_path / gone).unlink(missing_ok=True)
        if (tmp_path / "d").exists():
            (tmp_path / "d").rmdir()
    assert paths == ["a.json", "b/x.json"]


def test_a_missing_folder_is_empty_and_a_file_instead_of_it_is_an_error(tmp_path: Path) -> None:
    assert listed(tmp_path / "later")[0] == []
    make(tmp_path, "file")
    with pytest.raises(SourceUnavailable) as refused:
        listed(tmp_path / "file")
    assert refused.value.hint


def test_the_version_of_a_file_depends_on_size_and_time_only(tmp_path: Path) -> None:
    make(tmp_path, "a.json")
    listing = folder(f"{tmp_path}/*.json").listing()
    before = listing.stat(["a.json"])
    copy = tmp_path / "copy"
    copy.write_text("{}")
    at = (tmp_path / "a.json").stat()
    os.utime(copy, ns=(at.st_atime_ns, at.st_mtime_ns))
    copy.rename(tmp_path / "a.json")
    assert listing.stat(["a.json"]) == before
    (tmp_path / "a.json").write_text("{ }")
    assert listing.stat(["a.json"]) != before
    assert listing.stat(["none.json"]) == [None]
    with listing.open("a.json") as file:
        assert file.read() == b"{ }"


def test_a_file_settles_by_its_time_or_by_our_clock() -> None:
    clock = FakeClock()
    settling = SettleTracker(clock, 10)
    wall_s = clock.wall()
    assert settling.settled(ListedFile("old", 1, wall_s - 10, "v"), wall_s)
    ahead = ListedFile("ahead", 1, clock.wall() + 3600, "v1")  # its writer's clock is fast
    assert not settling.settled(ahead, wall_s)
    clock.advance(6)
    assert settling.wait_s() == 4
    grown = ahead._replace(version="v2")
    assert not settling.settled(grown, wall_s)
    clock.advance(9)
    assert not settling.settled(grown, wall_s)
    clock.advance(1)
    assert settling.settled(grown, wall_s)
    assert settling.wait_s() is None
