"""Where a SQLite store may be: decided from the text of mountinfo, without a disk."""

from pathlib import Path

import pytest

from tidemill.errors import StoreLocation
from tidemill.store.sqlite.header import Header, micros, needs_rebase
from tidemill.store.sqlite.location import (
    MachineId,
    filesystem_of,
    is_network,
    parse_mounts,
    refuse_network,
    refuse_other_machine,
)
from tidemill.testing.fake_clock import FakeClock

MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:40 / /home rw,relatime shared:1 master:2 - nfs4 server:/export rw,vers=4.2
31 30 8:1 / /home/local rw,relatime - xfs /dev/sda1 rw
32 27 0:41 / /mnt/with\040space rw - cifs //server/share rw
33 27 0:42 / /mnt/data rw - fuse.sshfs me@host: rw
34 27 0:43 / /mnt/data rw - btrfs /dev/sdb rw
35 27 0:44 / /mnt/data2 rw - fuse.fuse-overlayfs overlay rw
not a line of mountinfo
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/store.db", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/store.db", "nfs4"),
        ("/homework/store.db", "ext4"),
        ("/home/local/store.db", "xfs"),
        ("/mnt/with space/store.db", "cifs"),
        ("/mnt/data/store.db", "btrfs"),
        ("/mnt/data2/store.db", "fuse.fuse-overlayfs"),
    ],
)
def test_a_path_lies_on_the_longest_mount_and_of_two_at_one_point_on_the_later(path: str, kind: str) -> None:
    assert filesystem_of(path, parse_mounts(MOUNTINFO)) == kind


def test_without_any_mount_nothing_is_known() -> None:
    assert filesystem_of("/x", []) == ""


@pytest.mark.rule("STO-9")
@pytest.mark.parametrize(
    ("kind", "network"),
    [
        *[
            (kind, True)
            for kind in ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "afs")
        ],
        *[(f"fuse.{kind}", True) for kind in ("sshfs", "s3fs", "rclone", "glusterfs", "gcsfuse")],
        *[
            (kind, False)
            for kind in ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "", "sshfs")
        ],
        ("fuse.fuse-overlayfs", False),
    ],
)
def test_network_file_systems_are_distinguished_from_local_ones(kind: str, network: bool) -> None:
    assert is_network(kind) is network


@pytest.mark.rule("STO-9")
def test_a_network_file_system_is_refused_with_its_name(tmp_path: Path) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(MOUNTINFO)
    refuse_network(Path("/var/lib/store.db"), mountinfo)
    with pytest.raises(StoreLocation, match="nfs4") as refused:
        refuse_network(Path("/home/me/store.db"), mountinfo)
    assert "postgresql://" in str(refused.value)


@pytest.mark.rule("STO-9", "CLU-18")
@pytest.mark.parametrize(
    ("owner", "ours"),
    [
        (MachineId("m1", "b1"), True),  # the very same
        (MachineId("m1", "b2"), True),  # booted again
        (MachineId("m2", "b1"), True),  # another container of this machine
        (MachineId("m2", "b2"), False),
    ],
)
def test_a_file_is_ours_by_its_boot_or_by_its_machine(owner: MachineId, ours: bool) -> None:
    here = MachineId("m1", "b1")
    if ours:
        refuse_other_machine(Path("/s.db"), owner, here)
    else:
        with pytest.raises(StoreLocation, match="another machine") as refused:
            refuse_other_machine(Path("/s.db"), owner, here)
        assert "adopt=True" in refused.value.hint


def test_a_machine_without_an_id_goes_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("b1\n")
    assert MachineId.here(tmp_path).id.startswith("host:")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("uninitialized\n")
    assert MachineId.here(tmp_path).id.startswith("host:")
    (tmp_path / "etc/machine-id").write_text("m1\n")
    assert MachineId.here(tmp_path) == MachineId("m1", "b1")


@pytest.mark.rule("STO-6")
@pytest.mark.parametrize(("boot", "ahead_us", "rebases"), [("b", 0, False), ("b", 1, True), ("c", 0, True)])
def test_another_boot_or_a_clock_behind_the_stored_time_is_a_reboot(
    boot: str, ahead_us: int, rebases: bool
) -> None:
    clock = FakeClock()
    head = Header(commit=1, boot="b", base_us=0, boot_us=micros(clock) + ahead_us, ceiling_us=0)
    assert needs_rebase(head, clock, MachineId("m", boot)) is rebases
