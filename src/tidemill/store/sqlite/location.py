"""Check where a SQLite store is, and which machine owns it.

SQLite's locks and shared memory work only among the processes of one machine, on a local disk. On a network
file system, two machines can corrupt the file without an error. So the store checks the type of the file
system before it opens the file, and the file records the machine that owns it. Another machine gets an error
when it opens the file. If that machine takes over the file with `adopt`, the old owner notices at its next
transaction, because the boot id in the header row is no longer its own (`Header.read`).
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import StoreLocation

# Names as in mountinfo; with FUSE that is fuse.<file system>.
NETWORK = frozenset(
    """
    9p acfs afs beegfs ceph cifs coda davfs gfs2 glusterfs gpfs lustre ncp ncpfs nfs nfs4 ocfs2
    orangefs panfs pvfs2 shfs smb smb2 smb3 smbfs vboxsf vmhgfs wekafs
    """.split()  # noqa: SIM905
)
NETWORK_FUSE = frozenset(
    """
    blobfuse blobfuse2 ceph ceph-fuse curlftpfs davfs davfs2 gcsfuse glusterfs goofys grpcfuse
    juicefs mount-s3 mountpoint-s3 objectivefs osxfs portal rclone s3fs seaweedfs smbnetfs sshfs
    vmhgfs-fuse weed
    """.split()  # noqa: SIM905
)


class Mount(NamedTuple):
    """A mount point, and the type of its file system."""

    point: str
    kind: str


def parse_mounts(mountinfo: str) -> list[Mount]:
    """Parse /proc/self/mountinfo and keep its order, because a later mount hides an earlier one."""
    mounts = []
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if separator and len(fields) >= 5 and after.split():
            mounts.append(Mount(_unescaped(fields[4]), after.split()[0]))
    return mounts


def _unescaped(text: str) -> str:
    # The kernel writes space, tab, newline and backslash as \040 and so on.
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), text)


def filesystem_of(path: str, mounts: list[Mount]) -> str:
    """Return the type of the file system that contains an absolute path; an empty string if none does."""
    best = Mount("", "")
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(mount.point + "/")
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best.kind


def is_network(kind: str) -> bool:
    """Return whether several machines can share a file system of this type; unknown types count as local."""
    return kind in NETWORK or (kind.startswith("fuse.") and kind.removeprefix("fuse.") in NETWORK_FUSE)


def refuse_network(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
    """Refuse a path on a file system that several machines can share."""
    kind = filesystem_of(str(path), parse_mounts(mountinfo.read_text(errors="replace")))
    if is_network(kind):
        raise StoreLocation(f"{path} is on a network file system ({kind})")


class MachineId(NamedTuple):
    """The id of a machine and of its boot. An equal boot id proves that it is the same machine."""

    id: str
    boot: str

    @staticmethod
    def here(root: Path = Path("/")) -> "MachineId":
        """Return the id of this machine; the host name in a container that has no machine id."""
        boot = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
        for name in ("etc/machine-id", "var/lib/dbus/machine-id"):
            try:
                machine_id = (root / name).read_text().strip()
            except OSError:
                continue
            if machine_id and machine_id != "uninitialized":
                return MachineId(machine_id, boot)
        return MachineId(f"host:{os.uname().nodename}", boot)


def refuse_other_machine(path: Path, owner: MachineId, machine: MachineId) -> None:
    """Refuse a file of another machine; the same machine after a reboot is accepted."""
    if owner.boot != machine.boot and owner.id != machine.id:
        raise StoreLocation(
            f"{path} belongs to another machine",
            hint="if you moved the file to this machine, open it once with adopt=True; "
            "to share a store between machines use postgresql://",
        )


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, so that they survive a power failure."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        parent = os.open(new.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
