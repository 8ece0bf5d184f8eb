"""Keys of lots in the store. All of them begin with the cluster's name, C.

(C, "dataset", name, version)                  the declaration of a dataset
(C, "owner", name, version, pipeline)          a pipeline that declares a dataset, or has declared it
(C, "dropped", name, version)                  a dropped dataset: when, until its files are deleted; then 0
(C, "columns", name, version, revision)        earlier columns of a dataset
(C, "head", name, version)                     the position of the newest event; each publication locks it
(C, "append-number", name, version)            the number of the last append
(C, "lot", name, version, lot)                 the newest published generation of a lot
(C, "replaced", name, version, lot, generation)   earlier generations
(C, "crumbled", name, version, lot)            a fragmented lot: many small files to compact
(C, "retired", at, name, version, lot, generation, revision)   a replaced layout, until its files are removed
(C, "lot-event", name, version, position)      events, in order and without gaps
(C, "producer", name, version, producer)       the highest number a producer has used, and folded receipts
(C, "receipt", name, version, producer, seq)   the receipt of a recent append
(C, "keep", name, version, pipeline)           how long a pipeline keeps lots, or the changes of a view
(C, "expired", name, version)                  up to which position lots or steps have expired
(C, "base-lot", name, version)                 the merged rows of expired lots
(C, "base-part", name, version, position)      an expired lot that is not merged yet
(C, "consumer", name, version, consumer)       the position that a registered consumer has reached
(C, "interval", name, version)                 the first interval that is not closed
(C, "closing", at, name, version)              intervals by the wall time at which they can be closed
(C, "staged", name, version, lot, Version)     appends that wait for their interval to close
(C, "spent", name, version, lot)               a closed interval with staging rows to remove
(C, "wall-clock")                              the accepted offset of the wall clock from lease time
"""

import msgspec

from tidemill.store import Space


class DatasetId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The name and version of a dataset, or of anything else with a head, such as a view group."""

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
        self.owner = Space(cluster, "owner")
        self.dropped = Space(cluster, "dropped")
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
        self.keep = Space(cluster, "keep")
        self.expired = Space(cluster, "expired")
        self.base_lot = Space(cluster, "base-lot")
        self.base_part = Space(cluster, "base-part")
        self.consumer = Space(cluster, "consumer")
        self.interval = Space(cluster, "interval")
        self.closing = Space(cluster, "closing")
        self.staged = Space(cluster, "staged")
        self.spent = Space(cluster, "spent")
        self.wall_clock = Space(cluster)["wall-clock"]
