"""Notice new files in a folder of this machine within a twentieth of a second.

The files of a source are listed once a second, and each listing takes a lease in the store. So a file waited
for half a second until a listing found it. Looking at the times of the folders costs some microseconds: a
folder's time changes when a file is created in it or moved into it. A change makes the next poll due now.

The times are only hints. A file that changes in place, a file system without exact times and a second file in
the same tick of the clock are found by the next regular poll.
"""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tidemill.clock import Clock

LOOK_EVERY_S = 0.05
MOST_FOLDERS = 200
"""A source with more folders is only polled."""


class FolderWatch:
    """Watches a folder and the folders below it, in a thread.

    Args:
        root: the folder; it may be missing.
        changed: called when a folder has changed.
        clock: how to wait.
    """

    def __init__(self, root: Path, changed: Callable[[], object], clock: Clock) -> None:
        self._root = root
        self._changed = changed
        self._clock = clock
        self._stop = threading.Event()
        self._times: dict[str, int] = {}
        self.look()
        self._thread = threading.Thread(target=self._run, name="folder-watch", daemon=True)

    def start(self) -> None:
        """Start the thread, unless it has been started."""
        if not self._thread.ident:
            self._thread.start()

    def stop(self) -> None:
        """End the thread, without waiting for it."""
        self._stop.set()

    def look(self) -> bool:
        """Return whether a folder has changed since the last call."""
        before, self._times = self._times, dict(self._folders())
        return self._times != before

    def _run(self) -> None:
        while not self._clock.wait(self._stop, LOOK_EVERY_S):
            if self.look():
                self._changed()
            if len(self._times) > MOST_FOLDERS:
                return

    def _folders(self) -> Iterator[tuple[str, int]]:
        """Yield the time of each folder. With the same time as before, it has the same folders below it."""
        known = self._times
        folders = [str(self._root)]
        for folder in folders:
            try:
                time_ns = os.stat(folder).st_mtime_ns  # noqa: PTH116 - many folders, often
            except OSError:
                continue
            yield folder, time_ns
            if known.get(folder) == time_ns:
                prefix = f"{folder}/"
                folders += [
                    path for path in known if path.startswith(prefix) and "/" not in path[len(prefix) :]
                ]
            elif len(folders) <= MOST_FOLDERS:
                folders += _below(folder)


def _below(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
