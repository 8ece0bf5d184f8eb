"""The sources room's layout in the store, beside that of the rooms below it.

(C, "source-file", source, path)              a file that was taken: what it was like, and its window
(C, "source-window-number", source)           the last window that was given a number
(C, "source-window", source, number)          a window's row
(C, "source-window-page", source, number, n)  the files of a window that is not published, in pages
(C, "source-window-open", source, number)     the windows that are not ended
(C, "source-stretches", source)                  the stretches that nodes share its listing by
(C, "source-address", source)                 where rows are pushed to, while somebody receives
(C, "source-seen", source, generation, stretch) when a stretch was last looked at
(C, "source-mark", source, name)              how far a source has come: an ETag, an offset
(C, "source-trouble", source, name)           why a mark does not move, in words, while it does not
(C, "source-tending", source, node)           which nodes share a topic, and when each said so
"""

from tidemill.publish.keys import PublishKeys
from tidemill.store import Space


class SourceKeys:
    """The spaces of one cluster's sources."""

    def __init__(self, cluster: str) -> None:
        self.publish = PublishKeys(cluster)
        self.file = Space(cluster, "source-file")
        self.window_number = Space(cluster, "source-window-number")
        self.window = Space(cluster, "source-window")
        self.page = Space(cluster, "source-window-page")
        self.open = Space(cluster, "source-window-open")
        self.arranged = Space(cluster, "source-stretches")
        self.address = Space(cluster, "source-address")
        self.seen = Space(cluster, "source-seen")
        self.mark = Space(cluster, "source-mark")
        self.trouble = Space(cluster, "source-trouble")
        self.tending = Space(cluster, "source-tending")

    def fetching(self, source: str) -> bytes:
        """The lease of whoever asks for what is new."""
        return self.publish.cluster.lease["source-fetch", source]

    def receiving(self, source: str) -> bytes:
        """The lease of whoever receives what is pushed."""
        return self.publish.cluster.lease["source-push", source]

    def looking(self, source: str) -> bytes:
        """The lease of whoever lists a source."""
        return self.publish.cluster.lease["source-look", source]
