"""The lots room's layout in the store: everything under the cluster's name.

(C, "dataset", name, version)                  what was declared
(C, "columns", name, version, revision)        the columns it had before they changed
(C, "head", name, version)                     the position of the newest event; its lock orders publications
(C, "append-number", name, version)            the last append that was given a number
(C, "lot", name, version, lot)                 the newest published generation of a lot
(C, "replaced", name, version, lot, generation)   the ones before it
(C, "crumbled", name, version, lot)            a fragmented lot: many small files to compact
(C, "retired", at, name, version, lot, generation, revision)   a layout that was replaced, until it is removed
(C, "lot-event", name, version, position)      what became available, in order and without gaps
(C, "producer", name, version, producer)       the highest sequence number that was taken
(C, "receipt", name, version, producer, seq)   what was answered
(C, "interval", name, version)                 the first interval that is not closed
(C, "closing", at, name, version)              intervals by the wall time at which they can be closed
(C, "staged", name, version, lot, Version)     appends that wait for their interval to close
(C, "spent", name, version, lot)               a closed interval whose staging rows are to be removed
"""

import msgspec

from tidemill.store import Space


class DatasetId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A dataset's name and version: what everything of it lies under."""

    name: str
    version: str = "1"

    @property
    def parts(self) -> tuple[str, str]:
        return self.name, self.version

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


class LotKeys:
    """The spaces of one cluster's lots."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.dataset = Space(cluster, "dataset")
        self.columns = Space(cluster, "columns")
        self.head = Space(cluster, "head")
        self.append_number = Space(cluster, "append-number")
        self.lot = Space(cluster, "lot")
        self.replaced = Space(cluster, "replaced")
        self.fragmented = Space(cluster, "crumbled")
        self.retired = Space(cluster, "retired")
        self.event = Space(cluster, "lot-event")
        self.producer = Space(cluster, "producer")
        self.receipt = Space(cluster, "receipt")
        self.interval = Space(cluster, "interval")
        self.closing = Space(cluster, "closing")
        self.staged = Space(cluster, "staged")
        self.spent = Space(cluster, "spent")
