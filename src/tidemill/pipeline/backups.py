"""Back up a cluster while it runs, and restore it.

A backup is a folder with the layout of a home: the store as a SQLite file, the objects, and the cluster key
if the cluster has a home. `backup.json` is written last. Until then the folder has the file
`backup.incomplete`, and the backup can be repeated.

The order makes a backup consistent. Objects never change, and the store refers to an object only after it was
written. So a backup copies the objects, then the store as of one moment, then the objects that are new. What
the store refers to at that moment is then in the backup, unless it was deleted in between: the cleaner and
the collector delete an object only when it is older than a grace period. So an object that was written after
the first copy began is still there, if everything took less than the grace period. Otherwise the backup
repeats these steps, with fewer objects to copy.

A restore needs an empty store, and object storage without other objects: a store that is older than its
objects would give their positions to other lots. It copies the objects first and then the store, so the store
never refers to a missing object. Both can be repeated after a crash.
"""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidemill import crash
from tidemill.clock import SYSTEM, Clock
from tidemill.errors import BackupRefused, ObjectMissing
from tidemill.futures.home import OBJECTS, STORE, ClusterAddress
from tidemill.futures.values.signatures import FILE_NAME as KEY_FILE
from tidemill.futures.values.signatures import create_key
from tidemill.objects import Objects, open_objects
from tidemill.publish.cleaner import GRACE_S
from tidemill.store import open_store
from tidemill.store.copy import copy_store

REPORT, INCOMPLETE = "backup.json", "backup.incomplete"
FORMAT = 1
ROUNDS = 5
"""How often a backup copies again if copying takes too long."""

Say = Callable[[str], None]


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup contains.

    - source: the store that was backed up, without secrets.
    - wall_at: the moment of its store (wall time, µs).
    """

    format: int = FORMAT
    source: str
    cluster: str
    wall_at: int
    rows: int
    objects: int
    size: int


class ObjectCopy(msgspec.Struct, frozen=True):
    """The objects of a source after a copy, their bytes, and how many of them were copied now."""

    objects: int
    size: int
    copied: int


def _silent(_: str) -> None:
    pass


def back_up(
    place: ClusterAddress,
    folder: Path,
    *,
    clock: Clock = SYSTEM,
    say: Say = _silent,
    grace_s: float = GRACE_S,
) -> Backup:
    """Write a backup into a new folder, while the cluster may run.

    - grace_s: how old an object is at least when the cluster deletes it.
    """
    _begin(folder)
    target = ClusterAddress.of_home(folder)
    with open_store(place.store, clock=clock) as source, open_store(target.store, clock=clock) as store:
        objects = open_objects(place.objects, clock=clock, probe=False)
        copies = open_objects(target.objects, clock=clock)
        for _ in range(ROUNDS):
            began = clock.monotonic()
            copy_objects(objects, copies, say)
            wall_us = source.run(lambda tx: tx.wall())
            rows = copy_store(source, store, replace=True)
            crash.point("backup.between")
            copied = copy_objects(objects, copies, say)
            if clock.monotonic() - began < grace_s / 2:
                break
            say("the copy took long; copying what changed meanwhile")
        else:
            raise BackupRefused(
                f"{source.url} changes faster than it can be copied to {folder}",
                hint="write the backup to a faster disk, or stop the runners",
            )
        backup = Backup(
            source=source.url,
            cluster=place.cluster,
            wall_at=wall_us,
            rows=rows,
            objects=copied.objects,
            size=copied.size,
        )
    if place.home:
        create_key(folder / KEY_FILE, place.key)
    crash.point("backup.before_report")
    _write(folder / REPORT, msgspec.json.encode(backup))
    (folder / INCOMPLETE).unlink()
    return backup


def restore(folder: Path, place: ClusterAddress, *, clock: Clock = SYSTEM, say: Say = _silent) -> Backup:
    """Restore a backup to an empty place: a new home, or an empty store with empty object storage."""
    backup = read_backup(folder)
    if place.cluster != backup.cluster:
        raise BackupRefused(
            f"the backup in {folder} is of the cluster {backup.cluster!r}, not {place.cluster!r}",
            hint=f"pass --cluster {backup.cluster}",
        )
    source = ClusterAddress.of_home(folder)
    if place.home:
        Path(place.home).mkdir(parents=True, exist_ok=True)
    objects = open_objects(source.objects, clock=clock)
    target = open_objects(place.objects, clock=clock)
    _refuse_others(objects, target)
    with open_store(source.store, clock=clock) as stored, open_store(place.store, clock=clock) as store:
        copy_objects(objects, target, say)
        crash.point("restore.between")
        if place.home and (folder / KEY_FILE).exists():
            create_key(Path(place.home) / KEY_FILE, source.key)
        copy_store(stored, store)
    return backup


def read_backup(folder: Path) -> Backup:
    """Return what a backup contains. Raise `BackupRefused` if it is not a complete backup."""
    try:
        backup = msgspec.json.decode((folder / REPORT).read_bytes(), type=Backup)
    except FileNotFoundError:
        state = "is incomplete" if (folder / INCOMPLETE).exists() else "is not a backup"
        raise BackupRefused(f"{folder} {state}", hint="pass the folder of a complete backup") from None
    except msgspec.DecodeError as error:
        raise BackupRefused(f"{folder / REPORT} is damaged: {error}", hint="use another backup") from error
    if backup.format > FORMAT:
        raise BackupRefused(
            f"the backup in {folder} has format {backup.format}; this release reads up to {FORMAT}",
            hint="upgrade Tidemill on this machine",
        )
    for name in (STORE, OBJECTS):
        if not (folder / name).exists():
            raise BackupRefused(f"the backup in {folder} has no {name}", hint="use another backup")
    return backup


def copy_objects(source: Objects, target: Objects, say: Say = _silent) -> ObjectCopy:
    """Copy the objects that the target does not have with the same size.

    Objects that are deleted during the copy are left out.
    """
    present = {info.key: info.size for info in target.list()}
    objects = size = copied = 0
    for info in source.list():
        if present.get(info.key) != info.size:
            try:
                body, _ = source.get(info.key)
            except ObjectMissing:
                continue
            target.put(info.key, body)
            crash.point("backup.object")
            copied += 1
            if copied % 1000 == 0:
                say(f"{copied:,} objects copied")
        objects += 1
        size += info.size
    return ObjectCopy(objects, size, copied)


def _begin(folder: Path) -> None:
    """Create the folder. Raise `BackupRefused` if it has anything but an incomplete backup."""
    if (folder / REPORT).exists():
        raise BackupRefused(f"{folder} already has a backup", hint="choose a new folder")
    if not (folder / INCOMPLETE).exists():
        if folder.exists() and any(folder.iterdir()):
            raise BackupRefused(f"{folder} is not empty", hint="choose a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / INCOMPLETE, b"")


def _refuse_others(backup: Objects, target: Objects) -> None:
    """Raise `BackupRefused` if the target has objects that the backup does not have.

    They are newer than the backup's store. It would give their positions to other lots.
    """
    expected = {info.key for info in backup.list()}
    for info in target.list():
        if info.key not in expected:
            raise BackupRefused(
                f"{target.url} has objects that the backup does not have, such as {info.key!r}",
                hint="restore to a new home, or to empty object storage",
            )


def _write(path: Path, body: bytes) -> None:
    """Write a file that is complete or absent after a crash."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
