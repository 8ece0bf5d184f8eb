"""Keys of sources in the store. All of them begin with the cluster's name, C.

(C, "source-file", source, path)                a file that was taken: its version and its window
(C, "source-content", source, digest)           the file with which a content was taken first
(C, "source-window-number", source)             the number of the newest window
(C, "source-window", source, number)            a window
(C, "source-window-page", source, number, n)    the files of a window that is not published, in pages
(C, "source-window-open", source, number)       the windows that have not ended
(C, "source-stretches", source)                 how the source's listing is cut into shards
(C, "source-seen", source, generation, shard)   when a shard was last listed
(C, "source-address", source)                   the address to push rows to, while a node receives
(C, "source-mark", source, name)                a checkpoint: an ETag, an offset, a time
(C, "source-trouble", source, name)             why a checkpoint does not advance, as text
(C, "source-tending", source, node)             a node that reads a share of a topic, and its last report
"""

from tidemill.publish.keys import PublishKeys
from tidemill.store import Space


class SourceKeys:
    """The key spaces of one cluster's sources."""

    def __init__(self, cluster: str) -> None:
        self.publish = PublishKeys(cluster)
        self.file = Space(cluster, "source-file")
        self.content = Space(cluster, "source-content")
        self.window_number = Space(cluster, "source-window-number")
        self.window = Space(cluster, "source-window")
        self.page = Space(cluster, "source-window-page")
        self.open = Space(cluster, "source-window-open")
        self.shard_layout = Space(cluster, "source-stretches")
        self.shard_listed = Space(cluster, "source-seen")
        self.address = Space(cluster, "source-address")
        self.checkpoint = Space(cluster, "source-mark")
        self.trouble = Space(cluster, "source-trouble")
        self.member = Space(cluster, "source-tending")

    def fetch_lease(self, source: str) -> bytes:
        """Return the key of the lease for fetching from a source."""
        return self.publish.cluster.lease["source-fetch", source]

    def push_lease(self, source: str) -> bytes:
        """Return the key of the lease for receiving pushed rows."""
        return self.publish.cluster.lease["source-push", source]

    def discovery_lease(self, source: str) -> bytes:
        """Return the key of the lease for listing a source."""
        return self.publish.cluster.lease["source-look", source]
